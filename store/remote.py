"""Remote files of a model, and the environment's settings of servers, tokens and offline mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from satchel.errors import RequestError
from satchel.store.journal import LARGEST
from satchel.store.names import WebName, web_name

HUB = "https://huggingface.co"
REGISTRY = "https://registry.ollama.ai"
INCOMING = ".incoming"  # the folder of downloads in progress, beside the target
OFFLINE = ("SATCHEL_OFFLINE", "HF_HUB_OFFLINE")


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to download."""

    url: str
    file: str  # its path in the store
    size: int | None = None  # None: unknown
    sha256: str = ""  # "": unknown
    token: str = ""  # bearer token, sent to the origin of `url` only


@dataclass(frozen=True, slots=True)
class Pace:
    """Parameters of downloads."""

    workers: int = 4  # parallel connections
    piece: int = 64 << 20  # bytes per range request
    block: int = 4 << 20  # bytes between two entries of the journal
    least: int = 1024  # bytes/s: a connection below it for `patience` seconds is dropped
    patience: float = 30.0
    pause: float = 0.5  # seconds before the first retry; doubled for each further one
    tries: int = 6  # failures in a row, without a block received between them
    longest: float = 120.0  # seconds of Retry-After that are accepted


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on a server."""

    name: str  # its full name in the store
    files: tuple[Remote, ...]  # of a split set in order
    licence: str = ""


def from_web(name: WebName) -> RemoteModel:
    """The remote model of a URL, with unknown size and digest."""
    return RemoteModel(str(name), (Remote(name.url, "/".join((name.host, *name.path))),))


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether the environment turns network access off."""
    return any(environ.get(name, "").lower() not in ("", "0", "false", "no", "off") for name in OFFLINE)


def hub_endpoint(environ: Mapping[str, str]) -> str:
    return _endpoint(environ, "HF_ENDPOINT", HUB)


def registry_endpoint(environ: Mapping[str, str]) -> str:
    """The server of an `ollama:NAME` without a host."""
    return _endpoint(environ, "SATCHEL_OLLAMA_REGISTRY", REGISTRY)


def hub_home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HF_HOME", "")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "huggingface"


def hub_token(environ: Mapping[str, str]) -> str:
    """The Hugging Face token: HF_TOKEN, or the token file of Hugging Face's own CLI; "" for none."""
    named = environ.get("HF_TOKEN", "") or environ.get("HUGGING_FACE_HUB_TOKEN", "")
    if not named:
        path = environ.get("HF_TOKEN_PATH", "")
        try:
            named = (Path(path) if path else hub_home(environ) / "token").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ""
    named = named.strip()
    if not named.isascii() or not named.isprintable():
        raise RequestError("HF_TOKEN: expected printable ASCII, got something else; copy the token again")
    return named


def check_size(size: object, where: str) -> int:
    """Validates a size given by a server. RequestError where it is not a positive integer up to LARGEST."""
    if type(size) is not int or not 0 < size <= LARGEST:
        raise RequestError(f"{where}: size: expected 1 to {LARGEST} bytes, got {size!r:.40}")
    return size


def _endpoint(environ: Mapping[str, str], variable: str, default: str) -> str:
    url = environ.get(variable, "").rstrip("/") or default
    try:
        web_name(f"{url}/a.gguf")  # the same checks as for a URL that is pulled
    except RequestError as error:
        raise RequestError(f"{variable}: {error}") from None
    return url
