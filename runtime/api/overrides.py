"""Changes a loaded file's metadata in memory: llama.cpp's --override-kv, and another chat template.

The file stays as it is. Everything that reads metadata after the load, such as the architecture, the
tokenizer, the chat template and the fingerprint of saved states, sees the changed values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from satchel.errors import RequestError
from satchel.formats.gguf import GGUF, Metadata, Typed, ValueType, typed
from satchel.formats.gguf.splits import SPLIT_KEYS
from satchel.formats.gguf.types import FLOATS, INTEGERS
from satchel.formats.template.chat import KEY, named

ARCH = "{arch}."  # at the start of a key: the file's architecture
EXPECTED = "expected KEY=TYPE:VALUE, whose TYPE is int, float, bool or str"
NEXT = re.compile(r",(?=[^,=]+=(?:int|float|bool|str):)")
FIXED = ("general.architecture", "general.alignment", *SPLIT_KEYS)
VARIANTS = ("tokenizer.chat_templates", f"{KEY}.")


@dataclass(frozen=True, slots=True)
class Override:
    """A value that replaces a key's."""

    key: str
    kind: str
    value: int | float | bool | str

    def typed(self, old: Typed | None) -> Typed:
        """The value with its GGUF type: that of the old value where both are integers or floats. RequestError
        for another kind.
        """
        kinds = {"int": INTEGERS, "float": FLOATS, "bool": {ValueType.BOOL}, "str": {ValueType.STRING}}
        if old is None:
            return typed(self.value)
        if old.type not in kinds[self.kind]:
            raise RequestError(
                f"override_kv: {self.key}: expected a value of the file's type, {old.type_name}, got"
                f" {self.kind}"
            )
        return typed(self.value, old.type)


def read_overrides(text: str) -> list[Override]:
    """The overrides of KEY=TYPE:VALUE[,KEY=TYPE:VALUE...]. RequestError for another form."""
    return [_read(part) for part in NEXT.split(text)]


def _read(text: str) -> Override:
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not (key and equals and colon) or kind not in ("int", "float", "bool", "str"):
        raise RequestError(f"override_kv is {text!r:.80}: {EXPECTED}")
    if key in FIXED:
        raise RequestError(f"override_kv: {key} describes the file itself and cannot be replaced")
    try:
        return Override(key, kind, _value(kind, value))
    except ValueError:
        raise RequestError(
            f"override_kv: {key}: expected a value of type {kind}, got {value!r:.60}"
        ) from None


def _value(kind: str, value: str) -> int | float | bool | str:
    if kind == "str":
        return value
    if kind == "bool":
        return {"true": True, "false": False}[value] if value in ("true", "false") else _wrong(value)
    return int(value, 0) if kind == "int" else float(value)


def _wrong(value: str) -> bool:
    raise ValueError(value)


def read_template(text: str) -> str:
    """The source of a template: Jinja text, or one of llama.cpp's names. RequestError for another name."""
    if not text or "{" in text:
        return text
    try:
        return named(text)
    except RequestError as error:
        raise RequestError(f"chat_template: {error}, or Jinja text (--chat-template-file)") from None


def override(gguf: GGUF, overrides: Sequence[str], template: str) -> None:
    """Replaces metadata values, and the chat template with its variants unless it is "". RequestError for a
    value of another type than the file's.
    """
    if not overrides and not template:
        return
    old = gguf.metadata
    values = {key: old.typed(key) for key in old}
    for one in (one for text in overrides for one in read_overrides(text)):
        key = one.key
        if key.startswith(ARCH):
            key = f"{old.get_str('general.architecture')}.{key.removeprefix(ARCH)}"
        values[key] = one.typed(values.get(key))
    if template:
        values = {key: value for key, value in values.items() if not key.startswith(VARIANTS)}
        values[KEY] = typed(read_template(template))
    gguf.metadata = Metadata(values, old.source)
