"""How a server runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from satchel.server.roles import ADMIN, USER, Role

OWN = ("127.0.0.1", "::1", "localhost")  # addresses that nobody else reaches
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
UNIX = ".sock"  # a host that ends so is the path of a Unix socket


def is_unix(host: str) -> bool:
    return host.endswith(UNIX)


def is_own(host: str) -> bool:
    """Whether nobody else's machine reaches it."""
    return host in OWN or is_unix(host)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """host, port: where it listens; a host that ends in .sock is a Unix socket, without a port. ollama_port:
    another port to listen on, where Ollama's clients look. api_keys: one of them must come with each request;
    none: nobody is asked. admin_keys: those of admins. key_shares: weights of keys beside others, 1 of those
    that it lacks. hosts: names by which it may be called, none: any. origins: sites whose pages may call it.
    strict_fields: a field that nobody knows is an error, not a warning. certificate: its file and its key's,
    for HTTPS. states: the folder in which conversations are saved, None: nowhere; states_bytes: of files that
    one key may have there.

    registries: hosts that a pull may name beside the configured registries. pulls, pull_bytes: of each key,
    at once and in all.

    most_priority: requests of user keys may have a priority from -most_priority on; one's own come in that
    order, other keys' are not overtaken.

    most_body, body_seconds: bytes of a request, and seconds until all came. most_bodies: bytes of memory for
    the bodies of all requests under way. most_header, header_seconds: bytes and seconds of a header, from
    accept or its first byte on. least_rate: bytes a second at which a body comes and an answer is read.
    write_seconds: for which a client may read more slowly. most_connections: at once;
    most_per_client: of one address. trusted_proxies: addresses and networks whose X-Forwarded-For is
    believed. keep_alive: seconds for which an idle connection stays. drain: seconds that requests under way
    have when the server stops.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    ollama_port: int | None = None
    api_keys: Sequence[str] = ()
    admin_keys: Sequence[str] = ()
    key_shares: Mapping[str, float] = field(default_factory=dict)
    hosts: Sequence[str] = LOOPBACK
    origins: Sequence[str] = ()
    strict_fields: bool = False
    certificate: tuple[Path, Path] | None = None
    states: Path | None = None
    states_bytes: int = 16 << 30
    registries: Sequence[str] = ()
    pulls: int = 2
    pull_bytes: int = 500 * 10**9
    most_priority: int = 10
    most_body: int = 16 << 20
    most_bodies: int = 512 << 20
    body_seconds: float = 60.0
    most_header: int = 64 << 10
    header_seconds: float = 10.0
    least_rate: int = 1024
    write_seconds: float = 30.0
    most_connections: int = 1024
    most_per_client: int = 256
    trusted_proxies: Sequence[str] = ()
    keep_alive: float = 30.0
    drain: float = 30.0

    @property
    def keys(self) -> Mapping[str, Role]:
        """Every key with its role; none: nobody is asked for one."""
        return {**dict.fromkeys(self.api_keys, USER), **dict.fromkeys(self.admin_keys, ADMIN)}
