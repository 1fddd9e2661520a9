"""What the tokenizer section holds for each kind of tokenizer: merges, words, patterns, maps.

Each kind's tables follow from what formats/tokenizer gives its library: the same pieces, scores, flags and
pre-tokenizer, so the C code and the library find the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from satchel.formats.tokenizer import Kind, Tokenizer
from satchel.formats.tokenizer.bpe import ALPHABET, TO_LATIN, pick, read_merges
from satchel.formats.tokenizer.charsmap import read_charsmap
from satchel.formats.tokenizer.spm import ACROSS
from satchel.formats.tokenizer.vocab import Meta, byte_values
from satchel.formats.tokenizer.wordpiece import rename
from satchel.runtime.aot.bert_maps import bert_maps
from satchel.runtime.aot.patterns import PatternProgram

BYTES, RAW, SCORED, UNIGRAM, WORDPIECE = range(5)  # kinds, as in cext/embed/sections.h
WHOLE_WORDS, SPACE_PREFIX, SQUEEZE, CUTS = 4, 8, 16, 32  # flags of the head
SPACE = "▁"
UNKNOWN_PENALTY = np.float32(10)  # of SentencePiece's Unigram, below the least score
BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]
NO_BYTES = [-1] * 256


@dataclass(slots=True)
class EncoderTables:
    """Tables of one kind. words: (bytes, token, value). starts: the patterns' first codes. unknown: the token
    of what has none.
    """

    kind: int
    flags: int = 0
    byte_tokens: list[int] = field(default_factory=NO_BYTES.copy)
    merges: list[tuple[int, int, int, int]] = field(default_factory=list)
    words: list[tuple[bytes, int, int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    maps: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    points: list[int] = field(default_factory=list)
    charsmap: bytes = b""
    unknown: int | None = None
    unknown_score: float = 0.0


def encoder_tables(meta: Meta, tokenizer: Tokenizer, program: PatternProgram) -> EncoderTables:
    """The tables of a tokenizer; its patterns and classes are added to the program. ModelError where they do
    not hold it.
    """
    if tokenizer.kind == "bert":
        return _wordpiece(meta, tokenizer, program)
    if tokenizer.kind in ("llama", "t5"):
        return _pieces(meta, tokenizer, tokenizer.kind == "t5")
    pre = pick(meta, tokenizer.kind)
    index = tokenizer.vocab.index
    tables = EncoderTables(RAW if pre.raw else BYTES, WHOLE_WORDS * pre.ignore_merges)
    tables.starts = [program.add(pattern) for pattern in pre.patterns]
    pairs = read_merges(meta, tokenizer.vocab)
    tables.merges = sorted((index[a], index[b], index[a + b], rank) for rank, (a, b) in enumerate(pairs))
    names = BYTE_NAMES if pre.raw else [ALPHABET[byte] for byte in range(256)]
    tables.byte_tokens = [index.get(name, -1) for name in names]
    if pre.raw:
        short = ((t, i, 0) for t, i in index.items() if len(t) == 1 or not t.strip("\n"))
        tables.words = [*_spaced(short)]
    elif pre.ignore_merges:
        tables.words = _whole_words(tokenizer)
    return tables


def _whole_words(tokenizer: Tokenizer) -> list[tuple[bytes, int, int]]:
    """Tokens that a word may be as a whole."""
    rows = []
    for i, text in enumerate(tokenizer.vocab.tokens):
        try:
            rows.append((text.translate(TO_LATIN).encode("latin-1"), i, 0))
        except UnicodeEncodeError:  # a character outside the byte alphabet: no text becomes it
            continue
    return rows


def _spaced(rows: Iterable[tuple[str, int, int]]) -> Iterable[tuple[bytes, int, int]]:
    """Words with U+2581 as a space, but those that have a space: no text has any when words are looked up."""
    return ((t.replace(SPACE, " ").encode(), i, value) for t, i, value in rows if " " not in t)


def _pieces(meta: Meta, tokenizer: Tokenizer, unigram: bool) -> EncoderTables:
    """The tables of a SentencePiece vocabulary; see formats/tokenizer/spm.py."""
    vocab = tokenizer.vocab
    assert vocab.scores is not None  # the tokenizer was built of them
    prefix = meta.flag("add_space_prefix", not unigram)
    tables = EncoderTables(UNIGRAM if unigram else SCORED, SPACE_PREFIX * prefix)
    values = byte_values(meta, vocab)
    if len(values) == 256:
        tables.byte_tokens = [token for _, token in sorted((byte, token) for token, byte in values.items())]
    unknown = vocab.ids_of(Kind.UNKNOWN)
    tables.unknown = tokenizer.unk if tokenizer.unk is not None else next(iter(unknown), None)
    matched = {*vocab.ids_of(Kind.NORMAL, Kind.UNDEFINED, Kind.UNUSED, Kind.USER_DEFINED)} - {tables.unknown}
    ids = sorted(matched)
    scores = vocab.scores[ids]
    if unigram:
        tables.flags |= SQUEEZE * meta.flag("remove_extra_whitespaces", False)
        tables.charsmap = read_charsmap(meta)
        tables.unknown_score = float(scores.min(initial=np.inf) - UNKNOWN_PENALTY)
        number = scores.astype("<f4").view("<u4").tolist()
    else:
        tables.flags |= CUTS * (not any(ACROSS.search(text) for text in vocab.tokens))
        number = np.unique(-scores, return_inverse=True)[1].tolist()  # the best score first
    tables.words = [*_spaced((vocab.tokens[i], i, n) for i, n in zip(ids, number, strict=True))]
    return tables


def _wordpiece(meta: Meta, tokenizer: Tokenizer, program: PatternProgram) -> EncoderTables:
    """The tables of a WordPiece vocabulary; see formats/tokenizer/wordpiece.py."""
    vocab, unknown = tokenizer.vocab, tokenizer.unk
    assert unknown is not None  # the tokenizer was built of it
    lowercase = meta.flag("normalizer.lowercase", True)
    accents = meta.flag("normalizer.strip_accents", lowercase)
    maps, points, classes = bert_maps(lowercase, accents)
    program.classes += classes
    names = {rename(vocab, i): i for i in range(len(vocab))}
    words = [(name.encode(), i, 0) for name, i in names.items() if not name.startswith("\n")]
    return EncoderTables(
        WORDPIECE,
        SPACE_PREFIX,
        words=words,
        maps=maps,
        points=points,
        unknown=names[rename(vocab, unknown)],
    )
