"""The details of a model that `show` prints, read from the GGUF header. Only the chat template
is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from satchel.errors import SatchelError
from satchel.formats.chat.style import Style
from satchel.formats.gguf import GGUF, open_gguf
from satchel.formats.gguf.labels import file_type, parameters

SAMPLING = "general.sampling."
FILL = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")


@dataclass(frozen=True, slots=True)
class Details:
    """The details of one model. Numbers are 0 and texts "" where the file does not say."""

    name: str
    path: str
    size: int
    architecture: str
    parameters: int
    context: int  # trained context length in tokens
    embedding: int  # embedding length
    quantization: str
    licence: str
    template: str  # source of the chat template
    family: str  # tool-call format of the template (formats/chat/families)
    capabilities: tuple[str, ...]  # in Ollama's terms
    # The sampling options that the file recommends (general.sampling.*), by their keys.
    sampling: Mapping[str, Any] = field(default_factory=dict)


def read_details(path: Path, name: str = "", licence: str = "") -> Details:
    """Reads a GGUF file, or any part of a split set. ModelError where it is not GGUF."""
    with open_gguf(path) as gguf:
        meta = gguf.metadata
        arch = meta.get_str("general.architecture", "")
        template = _text(gguf, "tokenizer.chat_template")
        family, able = _template(gguf, template)
        return Details(
            name=name or path.name,
            path=str(path),
            size=sum(part.size for part in gguf.parts),
            architecture=arch,
            parameters=parameters(gguf),
            context=meta.get_uint(f"{arch}.context_length", 0),
            embedding=meta.get_uint(f"{arch}.embedding_length", 0),
            quantization=file_type(gguf),
            licence=licence or _text(gguf, "general.license"),
            template=template,
            family=family,
            capabilities=_capabilities(gguf, arch, able),
            sampling={
                key.removeprefix(SAMPLING): value
                for key, value in meta.items()
                if key.startswith(SAMPLING) and isinstance(value, bool | int | float | str)
            },
        )


def _capabilities(gguf: GGUF, arch: str, able: tuple[str, ...]) -> tuple[str, ...]:
    first = "embedding" if gguf.metadata.get_uint(f"{arch}.pooling_type", 0) else "completion"
    insert = ("insert",) if any(key in gguf.metadata for key in FILL) else ()
    return (first, *able, *insert)


def _template(gguf: GGUF, template: str) -> tuple[str, tuple[str, ...]]:
    """(tool-call format, capabilities) of a chat template; empty for an invalid template."""
    from satchel.formats.chat.detect import detect
    from satchel.formats.template import from_metadata

    try:
        found = from_metadata(gguf.metadata, "", "") if template else None
        style = detect(found) if found else Style()
    except SatchelError:
        return "", ()
    tools = ("tools",) if found and found.reads("tools") else ()
    return style.family, (*tools, *(("thinking",) if style.thinks else ()))


def _text(gguf: GGUF, key: str) -> str:
    value = gguf.metadata.get(key)
    return value if isinstance(value, str) else ""
