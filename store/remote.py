"""What a name stands for on its server, before any of it is fetched; the settings that say which server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from satchel.errors import RequestError
from satchel.store.journal import LARGEST
from satchel.store.names import WebName, web_name

HUB = "https://huggingface.co"
REGISTRY = "https://registry.ollama.ai"
INCOMING = ".incoming"  # the folder beside a file's place in which it is fetched
OFFLINE = ("SATCHEL_OFFLINE", "HF_HUB_OFFLINE")


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to get. file: its path in the store; size and sha256: None and "" where nothing tells them;
    token: for the url's own origin.
    """

    url: str
    file: str
    size: int | None = None
    sha256: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a file is fetched: `workers` connections take pieces of `piece` bytes and note each `block`.

    A connection that brings less than `least` bytes a second over `patience` seconds is dropped; one that
    breaks is tried again after `pause` seconds, twice that, and so on, `tries` times without a block between.
    longest: the longest wait in seconds that a server may ask for.
    """

    workers: int = 4
    piece: int = 64 << 20
    block: int = 4 << 20
    least: int = 1024
    patience: float = 30.0
    pause: float = 0.5
    tries: int = 6
    longest: float = 120.0


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on a server. name: the full name under which it is kept; files: of a split set in order."""

    name: str
    files: tuple[Remote, ...]
    licence: str = ""


def from_web(name: WebName) -> RemoteModel:
    """The file of an address; what it is, only the file itself tells."""
    return RemoteModel(str(name), (Remote(name.url, "/".join((name.host, *name.path))),))


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether the environment forbids connections."""
    return any(environ.get(name, "").lower() not in ("", "0", "false", "no", "off") for name in OFFLINE)


def hub_endpoint(environ: Mapping[str, str]) -> str:
    return _endpoint(environ, "HF_ENDPOINT", HUB)


def registry_endpoint(environ: Mapping[str, str]) -> str:
    """The server of `ollama:NAME` without a host."""
    return _endpoint(environ, "SATCHEL_OLLAMA_REGISTRY", REGISTRY)


def hub_home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HF_HOME", "")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "huggingface"


def hub_token(environ: Mapping[str, str]) -> str:
    """The token of Hugging Face: HF_TOKEN, or the file in which its own program keeps it; "" for none."""
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
    """A size that a server tells. RequestError where it is no size of a file (D03)."""
    if type(size) is not int or not 0 < size <= LARGEST:
        raise RequestError(f"{where}: size: expected 1 to {LARGEST} bytes, got {size!r:.40}")
    return size


def _endpoint(environ: Mapping[str, str], variable: str, default: str) -> str:
    url = environ.get(variable, "").rstrip("/") or default
    try:
        web_name(f"{url}/a.gguf")  # the same rules as for an address that is pulled
    except RequestError as error:
        raise RequestError(f"{variable}: {error}") from None
    return url
