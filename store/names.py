"""Parses model names: of the Hugging Face Hub, of an Ollama registry, a URL, or a local name.

Invariant: every part of a parsed name is one safe path component, so a path built from it stays in the store.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from satchel.errors import RequestError

LONGEST = 1024  # characters of a name
OLLAMA_HOST, OLLAMA_SPACE, OLLAMA_TAG = "registry.ollama.ai", "library", "latest"
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Windows opens a device for a file of one of these names, with any extension.
DEVICES = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|COM\d|LPT\d)(\..*)?", re.IGNORECASE)
QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32))"
    r"(?=[-.]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HubName:
    """`hf:USER/REPO[:QUANT]` or `hf:USER/REPO/FILE.gguf`."""

    repo: str
    quant: str = ""  # "" where not given
    file: str = ""  # "" where not given

    def __str__(self) -> str:
        return f"hf:{self.repo}" + (f"/{self.file}" if self.file else f":{self.quant}" if self.quant else "")


@dataclass(frozen=True, slots=True)
class WebName:
    """The https URL of one GGUF file."""

    url: str
    host: str
    path: tuple[str, ...]  # its safe components after the host

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class OllamaName:
    """`ollama:[HOST/][SPACE/]NAME[:TAG]`."""

    model: str
    tag: str = OLLAMA_TAG
    space: str = OLLAMA_SPACE
    host: str = OLLAMA_HOST

    def __str__(self) -> str:
        space = "" if self.space == OLLAMA_SPACE else f"{self.space}/"
        host = "" if self.host == OLLAMA_HOST else f"{self.host}/"
        return f"ollama:{host}{f'{self.space}/' if host else space}{self.model}:{self.tag}"


@dataclass(frozen=True, slots=True)
class LocalName:
    """A path, or the name of a model in the store."""

    text: str

    def __str__(self) -> str:
        return self.text


Name = HubName | WebName | OllamaName | LocalName


def parse(text: str) -> Name:
    """Parses a name. RequestError where a part is not a safe path component."""
    if not text or len(text) > LONGEST:
        raise _refused(text, f"expected 1 to {LONGEST} characters, got {len(text)}")
    if "\0" in text:
        raise _refused(text, "expected no NUL, got one")
    scheme, colon, rest = text.partition(":")
    if colon and scheme in ("hf", "huggingface"):
        return _hub(text, rest.removeprefix("//"))
    if colon and scheme == "ollama":
        return _ollama(text, rest.removeprefix("//"))
    if "://" in text:
        return web_name(text)
    return LocalName(text)


def part(piece: str, whole: str) -> str:
    """Returns the piece if it is a safe path component on every system, else raises RequestError. whole: the
    name for the error.
    """
    if not PART.fullmatch(piece) or ".." in piece or piece.endswith(".") or DEVICES.fullmatch(piece):
        wanted = "1 to 200 of A-Z a-z 0-9 . _ + - and no device of Windows"
        raise _refused(whole, f"expected parts of {wanted}, got {piece[:60]!a}")
    return piece


def file_parts(path: str, whole: str) -> tuple[str, ...]:
    """The components of a relative path. RequestError unless all are safe and the last one ends in .gguf."""
    pieces = tuple(part(piece, whole) for piece in path.split("/"))
    if not pieces[-1].lower().endswith(".gguf"):
        raise _refused(whole, f"expected a file that ends in .gguf, got {pieces[-1]!a}")
    return pieces


def check_digest(digest: object, where: str) -> str:
    """The 64 hexadecimal digits of a digest `sha256:...`. RequestError where it has another form."""
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        shown = digest[:80] if isinstance(digest, str) else digest
        raise RequestError(
            f"{where}: digest: expected sha256: and 64 lower-case hexadecimal digits, got {shown!a}"
        )
    return digest.removeprefix("sha256:")


def web_name(url: str) -> WebName:
    """Parses the URL of a GGUF file. RequestError for another scheme, credentials, or an unsafe path."""
    if any(ord(c) <= 32 or ord(c) > 126 or c == "\\" for c in url):
        raise _refused(url, "expected an address of printable ASCII (foreign hosts as xn--), got another")
    try:
        split = urlsplit(url)
        host, port = split.hostname or "", split.port
    except ValueError as error:
        raise _refused(url, f"expected an address, got one that can't be read: {error}") from None
    if split.scheme not in ("https", "http"):
        raise _refused(url, f"expected https://, got {split.scheme}://")
    if split.username is not None or split.password is not None:
        raise _refused(url, "expected no user or password before the host, got one")
    if not (HOST.fullmatch(host) or _is_address(host)) or ".." in host:
        raise _refused(url, f"expected a host, got {host[:60]!a}")
    if split.scheme == "http" and not is_near(host):
        raise _refused(url, "expected https://; http:// is for addresses of your own network")
    path = file_parts(unquote(split.path).lstrip("/"), url)
    return WebName(url, folder_of(host, port), path)


def folder_of(host: str, port: int | None) -> str:
    """The folder name of a host."""
    return host.replace(":", "_") + (f"_{port}" if port is not None else "")


def is_near(host: str) -> bool:
    """Whether the host is localhost or an IP address that is not globally routable."""
    if host == "localhost":
        return True
    return _is_address(host) and not ipaddress.ip_address(host).is_global


def quant_of(file: str) -> str:
    """The quantization in a file's name, in upper case; "" without one."""
    found = QUANT.findall(file.rsplit("/", 1)[-1])
    return str(found[-1]).upper() if found else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _hub(text: str, rest: str) -> HubName:
    pieces = rest.split("/")
    if len(pieces) < 2:
        raise _refused(text, "expected hf:USER/REPO, hf:USER/REPO:QUANT or hf:USER/REPO/FILE.gguf")
    last, _, quant = pieces[-1].partition(":")
    if len(pieces) > 2:
        if quant:
            raise _refused(text, "expected a file or a quantization, got both")
        file = "/".join(file_parts("/".join(pieces[2:]), text))
        return HubName(f"{part(pieces[0], text)}/{part(pieces[1], text)}", file=file)
    repo = f"{part(pieces[0], text)}/{part(last, text)}"
    if ":" in pieces[-1]:
        part(quant, text)
    return HubName(repo, quant.upper())


def _ollama(text: str, rest: str) -> OllamaName:
    *before, last = rest.split("/")
    model, colon, tag = last.partition(":")
    if len(before) > 2:
        raise _refused(text, "expected ollama:NAME[:TAG], ollama:SPACE/NAME or ollama:HOST/SPACE/NAME")
    host = before[0] if len(before) == 2 else OLLAMA_HOST
    if not HOST.fullmatch(host) or ".." in host:
        raise _refused(text, f"expected a host, got {host[:60]!a}")
    space = part(before[-1], text) if before else OLLAMA_SPACE
    return OllamaName(part(model, text), part(tag, text) if colon else OLLAMA_TAG, space, host)


def _refused(name: str, reason: str) -> RequestError:
    return RequestError(f"name {name[:120]!a}: {reason}")
