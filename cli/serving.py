"""Options of `satchel serve`: names, defaults and meaning are llama-server's where it has them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong
from satchel.errors import RequestError

if TYPE_CHECKING:
    from satchel.server.roles import KeyRights, Role
    from satchel.server.settings import ServerSettings

Texts = list[str] | None
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Addresses, keys and limits of the server."""

    host: Annotated[
        str, option("--host", env="HOST", help="Address to listen on, or a Unix socket: a path with .sock.")
    ] = "127.0.0.1"
    port: Annotated[
        int, option("--port", env="PORT", min=0, max=65535, help="Port to listen on; 0: a free one.")
    ] = 8080
    ollama_port: Annotated[
        int | None,
        option(
            "--ollama-port",
            env="OLLAMA_PORT",
            min=0,
            max=65535,
            help="Listen there too; Ollama's clients look at 11434.",
        ),
    ] = None
    alias: Annotated[
        str | None, option("-a", "--alias", env="ALIAS", help="Name of the first model; default: its file's.")
    ] = None
    api_key: Annotated[
        Texts, option("--api-key", env="API_KEY", help="A key of a user; requests bring one; repeatable.")
    ] = None
    admin_key: Annotated[
        Texts,
        option(
            "--admin-key",
            env="ADMIN_KEY",
            help="A key that may also load, unload, pull, delete, reload and see /metrics; repeatable.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None, option("--api-key-file", metavar="FILE", help="Lines of KEY [user|admin] [SHARE].")
    ] = None
    allowed_host: Annotated[
        Texts, option("--allowed-host", help="Another name of this server; repeatable.")
    ] = None
    cors_origin: Annotated[
        Texts, option("--cors-origins", help="A site whose pages may call; repeatable.")
    ] = None
    idle: Annotated[
        float, option("--sleep-idle-seconds", min=0, help="Unload a model after so long; 0: never.")
    ] = 0
    memory: Annotated[
        float, option("--models-memory", min=0, help="GB of model files loaded at once; 0: no limit.")
    ] = 0
    max_connections: Annotated[
        int, option("--max-connections", min=1, help="Connections at once, below the limit of open files.")
    ] = 1024
    max_per_client: Annotated[
        int,
        option("--max-connections-per-client", min=1, help="Of these, of one IPv4 address or IPv6 /64."),
    ] = 256
    trusted_proxy: Annotated[
        Texts,
        option("--trusted-proxy", help="Address or network whose X-Forwarded-For is believed; repeatable."),
    ] = None
    header_timeout: Annotated[
        float, option("--header-timeout", min=0.1, help="Seconds in which a request's header must come.")
    ] = 10
    body_timeout: Annotated[
        float, option("--body-timeout", min=0.1, help="Seconds in which a request's body must come.")
    ] = 60
    idle_timeout: Annotated[
        float, option("--idle-timeout", min=0.1, help="Seconds that a connection stays between requests.")
    ] = 30
    write_timeout: Annotated[
        float, option("--write-timeout", min=0.1, help="Seconds for which a client may not read.")
    ] = 30
    min_rate: Annotated[
        int, option("--min-rate", min=0, help="Bytes a second, at least, of bodies and of answers read.")
    ] = 1024
    drain: Annotated[
        float, option("--drain", min=0, help="Seconds that requests have left when it stops.")
    ] = 30
    registry: Annotated[
        Texts, option("--registry", help="A host that pulls by clients may name; repeatable.")
    ] = None
    pull_quota: Annotated[
        float, option("--pull-quota", min=0, help="GB of models that each key may pull.")
    ] = 500
    max_priority: Annotated[
        int,
        option("--max-priority", min=0, max=1000, help="Most urgent priority of users: minus this."),
    ] = 10
    log_level: Annotated[
        str, option("--log-level", env="LOG_LEVEL", help="debug, info, warning or error.")
    ] = "warning"
    log_json: Annotated[bool, option("--log-json", help="Log JSON objects, one a line.")] = False
    ssl_key: Annotated[
        Path | None, option("--ssl-key-file", metavar="FILE", help="Private key of the certificate, PEM.")
    ] = None
    ssl_cert: Annotated[
        Path | None, option("--ssl-cert-file", metavar="FILE", help="Certificate, PEM: HTTPS, not HTTP.")
    ] = None
    states: Annotated[
        Path | None, option("--slot-save-path", metavar="DIR", help="Where /slots saves conversations.")
    ] = None
    strict: Annotated[bool, option("--strict-fields", help="Refuse fields that nobody knows.")] = False

    def __post_init__(self) -> None:
        if self.log_level not in LEVELS:
            raise wrong("--log-level", f"expected one of {', '.join(LEVELS)}, got {self.log_level}")
        if (self.ssl_key is None) != (self.ssl_cert is None):
            raise wrong("--ssl-cert-file", "a certificate and its key belong together: give both")

    def settings(self) -> ServerSettings:
        """The ServerSettings of these options."""
        from satchel.server.roles import ADMIN, USER
        from satchel.server.settings import LOOPBACK, ServerSettings, is_own

        given = [(key, USER) for key in self.api_key or ()] + [(key, ADMIN) for key in self.admin_key or ()]
        listed = _keys(self.api_key_file)
        keys: dict[str, Role] = {}
        for key, role in (*given, *((key, rights.role) for key, rights in listed.items())):
            if keys.setdefault(key, role) != role:
                raise wrong("--admin-key", "one key was given for a user and for an admin: give it once")
        own = is_own(self.host)
        named = tuple(self.allowed_host or ())
        return ServerSettings(
            host=self.host,
            port=self.port,
            ollama_port=self.ollama_port,
            api_keys=tuple(key for key, role in keys.items() if role < ADMIN),
            admin_keys=tuple(key for key, role in keys.items() if role == ADMIN),
            key_shares={key: rights.share for key, rights in listed.items() if rights.share != 1},
            registries=_hosts(self.registry),
            pull_bytes=round(self.pull_quota * 10**9),
            most_priority=self.max_priority,
            hosts=(*LOOPBACK, *named) if own or named else (),
            origins=tuple(self.cors_origin or ()),
            strict_fields=self.strict,
            states=self.states,
            drain=self.drain,
            most_connections=self.max_connections,
            most_per_client=self.max_per_client,
            trusted_proxies=tuple(self.trusted_proxy or ()),
            header_seconds=self.header_timeout,
            body_seconds=self.body_timeout,
            keep_alive=self.idle_timeout,
            write_seconds=self.write_timeout,
            least_rate=self.min_rate,
            certificate=(self.ssl_cert, self.ssl_key) if self.ssl_cert and self.ssl_key else None,
        )


def _hosts(given: Texts) -> tuple[str, ...]:
    """Validates hosts of registries, each HOST or HOST:PORT."""
    from satchel.store.names import web_name

    for host in given or ():
        try:
            if web_name(f"https://{host}/a.gguf").path != ("a.gguf",):
                raise RequestError("expected HOST or HOST:PORT")
        except RequestError as error:
            raise wrong("--registry", f"{host!r}: {error}") from None
    return tuple(given or ())


def _keys(path: Path | None) -> Mapping[str, KeyRights]:
    """The keys of a key file with their rights."""
    from satchel.server.roles import read_keys

    if path is None:
        return {}
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    try:
        keys = read_keys(lines)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None
    if not keys:
        raise RequestError(f"{path}: no key stands in it: write KEY or KEY admin on each line")
    if path.stat().st_mode & 0o004 and sys.platform != "win32":
        print(f"satchel: {path} can be read by everybody: chmod 600 {path}", file=sys.stderr)
    return keys
