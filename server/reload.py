"""Reloads the configuration while requests go on. The catalog is read in a thread, one reload at a time,
because files of the store may have to be hashed; the event loop only switches to the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from satchel.errors import SatchelError
from satchel.server.catalog import Catalog
from satchel.server.log import LOG
from satchel.server.models import Models


class Reload:
    """Reloads the catalog. read: returns the current catalog, checked; it is called in a thread."""

    def __init__(self, read: Callable[[], Catalog], models: Models) -> None:
        self._read, self._models = read, models
        self._next: asyncio.Task[list[str]] | None = None
        self._lock = asyncio.Lock()
        self._signalled: set[asyncio.Task[None]] = set()

    async def __call__(self) -> list[str]:
        """Reloads, and returns what changed. Calls during a reload share the next one, which sees every
        change made before them. On SatchelError or OSError the old catalog stays.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._again())
        return await asyncio.shield(self._next)

    async def _again(self) -> list[str]:
        async with self._lock:
            self._next = None
            catalog = await asyncio.to_thread(self._read)
            changes = self._models.change(catalog)
        LOG.info("the configuration was read again: %s", "; ".join(changes) or "nothing changed")
        return changes

    def by_signal(self) -> None:
        """Starts a reload from a signal handler; an error goes to the log."""
        task = asyncio.create_task(self._logged())
        self._signalled.add(task)
        task.add_done_callback(self._signalled.discard)

    async def _logged(self) -> None:
        try:
            await self()
        except (SatchelError, OSError) as error:
            LOG.error("the configuration was not read again: %s", error)
