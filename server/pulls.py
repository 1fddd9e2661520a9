"""Limits on pulls through the server: the allowed registries, concurrent pulls per key, and bytes per key
while the server runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from satchel.errors import RequestError
from satchel.server.problem import Problem
from satchel.server.settings import ServerSettings
from satchel.store.policy import Policy


class Pulls:
    """Pull quotas by key. Bytes are counted by model, so that resuming an interrupted pull costs nothing; a
    deleted model no longer counts. Thread-safe.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings, self._lock = settings, Lock()
        self._running: Counter[str] = Counter()
        self._pulled: dict[str, dict[str, int]] = {}

    def check(self, client: str) -> None:
        """Raises a Problem where the client has too many pulls in progress."""
        if self._running[client] >= self._settings.pulls:
            raise Problem("busy", self._full, code="too_many_pulls", retry_after=10)

    @property
    def _full(self) -> str:
        return f"{self._settings.pulls} pulls of this key are under way, which is the most: try again later"

    @contextmanager
    def begun(self, client: str) -> Iterator[Policy]:
        """Counts a pull of the client while it runs. RequestError where other pulls started since check()."""
        with self._lock:
            if self._running[client] >= self._settings.pulls:
                raise RequestError(self._full)
            self._running[client] += 1
        try:
            yield Policy(self._settings.registries, lambda name, size: self._admit(client, name, size))
        finally:
            with self._lock:
                self._running[client] -= 1

    def _admit(self, client: str, name: str, size: int) -> None:
        most = self._settings.pull_bytes
        with self._lock:
            pulled = self._pulled.setdefault(client, {})
            taken = sum(pulled.values()) - pulled.get(name, 0)
            if taken + size > most:
                raise RequestError(
                    f"{name}: it has {size:,} bytes, {max(0, most - taken):,} are left to this key: delete "
                    "a model that it pulled, or ask the operator for a larger --pull-quota"
                )
            pulled[name] = size

    def deleted(self, name: str) -> None:
        """Gives back the bytes of a model that was deleted."""
        with self._lock:
            for pulled in self._pulled.values():
                pulled.pop(name, None)
