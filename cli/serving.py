"""Options of `satchel serve`: names, defaults and meaning are llama-server's where it has them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong
from satchel.errors import RequestError
from satchel.runtime.placement.options import AUTO, ONE_CONTEXT
from satchel.server.settings import LOOPBACK, ServerSettings, is_own

if TYPE_CHECKING:
    from satchel.server.roles import KeyRights, Role

Texts = list[str] | None
POOLINGS = {"mean": 1, "cls": 2, "last": 3}  # values of the key pooling_type
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server. Some options are of the command line alone."""

    server: ServerSettings = field(default_factory=ServerSettings)
    alias: Annotated[
        str | None,
        option(
            "-a",
            "--alias",
            env="ALIAS",
            metavar="NAME,...",
            help="Names of the first model; default: its file's.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        option("--api-key-file", metavar="FILE", help="File with lines of KEY [user|admin] [SHARE]."),
    ] = None
    allowed_host: Annotated[
        Texts, option("--allowed-host", help="Another name that a Host header may have; repeatable.")
    ] = None
    idle: Annotated[
        float,
        option(
            "--sleep-idle-seconds",
            min=-1,
            help="Seconds without a request after which a model is unloaded; 0 and -1: never.",
        ),
    ] = 0
    memory: Annotated[
        float,
        option("--models-memory", min=0, help="Most GB of model files that are loaded at once; 0: no limit."),
    ] = 0
    log_level: Annotated[
        str, option("--log-level", env="LOG_LEVEL", help="debug, info, warning or error.")
    ] = "warning"
    log_json: Annotated[bool, option("--log-json", "--log-jsonl", help="Log JSON objects, one a line.")] = (
        False
    )
    verbose: Annotated[
        bool, option("-v", "--verbose", "--log-verbose", help="The same as --log-level debug.")
    ] = False
    pooling: Annotated[
        str | None,
        option(
            "--pooling",
            env="POOLING",
            metavar="KIND",
            help="Pooling of embeddings in place of the file's: mean, cls or last.",
        ),
    ] = None
    unified: Annotated[
        bool,
        option(
            "-kvu/-no-kvu",
            "--kv-unified/--no-kv-unified",
            env="KV_UNIFIED",
            help="The same as --kv-budget context: the KV cache has -c tokens in all, not for each slot.",
        ),
    ] = False
    ssl_key: Annotated[
        Path | None, option("--ssl-key-file", metavar="FILE", help="Private key of the certificate, PEM.")
    ] = None
    ssl_cert: Annotated[
        Path | None, option("--ssl-cert-file", metavar="FILE", help="Certificate for HTTPS, PEM.")
    ] = None

    def __post_init__(self) -> None:
        if self.log_level not in LEVELS:
            raise wrong("--log-level", f"expected {', '.join(LEVELS)}, got {self.log_level}")
        if self.pooling not in (None, *POOLINGS):
            raise wrong("--pooling", f"expected {', '.join(POOLINGS)}, got {self.pooling}")
        if (self.ssl_key is None) != (self.ssl_cert is None):
            raise wrong("--ssl-cert-file", "expected a certificate and its key, got one of them; give both")

    @property
    def overrides(self) -> tuple[str, ...]:
        """The metadata that the options replace, as --override-kv takes it."""
        return () if self.pooling is None else (f"{{arch}}.pooling_type=int:{POOLINGS[self.pooling]}",)

    def kv_budget(self, given: str | int) -> str | int:
        """The load option of this name: that of --kv-budget, or what -kvu stands for."""
        if self.unified and given != AUTO:
            raise wrong("-kvu", "--kv-budget says the size of the KV cache already")
        return ONE_CONTEXT if self.unified else given

    @property
    def least_level(self) -> str:
        """The least level of what is logged."""
        return "debug" if self.verbose else self.log_level

    @property
    def idle_seconds(self) -> float:
        """Seconds until an idle model is unloaded; 0: never."""
        return max(0.0, self.idle)

    def settings(self) -> ServerSettings:
        """The server's options, with the keys of the key file."""
        from satchel.server.roles import ADMIN, USER

        server, listed = self.server, _keys(self.api_key_file)
        keys: dict[str, Role] = {}
        for key, role in (
            *((key, USER) for key in server.api_keys),
            *((key, ADMIN) for key in server.admin_keys),
            *((key, rights.role) for key, rights in listed.items()),
        ):
            if keys.setdefault(key, role) != role:
                raise wrong("--admin-key", "expected each key once, got one for a user and for an admin")
        named = tuple(self.allowed_host or ())
        return replace(
            server,
            api_keys=tuple(key for key, role in keys.items() if role < ADMIN),
            admin_keys=tuple(key for key, role in keys.items() if role == ADMIN),
            key_shares={key: rights.share for key, rights in listed.items() if rights.share != 1},
            hosts=(*LOOPBACK, *named) if is_own(server.host) or named else (),
            certificate=(self.ssl_cert, self.ssl_key) if self.ssl_cert and self.ssl_key else None,
        )


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
