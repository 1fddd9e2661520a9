"""Reads Ollama's Modelfile: FROM, PARAMETER, SYSTEM and LICENSE, and what else one may hold.

FROM llama3.2
PARAMETER temperature 0.6
SYSTEM \"\"\"You are brief.\"\"\"
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from satchel.errors import RequestError

INSTRUCTIONS = ("FROM", "PARAMETER", "SYSTEM", "LICENSE", "TEMPLATE", "ADAPTER", "MESSAGE", "REQUIRES")
LINE = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|$)")
INSTRUCTION = re.compile(r"[ \t]*([A-Za-z]+)[ \t]+")
TEXT = re.compile(r'"""(.*?)"""|([^\n]*)', re.S)


@dataclass(slots=True)
class Modelfile:
    """What a model is made of."""

    source: str = ""  # a file, or a name that `satchel pull` takes
    parameters: list[tuple[str, str]] = field(default_factory=list)
    system: str = ""
    licence: str = ""
    unused: list[str] = field(default_factory=list)  # instructions that have no effect here


def read_modelfile(text: str) -> Modelfile:
    """The recipe of a Modelfile. RequestError names the first line that is wrong."""
    found, at = Modelfile(), 0
    text = text.replace("\r\n", "\n")
    while at < len(text):
        if empty := LINE.match(text, at):
            at = empty.end() if empty.end() > at else len(text)
            continue
        number = text.count("\n", 0, at) + 1
        name = INSTRUCTION.match(text, at)
        value = TEXT.match(text, name.end()) if name else None
        if name is None or value is None or name[1].upper() not in INSTRUCTIONS:
            line = text[at:].partition("\n")[0]
            raise RequestError(
                f"Modelfile, line {number}: expected one of {', '.join(INSTRUCTIONS)}, got {line[:60]!r}"
            )
        _put(found, name[1].upper(), value[1] if value[1] is not None else value[2].strip(), number)
        at = value.end()
    if not found.source:
        raise RequestError("Modelfile: expected a line FROM with a model's name or file, got none")
    return found


def _put(recipe: Modelfile, name: str, value: str, number: int) -> None:
    if name == "FROM":
        recipe.source = value
    elif name == "SYSTEM":
        recipe.system = _unquoted(value)
    elif name == "LICENSE":
        recipe.licence = _unquoted(value)
    elif name == "PARAMETER":
        key, _, given = value.partition(" ")
        if not given.strip():
            raise RequestError(f"Modelfile, line {number}: expected PARAMETER NAME VALUE, got {value[:60]!r}")
        recipe.parameters.append((key, _unquoted(given.strip())))
    elif name not in recipe.unused:
        recipe.unused.append(name)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
