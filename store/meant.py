"""Names as users write them to `satchel pull`: addresses pasted from a browser, Ollama's bare names, and
USER/REPO of the Hugging Face Hub.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from satchel.store.names import LocalName, Name, parse

HUBS = ("https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/")
OLLAMA = ("https://ollama.com/", "https://www.ollama.com/", "ollama.com/", "https://registry.ollama.ai/")
FILE = re.compile(r"([^/]+/[^/]+)/(?:blob|resolve|raw)/[^/]+/(.+\.gguf)", re.IGNORECASE)
PAGE = re.compile(r"([^/]+/[^/:]+)(:[^/]+)?(?:/(?:tree|blob|discussions)(?:/.*)?)?")
BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(:[A-Za-z0-9._+-]+)?")
REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*/[A-Za-z0-9_][A-Za-z0-9._+-]*(:[A-Za-z0-9._+-]+)?")


def pasted(text: str) -> str:
    """The store's name of an address of the Hub's or of Ollama's site; any other text as it is."""
    address = text.strip()
    if (hub := _after(address, HUBS)) is not None:
        path = unquote(hub.partition("?")[0].partition("#")[0]).strip("/")
        if found := FILE.fullmatch(path):
            return f"hf:{found[1]}/{found[2]}"
        if found := PAGE.fullmatch(path):
            return f"hf:{found[1]}{found[2] or ''}"
    if (model := _after(address, OLLAMA)) is not None:
        path = model.partition("?")[0].partition("#")[0].strip("/")
        return f"ollama:{path.removesuffix('/tags').removeprefix('library/')}"
    return text


def meant(text: str) -> Name:
    """The name that a user means to pull: llama3.2 is Ollama's, USER/REPO the Hub's. RequestError where a
    part is not a safe path component.
    """
    name = parse(pasted(text))
    if not isinstance(name, LocalName) or text.lower().endswith(".gguf"):
        return name
    if REPOSITORY.fullmatch(text):
        return parse(f"hf:{text}")
    return parse(f"ollama:{text}") if BARE.fullmatch(text) else name


def _after(text: str, starts: tuple[str, ...]) -> str | None:
    """The text after the first of these starts that it has; None without one."""
    lowered = text.lower()
    start = next((start for start in starts if lowered.startswith(start)), None)
    return None if start is None else text[len(start) :]
