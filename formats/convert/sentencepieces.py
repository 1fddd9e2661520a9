"""Reads tokenizer.model: pieces, scores and types of a SentencePiece vocabulary, from its protocol buffer,
with limits. The sentencepiece library first checks that the file is valid.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.convert.token_table import PREFIX, Table
from satchel.formats.tokenizer.vocab import BYTE_TOKEN, MAX_ENTRIES, Kind

LIMIT = 1 << 28
AGAIN = "the file is damaged or no SentencePiece model: download it again"
BPE = 2
# The piece types have GGUF's numbers.
TYPES = {1: Kind.NORMAL, 2: Kind.UNKNOWN, 3: Kind.CONTROL, 4: Kind.USER_DEFINED, 5: Kind.UNUSED, 6: Kind.BYTE}


class _Malformed(ValueError):
    """The bytes are not a valid protocol buffer."""


def read_sentencepiece(path: Path, *, required: bool) -> tuple[Table, dict[str, Any]] | None:
    """The vocabulary; None where the file is of another kind (such as tiktoken's) and not `required`."""
    from sentencepiece import SentencePieceProcessor

    if path.stat().st_size > LIMIT:
        raise ModelError(f"{path}: expected at most {LIMIT:,} bytes, got more; {AGAIN}")
    raw = path.read_bytes()
    try:
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(raw)
        return _read(path, raw)
    except (RuntimeError, UnicodeDecodeError, _Malformed):
        if required:
            raise ModelError(f"{path}: expected a SentencePiece model, got something else; {AGAIN}") from None
        return None


def _read(path: Path, raw: bytes) -> tuple[Table, dict[str, Any]]:
    """ModelProto: pieces (field 1), trainer_spec (2), normalizer_spec (3)."""
    table, kind, prefix, squeeze, charsmap = Table(), 1, True, True, b""
    for field, value in _fields(raw):
        if field == 1 and isinstance(value, bytes):
            id = len(table.texts)
            if id >= MAX_ENTRIES:
                raise ModelError(f"{path}: expected at most {MAX_ENTRIES:,} pieces, got more; {AGAIN}")
            table.put(id, *_piece(value))
        elif field == 2 and isinstance(value, bytes):
            kind = next((int(v) for f, v in _fields(value) if f == 3 and isinstance(v, int)), kind)
        elif field == 3 and isinstance(value, bytes):
            for f, v in _fields(value):
                prefix = bool(v) if f == 3 else prefix
                squeeze = bool(v) if f == 4 else squeeze
                charsmap = v if f == 2 and isinstance(v, bytes) else charsmap
    if kind != BPE:
        raise ModelError(
            f"{path}: trainer_spec.model_type: expected 2 (BPE), got {kind}; no architecture here has another"
        )
    if charsmap:
        raise ModelError(
            f"{path}: normalizer_spec: expected none, got a table that rewrites characters; GGUF has no place"
            " for one in a BPE vocabulary"
        )
    return table, {
        f"{PREFIX}model": "llama",
        f"{PREFIX}pre": "default",
        f"{PREFIX}add_space_prefix": prefix,
        f"{PREFIX}remove_extra_whitespaces": squeeze,
        f"{PREFIX}add_bos_token": True,
        f"{PREFIX}add_eos_token": False,
    }


def _piece(raw: bytes) -> tuple[str, Kind, float]:
    """SentencePiece: text (field 1), score (2), type (3)."""
    text, score, kind = "", 0.0, Kind.NORMAL
    for field, value in _fields(raw):
        if field == 1 and isinstance(value, bytes):
            text = value.decode("utf-8", "replace")
        elif field == 2 and isinstance(value, float):
            score = value
        elif field == 3 and isinstance(value, int):
            kind = TYPES.get(value, Kind.NORMAL)
    return text, Kind.BYTE if kind == Kind.BYTE and BYTE_TOKEN.fullmatch(text) else kind, score


def _fields(raw: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """(number, value) of each field of a message: varints as int, 32 bits as float, the rest as bytes."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield tag >> 3, value
            continue
        size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else _varint(raw, at)
        if kind not in (1, 2, 5) or at + size > len(raw):
            raise _Malformed("a field of no known type, or longer than the message")
        part = raw[at : at + size]
        at += size
        yield tag >> 3, struct.unpack("<f", part)[0] if kind == 5 else part


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:
        byte = raw[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise _Malformed("a number without an end")
