"""Which servers a pull may contact, and how many bytes it may fetch.

A local user may name any server, including one in a private network. Clients of a Satchel server may name the
configured registries only: another host is refused before any DNS lookup, so that the error reveals nothing
about the network (SSRF). Redirects of a registry must lead to public addresses; a private address and a
missing one give the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from satchel.errors import RequestError
from satchel.store.names import OLLAMA_HOST, HubName, LocalName, Name, OllamaName
from satchel.store.remote import hub_endpoint, registry_endpoint
from satchel.store.web import origin

Admit = Callable[[str, int], None]


def anything(name: str, size: int) -> None:
    """No quota."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of a pull."""

    registries: Sequence[str] | None = None  # HOST or HOST:PORT beside the configured ones; None: any host
    # (model's name, bytes): called before a download; raises where it exceeds a quota
    admit: Admit = anything

    @property
    def free(self) -> bool:
        """Whether names may contain any host."""
        return self.registries is None

    def check(self, name: Name, environ: Mapping[str, str]) -> None:
        """Raises RequestError where the name's server is not an allowed registry, without a DNS lookup."""
        if self.registries is None or isinstance(name, LocalName | HubName):
            return
        if isinstance(name, OllamaName):
            if name.host == OLLAMA_HOST:
                return
            allowed = {origin(hub_endpoint(environ)), origin(registry_endpoint(environ))}
            allowed |= {origin(f"https://{host}") for host in self.registries}
            if origin(f"https://{name.host}") in allowed:
                return
        raise RequestError(
            "the name's host is none of this server's registries: its operator adds one with --registry"
        )

    def trusted(self, environ: Mapping[str, str]) -> list[str]:
        """URLs that the operator configured, which may be in a private network."""
        return [hub_endpoint(environ), registry_endpoint(environ)]


FREE = Policy()
