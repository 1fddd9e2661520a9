"""Options of the server: addresses, keys and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from satchel.errors import RequestError
from satchel.runtime.option import check_options, documented, option_field
from satchel.store.names import web_name

LOCAL = ("127.0.0.1", "::1", "localhost")  # addresses that only this machine reaches
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
UNIX = ".sock"  # a host that ends so is the path of a Unix socket
GB = 10**9
MOST_PRIORITY = 1000  # a request has -1000 (most urgent) to 1000


def is_unix(host: str) -> bool:
    return host.endswith(UNIX)


def is_own(host: str) -> bool:
    """Whether only this machine reaches the host."""
    return host in LOCAL or is_unix(host)


def _split(texts: Sequence[str]) -> tuple[str, ...]:
    """The parts of comma-separated texts."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _check_registries(hosts: Sequence[str]) -> None:
    """Raises RequestError unless each is HOST or HOST:PORT."""
    for host in hosts:
        try:
            path = web_name(f"https://{host}/a.gguf").path
        except RequestError as error:
            raise RequestError(f"{host!r}: {error}") from None
        if path != ("a.gguf",):
            raise RequestError(f"{host!r}: expected HOST or HOST:PORT")


@documented
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Every option of the server, with its default.

    A body is refused after body_seconds, and where it comes more slowly than least_rate. Without keys, no
    request needs one. key_shares has the weights of keys beside each other, 1 for the others.
    """

    host: str = option_field(
        "127.0.0.1", "Address to listen on, or the path of a Unix socket, which ends in .sock.", "--host"
    )
    port: int = option_field(8080, "Port to listen on; 0: a free one.", "--port", low=0, high=65535)
    ollama_port: int | None = option_field(
        None,
        "Second port to listen on; Ollama's clients expect 11434.",
        "--ollama-port",
        low=0,
        high=65535,
    )
    api_keys: Sequence[str] = option_field(
        (),
        "Keys of users, one of which each request must have.",
        "--api-key",
        help="A user's key, or several with commas between them; repeatable.",
        parse=_split,
    )
    admin_keys: Sequence[str] = option_field(
        (),
        "Keys that may also load, unload, pull, delete, reload and read /metrics.",
        "--admin-key",
        help="A key that may also load, unload, pull, delete, reload and read /metrics; repeatable.",
    )
    key_shares: Mapping[str, float] = field(default_factory=dict)
    hosts: Sequence[str] = option_field(LOOPBACK, "Names that a Host header may have; (): any.")
    origins: Sequence[str] = option_field(
        (),
        "Sites whose pages may call the server.",
        "--cors-origins",
        help="A site whose pages may call the server, or several with commas; repeatable.",
        parse=_split,
    )
    strict_fields: bool = option_field(False, "Refuse requests with unknown fields.", "--strict-fields")
    page: bool = option_field(
        True, "Serve the page at / and the dashboard.", "--ui/--no-ui", "--webui/--no-webui"
    )
    reasoning_format: str = option_field(
        "auto",
        "Where an answer's reasoning is, for requests that leave it out: none, deepseek, deepseek-legacy.",
        "--reasoning-format",
        env="THINK",
        choices=("auto", "none", "deepseek", "deepseek-legacy"),
    )
    ping_seconds: float = option_field(
        15.0,
        "Seconds of silence after which a stream of OpenAI's API has a comment line; -1: never.",
        "--sse-ping-interval",
        low=-1,
    )
    certificate: tuple[Path, Path] | None = option_field(None, "Certificate and private key for HTTPS.")
    states: Path | None = option_field(
        None, "Folder in which /slots saves conversations.", "--slot-save-path", metavar="DIR"
    )
    states_bytes: int = option_field(16 << 30, "Most bytes of one key's saved conversations.")
    registries: Sequence[str] = option_field(
        (),
        "Hosts that a pull by a client may name, besides the configured registries.",
        "--registry",
        help="A host that a pull by a client may name; repeatable.",
        check_value=_check_registries,
    )
    pulls: int = option_field(2, "Most pulls of a key at once.")
    pull_bytes: int = option_field(
        500 * GB,
        "Most bytes that a key may pull.",
        "--pull-quota",
        low=0,
        help="GB of models that each key may pull.",
        flag_default=500.0,
        parse=lambda size: round(size * GB),
    )
    most_priority: int = option_field(
        10,
        "Most urgent priority of user keys, negated: their requests may have -most_priority and more.",
        "--max-priority",
        low=0,
        high=MOST_PRIORITY,
        help="Most urgent priority of users, negated.",
    )
    most_body: int = option_field(16 << 20, "Most bytes of a request's body.")
    most_bodies: int = option_field(512 << 20, "Most bytes of all bodies that are held at once.")
    body_seconds: float = option_field(
        60.0, "Seconds in which a request's body must arrive.", "--body-timeout", above=0
    )
    most_header: int = option_field(64 << 10, "Most bytes of a request's header.")
    header_seconds: float = option_field(
        10.0,
        "Seconds in which a request's header must arrive, from its first byte or from accept.",
        "--header-timeout",
        above=0,
    )
    least_rate: int = option_field(
        1024, "Fewest bytes a second at which a body arrives and an answer is read.", "--min-rate", low=0
    )
    write_seconds: float = option_field(
        30.0, "Seconds for which a client may read more slowly than that.", "--write-timeout", above=0
    )
    most_connections: int = option_field(
        1024, "Most connections at once, below the limit of open files.", "--max-connections", low=1
    )
    most_per_client: int = option_field(
        256,
        "Most connections at once of one IPv4 address or IPv6 /64.",
        "--max-connections-per-client",
        low=1,
    )
    trusted_proxies: Sequence[str] = option_field(
        (),
        "Addresses and networks whose X-Forwarded-For is trusted.",
        "--trusted-proxy",
        help="Address or network whose X-Forwarded-For is trusted; repeatable.",
    )
    keep_alive: float = option_field(
        30.0, "Seconds after which an idle connection is closed.", "--idle-timeout", above=0
    )
    http_processes: int = option_field(
        -1,
        "Processes that write the streams of answers; 0: the server does, -1: one for 4 cores, up to 4, where"
        " 16 streams run at once.",
        "--http-processes",
        low=-1,
        high=64,
    )
    drain: float = option_field(
        30.0, "Seconds that running requests have left when the server stops.", "--drain", low=0
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def needs_key(self) -> bool:
        return bool(self.api_keys or self.admin_keys)
