"""Edits of a file's metadata. Values keep their types, and all other bytes stay as they are.

The metadata precedes the tensors, so the file is rewritten atomically; of a split set only the first part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from satchel.errors import RequestError
from satchel.formats.gguf.header import ALIGNMENT_KEY
from satchel.formats.gguf.metadata import Metadata
from satchel.formats.gguf.reader import GGUF
from satchel.formats.gguf.splits import SPLIT_KEYS
from satchel.formats.gguf.types import FLOATS, INTEGERS, ValueType
from satchel.formats.gguf.values import Typed, typed
from satchel.formats.gguf.writer import lay_out_part, sources, write_layouts

TYPES: dict[str, ValueType] = {kind.name.lower(): kind for kind in ValueType if kind is not ValueType.ARRAY}
TYPES |= {"str": ValueType.STRING}
FIXED = (*SPLIT_KEYS, ALIGNMENT_KEY)
FILE_LIMIT = 1 << 26  # bytes of a file given as @FILE
INTEGER = re.compile(r"[+-]?(?:0|[1-9]\d*|0x[0-9a-fA-F]+)")
FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def parse_assignment(text: str, metadata: Metadata) -> tuple[str, Typed]:
    """Parses KEY=VALUE or KEY:TYPE=VALUE. An existing key keeps its type; a new key gets TYPE, or a type
    inferred from VALUE.

    TYPE: uint8 to float64, bool or string; with [] appended for an array, whose VALUE is a JSON list.
    VALUE: @FILE stands for the text of a file; @@ escapes a text that begins with @.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RequestError(f"{text[:60]!a}: expected KEY=VALUE or KEY:TYPE=VALUE, as in general.name=Satchel")
    key, colon, kind = name.rpartition(":")
    if name in metadata or not colon:
        key, kind = name, ""
    value = _from_file(value)
    old = metadata.typed(key) if key in metadata else None
    if not kind and old is not None:
        element = old.element is not None
        return key, _parse(key, value, old.element if old.element is not None else old.type, element)
    if not kind:
        return key, _guess(key, value)
    bare = kind.lower().removesuffix("[]")
    if bare not in TYPES:
        raise RequestError(f"{key}: type {kind!a}: expected one of {', '.join(TYPES)}, or one with []")
    return key, _parse(key, value, TYPES[bare], kind.endswith("[]"))


def _from_file(value: str) -> str:
    if not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    path = Path(value[1:])
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_LIMIT + 1)
        if len(raw) > FILE_LIMIT:
            raise RequestError(f"{path}: expected at most {FILE_LIMIT} bytes, got more")
        return raw.decode()
    except UnicodeDecodeError:
        raise RequestError(f"{path}: expected UTF-8 text, got other bytes") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"{str(path)!a}: can't be read: {reason}; check the path") from None


def _parse(key: str, value: str, kind: ValueType, array: bool) -> Typed:
    if array:
        items = _json_list(key, value)
        # A list of floats may contain integers.
        items = [float(i) if kind in FLOATS and type(i) is int else i for i in items]
        return _typed(key, items, kind)
    if kind is ValueType.STRING:
        return _typed(key, value, kind)
    return _typed(key, _scalar(key, value, kind), kind)


def _typed(key: str, value: Any, kind: ValueType | None) -> Typed:
    try:
        return typed(value, kind)
    except RequestError as error:
        raise RequestError(f"{key}: {str(error).removeprefix('metadata: ')}") from None


def _scalar(key: str, value: str, kind: ValueType) -> bool | int | float:
    text = value.strip()
    if kind is ValueType.BOOL and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in INTEGERS and INTEGER.fullmatch(text):
        return int(text, 0)
    if kind in FLOATS and (FLOAT.fullmatch(text) or text.lower() in ("nan", "inf", "-inf")):
        return float(text)
    raise RequestError(f"{key}: expected a value of type {kind.name.lower()}, got {value[:60]!a}")


def _json_list(key: str, value: str) -> list[Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise RequestError(f"{key}: expected a JSON list, as in [1, 2, 3], got {value[:60]!a}")
    return found


def _guess(key: str, value: str) -> Typed:
    text = value.strip()
    if text.lower() in ("true", "false"):
        return Typed(ValueType.BOOL, text.lower() == "true")
    if INTEGER.fullmatch(text):
        return _typed(key, int(text, 0), None)
    if FLOAT.fullmatch(text):
        return _typed(key, float(text), None)
    if text.startswith("["):
        return _typed(key, _json_list(key, value), None)
    return _typed(key, value, ValueType.STRING)


def change(
    metadata: Metadata,
    *,
    sets: Iterable[tuple[str, Typed]] = (),
    removes: Iterable[str] = (),
    renames: Iterable[tuple[str, str]] = (),
) -> Metadata:
    """The metadata with keys renamed, then removed, then set. Other keys keep their order; new keys come
    last.

    RequestError where a key does not exist, a new name is taken, or a key describes the file itself (split.*,
    general.alignment).
    """
    values = {key: metadata.typed(key) for key in metadata}
    for old, new in renames:
        _check_there(old, values, metadata)
        _check_free(new)
        if new in values:
            raise RequestError(
                f"{new}: expected a new name for {old}, got a key that is there; remove it first"
            )
        values = {new if key == old else key: value for key, value in values.items()}
    for key in removes:
        _check_there(key, values, metadata)
        del values[key]
    for key, value in sets:
        _check_free(key)
        values[key] = value
    return Metadata(values, metadata.source)


def _check_there(key: str, values: Mapping[str, Typed], metadata: Metadata) -> None:
    _check_free(key)
    if key not in values:
        raise RequestError(f"{metadata.source}: {key}: expected a key of the file, got none of that name")


def _check_free(key: str) -> None:
    if key in FIXED:
        raise RequestError(f"{key} describes the file, not the model: `satchel split` and `merge` write it")


def write_edited(
    gguf: GGUF, metadata: Metadata, target: Path | None = None, progress: Callable[[int], None] | None = None
) -> Path:
    """Writes the file with this metadata in place (of a set: the first part), or to `target`.

    RequestError where a set is given a target, and where the new file can't be written.
    """
    first = gguf.parts[0]
    if target is not None and len(gguf.parts) > 1:
        raise RequestError(f"{target}: a set of {len(gguf.parts)} parts is edited in place; merge it first")
    values = {key: metadata.typed(key) for key in metadata}
    tensors = [source for source in sources(gguf) if gguf.tensors[source.name].part == 0]
    path = target or first.path
    mode = first.path.stat().st_mode & 0o7777 if target is None else None
    write_layouts([lay_out_part(path, values, tensors, gguf.alignment)], progress, mode)
    return path
