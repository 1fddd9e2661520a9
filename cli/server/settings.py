"""The settings of a server, apart from its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from satchel.cli.server.roles import ADMIN, USER, Role

OWN = ("127.0.0.1", "::1", "localhost")  # addresses that only this machine reaches
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
UNIX = ".sock"  # the suffix of a host that is the path of a Unix socket


def is_unix(host: str) -> bool:
    return host.endswith(UNIX)


def is_own(host: str) -> bool:
    """Whether only this machine reaches the host."""
    return host in OWN or is_unix(host)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Addresses, keys and limits of a server. Sizes are in bytes, times in seconds."""

    host: str = "127.0.0.1"  # one that ends in .sock is a Unix socket, which has no port
    port: int = 8080
    ollama_port: int | None = None  # a second port, where Ollama clients look for a server
    api_keys: Sequence[str] = ()  # every request needs a key of these or of admin_keys; both empty: none
    admin_keys: Sequence[str] = ()
    hosts: Sequence[str] = LOOPBACK  # allowed Host headers; empty: any (without keys: LOOPBACK)
    origins: Sequence[str] = ()  # CORS: sites whose pages may call the server
    strict_fields: bool = False  # an unknown field is an error instead of a warning
    certificate: tuple[Path, Path] | None = None  # for HTTPS: the certificate's file and the key's
    states: Path | None = None  # the folder of saved conversations; None: they cannot be saved
    states_bytes: int = 16 << 30  # of saved conversations per key
    # Pulls
    registries: Sequence[str] = ()  # hosts that a pull may name beside the configured registries
    pulls: int = 2  # concurrent pulls per key
    pull_bytes: int = 500 * 10**9  # of all pulls per key
    # Requests of user keys may have a priority of at least -most_priority. It orders the requests of one key;
    # those of other keys are not overtaken.
    most_priority: int = 10
    # Requests
    most_body: int = 16 << 20
    most_bodies: int = 512 << 20  # memory of the bodies of all requests in flight
    body_seconds: float = 60.0  # until the whole body has arrived
    most_header: int = 64 << 10
    header_seconds: float = 10.0  # until the whole header has arrived, from accept or its first byte
    least_rate: int = 1024  # bytes/s at which a body must arrive and a response must be read
    write_seconds: float = 30.0  # for which a client may read below least_rate
    # Connections
    most_connections: int = 1024
    most_per_client: int = 256
    trusted_proxies: Sequence[str] = ()  # addresses and networks whose X-Forwarded-For is used
    keep_alive: float = 30.0  # until an idle connection is closed
    drain: float = 30.0  # for requests in flight when the server stops

    @property
    def keys(self) -> Mapping[str, Role]:
        """Every key with its role; empty where the server needs no keys."""
        return {**dict.fromkeys(self.api_keys, USER), **dict.fromkeys(self.admin_keys, ADMIN)}
