"""What a pull may reach and how much it may bring.

A local user names any server, and it may lie in a private network. Clients of a server name the
configured registries and no other host: a name of another is refused before anything of it is looked up, so
that the answer tells nothing of the network. Where a registry's redirects lead must be public; what is not
public and what does not exist are one answer.
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
    """registries: hosts, or HOST:PORT, that names may say beside the configured ones; None: any host, as a
    local user has it. admit(model's name, bytes): called before a model is fetched; raises where it is too
    much.
    """

    registries: Sequence[str] | None = None
    admit: Admit = anything

    @property
    def free(self) -> bool:
        """Whether names may say any host."""
        return self.registries is None

    def check(self, name: Name, environ: Mapping[str, str]) -> None:
        """RequestError where the name's server is none of the registries. Nothing is looked up for it."""
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
        """Addresses that the operator configured, which may lie in a private network."""
        return [hub_endpoint(environ), registry_endpoint(environ)]


FREE = Policy()
