"""SentencePiece vocabularies (BPE with scores, Unigram) from GGUF metadata, on the `sentencepiece` library.

The library reads a serialized model, which this module writes field by field from checked tables.
"""

from __future__ import annotations

import re
import struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from satchel.formats.tokenizer.charsmap import read_charsmap
from satchel.formats.tokenizer.vocab import Kind, Meta, Vocab, byte_values

SPACE = "▁"
ACROSS = re.compile(f"[A-Za-z]{SPACE}")
Types: TypeAlias = npt.NDArray[np.int32]
UNIGRAM, BPE = 1, 2
SHORT = [bytes((i,)) for i in range(256)]
TAIL = struct.Struct("<BfBB")
# ModelProto's piece types: those of Kind, except for types that take no part in matching.
PIECE_TYPES = {Kind.UNDEFINED: Kind.NORMAL, Kind.UNUSED: Kind.NORMAL, Kind.USER_DEFINED: Kind.NORMAL}


class SentencePiece:
    """The TokenEncoder of SentencePiece vocabularies."""

    def __init__(self, meta: Meta, vocab: Vocab, unigram: bool, unk: int | None) -> None:
        self._vocab, self._bytes = vocab, byte_values(meta, vocab)
        self.space_prefix = meta.flag("add_space_prefix", not unigram)
        self._unigram = unigram
        # With byte tokens no text is lost, but Unigram models merge spaces and normalize characters.
        lossless = not unigram and len(self._bytes) == 256
        self.longest = max((len(text.encode()) for text in vocab.tokens), default=1) if lossless else None
        self.cuts = not unigram and not any(ACROSS.search(text) for text in vocab.tokens)
        types = _piece_types(meta, vocab, unk, full_bytes=len(self._bytes) == 256)
        # For Unigram models the library adds the leading space itself, after its normalization.
        rules = _normalizer(meta, self.space_prefix) if unigram else _number(3, False) + _number(4, False)
        spec = _number(3, UNIGRAM if unigram else BPE) + _number(35, len(self._bytes) == 256)
        self._processor = _load(meta, _write_model(meta, vocab, types, spec, rules))

    def encode(self, text: str, start: bool) -> list[int]:
        """The ids of ordinary text. start: the text is at the beginning or follows a special token, so a
        space is added in front.
        """
        if self.space_prefix and start and not self._unigram:
            text = " " + text
        count = len(self._vocab)
        ids: list[int] = self._processor.EncodeAsIds(text)
        return [token for token in ids if token < count]

    def token_bytes(self, token: int) -> bytes:
        text, kind = self._vocab.tokens[token], self._vocab.types[token]
        if token in self._bytes:
            return bytes([self._bytes[token]])
        if kind == Kind.NORMAL:
            return text.replace(SPACE, " ").encode()
        return text.encode() if kind in (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN) else b""


def _load(meta: Meta, proto: bytes) -> Any:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(proto)
    except RuntimeError as error:
        raise meta.fail("tokens", "a vocabulary that sentencepiece accepts", f"{error!s:.200}") from None
    return processor


def _write_model(meta: Meta, vocab: Vocab, types: Types, trainer: bytes, normalizer: bytes) -> bytes:
    """A ModelProto: pieces (field 1), trainer spec (2), normalizer spec (3)."""
    pieces = b"".join(map(_piece, vocab.tokens, _checked_scores(meta, vocab), types.tolist()))
    if not np.any(types == Kind.UNKNOWN):
        # The library requires an unknown piece. Its id is after the vocabulary, and encode drops it.
        pieces += _piece("<none>" if "<none>" not in vocab.index else "\x00none", 0.0, Kind.UNKNOWN)
    return pieces + _bytes(2, trainer) + _bytes(3, normalizer + _number(5, True))


def _normalizer(meta: Meta, space_prefix: bool) -> bytes:
    """NormalizerSpec: charsmap (field 2), add_dummy_prefix (3), remove_extra_whitespaces (4)."""
    charsmap = read_charsmap(meta)
    squeeze = meta.flag("remove_extra_whitespaces", False)
    return (_bytes(2, charsmap) if charsmap else b"") + _number(3, space_prefix) + _number(4, squeeze)


def _piece_types(meta: Meta, vocab: Vocab, unk: int | None, full_bytes: bool) -> Types:
    types = vocab.types.copy()
    for ours, theirs in PIECE_TYPES.items():
        types[vocab.types == ours] = theirs
    unknown = np.flatnonzero(types == Kind.UNKNOWN)
    if unk is None and len(unknown):
        unk = int(unknown[0])
    types[unknown] = Kind.CONTROL
    if unk is not None:
        types[unk] = Kind.UNKNOWN
    if not full_bytes:
        if np.any(types == Kind.BYTE):
            meta.warn("tokens", "fewer than 256 byte tokens; characters without a token become unknown")
        types[types == Kind.BYTE] = Kind.CONTROL
    return types


def _checked_scores(meta: Meta, vocab: Vocab) -> list[float]:
    if vocab.scores is None:
        raise meta.fail("scores", f"an array of {len(vocab):,} float32", "nothing")
    if not np.all(np.isfinite(vocab.scores)):
        at = int(np.flatnonzero(~np.isfinite(vocab.scores))[0])
        raise meta.fail("scores", "finite numbers", f"{vocab.scores[at]} for token {at}")
    scores: list[float] = vocab.scores.tolist()
    return scores


def _varint(value: int) -> bytes:
    if value < 0x80:
        return SHORT[value]
    return SHORT[0x80 | value & 0x7F] + _varint(value >> 7)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value))


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _piece(text: str, score: float, kind: int) -> bytes:
    """ModelProto.SentencePiece: text (field 1), score (2, float32), type (3)."""
    raw = text.encode()
    size = len(raw)
    tail = TAIL.pack(0x15, score, 0x18, kind)
    if size < 0x70:
        # Fast path, for nearly every token: both lengths fit one byte. This function dominates the start-up
        # time.
        return bytes((0x0A, size + 9, 0x0A, size)) + raw + tail
    return _bytes(1, _bytes(1, raw) + tail)
