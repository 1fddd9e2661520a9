"""Byte-pair encoding from a GGUF file's tokens and merges, by the Rust library of library.py.

The pre-tokenizer table splits text into words. Token texts are in GPT-2's byte alphabet, or plain UTF-8 with
<0xNN>.
"""

from __future__ import annotations

import re
from itertools import starmap
from operator import add

from satchel.formats.tokenizer import library
from satchel.formats.tokenizer.pretokenizers import DEFAULT, PRETOKENIZERS, REFUSED, PreTokenizer
from satchel.formats.tokenizer.vocab import Kind, Meta, Vocab, byte_values

SPACE = "▁"
NEWLINES = re.compile("(\n+)")


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's character for each byte: printable Latin-1 bytes map to themselves, the others to U+0100
    onwards.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    return {byte: chr(byte) for byte in kept} | {byte: chr(0x100 + i) for i, byte in enumerate(moved)}


ALPHABET = _byte_alphabet()
# Bytes that occur in UTF-8. The other 13 never do, and many vocabularies have no token for them.
IN_UTF8 = (*range(0xC0), *range(0xC2, 0xF5))
BYTE_OF = {char: bytes([byte]) for byte, char in ALPHABET.items()}
# For str.translate: Latin-1 characters outside the alphabet map to one outside Latin-1, so that encoding
# fails.
TO_LATIN = {i: 0x10000 + i for i in range(256)} | {ord(char): byte for byte, char in ALPHABET.items()}


def pick(meta: Meta, model: str) -> PreTokenizer:
    """The pre-tokenizer of `tokenizer.ggml.pre`; the default, with a warning, where it is missing or unknown.

    ModelError for one that is known but not supported.
    """
    name = meta.text("pre")
    if model == "gemma4":
        return PRETOKENIZERS["gemma4"]
    if name is not None and name in PRETOKENIZERS:
        return PRETOKENIZERS[name]
    if name in REFUSED:
        raise meta.fail("pre", "a pre-tokenizer that keeps all of a text", repr(name))
    what = "no pre-tokenizer is named" if name is None else f"unknown pre-tokenizer {name!r:.80}"
    meta.warn(
        "pre", f"{what}; using 'default' instead, so long texts may be cut into other tokens than in training"
    )
    return DEFAULT


class Bpe:
    """The TokenEncoder of BPE vocabularies."""

    def __init__(self, meta: Meta, vocab: Vocab, pre: PreTokenizer) -> None:
        self._vocab, self._raw = vocab, pre.raw
        self._bytes = byte_values(meta, vocab) if pre.raw else {}
        model = library.bpe(
            vocab.index, read_merges(meta, vocab), ignore_merges=pre.ignore_merges, byte_fallback=pre.raw
        )
        bytes_of = () if pre.raw else (library.BYTE_LEVEL,)
        self._ids = library.load(meta, model, library.split(pre.patterns, *bytes_of))
        lossless = not pre.raw or len(set(self._bytes.values())) == 256
        if not pre.raw and (lost := [b for b in IN_UTF8 if ALPHABET[b] not in vocab.index]):
            lossless = False
            meta.warn(
                "tokens",
                f"{len(lost)} of {len(IN_UTF8)} bytes of UTF-8 have no token (first 0x{lost[0]:02X});"
                " text that holds them loses them",
            )
        # A character of the byte alphabet is one byte; raw vocabularies have their text as it is.
        widths = (len(text.encode()) if pre.raw else len(text) for text in vocab.tokens)
        self.longest = max(widths, default=1) if lossless else None
        self.cuts = not pre.raw and pre.ends_words

    def encode(self, text: str, start: bool) -> list[int]:
        """The ids of ordinary text. start has no effect: byte-level vocabularies add nothing
        before a text.
        """
        if not self._raw:
            return self._encode(text)
        ids: list[int] = []
        for piece in NEWLINES.split(text.replace(" ", SPACE)):
            whole = self._vocab.index.get(piece) if piece[:1] == "\n" else None
            ids += self._encode(piece) if whole is None else [whole]
        return ids

    def _encode(self, text: str) -> list[int]:
        return self._ids(text) if text else []

    def token_bytes(self, token: int) -> bytes:
        text, kind = self._vocab.tokens[token], self._vocab.types[token]
        if kind == Kind.NORMAL:
            if self._raw:
                return text.replace(SPACE, " ").encode()
            try:
                return text.translate(TO_LATIN).encode("latin-1")
            except UnicodeEncodeError:  # a character outside the byte alphabet
                return b"".join(BYTE_OF.get(char) or char.encode() for char in text)
        if kind == Kind.BYTE and token in self._bytes:
            return bytes([self._bytes[token]])
        return text.encode() if kind in (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN) else b""


def read_merges(meta: Meta, vocab: Vocab) -> list[tuple[str, str]]:
    """The merge pairs in order of rank. ModelError for a line that is not a pair, or a duplicate.

    Only pairs whose parts and result are tokens are kept; a warning gives the number of the others.
    """
    lines = meta.strings("merges")
    # A merge's first part may begin with a space, so the search starts after the first character.
    cuts = [line.find(" ", 1) for line in lines]
    if -1 in cuts or any(line[-1] == " " for line in lines):
        at, line = next((i, text) for i, text in enumerate(lines) if cuts[i] < 0 or text[-1] == " ")
        raise meta.fail(
            "merges", "two tokens with a space between them in each", f"{line!r:.80} as merge {at}"
        )
    if len(set(lines)) < len(lines):
        seen: set[str] = set()
        line = next(line for line in lines if line in seen or seen.add(line))  # type: ignore[func-returns-value]
        raise meta.fail("merges", "every merge once", f"{line!r:.80} twice")
    # Reuse the vocabulary's strings: new ones for 300,000 merges would double its memory.
    number, text = vocab.index.get, vocab.tokens.__getitem__
    lefts = [number(line[:cut]) for line, cut in zip(lines, cuts, strict=True)]
    rights = [number(line[cut + 1 :]) for line, cut in zip(lines, cuts, strict=True)]
    both = ((a, b) for a, b in zip(lefts, rights, strict=True) if a is not None and b is not None)
    # The library panics on some merges of texts that are not tokens, so it must not get one.
    pairs = [(text(a), text(b)) for a, b in both]
    if len(pairs) < len(lines) or not all(map(vocab.index.__contains__, starmap(add, pairs))):
        pairs = [(a, b) for a, b in pairs if a + b in vocab.index]
        meta.warn("merges", f"{len(lines) - len(pairs):,} of {len(lines):,} name no token and are skipped")
    return pairs
