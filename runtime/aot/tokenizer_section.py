"""The tokenizer section: a byte-level BPE vocabulary as tables that C reads without building anything.

Ids, bytes and merges are those of the tokenizer that the file's metadata builds, asked of it; the pattern
that cuts text into words is compiled by patterns.py. Tokenizers that the tables do not hold are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from satchel.errors import ModelError
from satchel.formats.gguf import GGUF
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.formats.tokenizer.bpe import ALPHABET, TO_LATIN, pick, read_merges
from satchel.formats.tokenizer.specials import Splitter
from satchel.formats.tokenizer.vocab import Meta
from satchel.runtime.aot.patterns import PatternProgram, library_ranges
from satchel.runtime.aot.records import (
    TOKENIZER_CLASS,
    TOKENIZER_CODE,
    TOKENIZER_HEAD,
    TOKENIZER_MERGE,
    TOKENIZER_RANGE,
    TOKENIZER_SPECIAL,
    TOKENIZER_WORD,
    section,
)
from satchel.runtime.grammar.vocabulary import plain_tokens
from satchel.runtime.graph import Array

MAGIC = b"SATTOK01"
ADD_BOS, ADD_EOS, WHOLE_WORDS = 1, 2, 4  # flags of the head
HIDDEN, PLAIN = (
    1,
    2,
)  # flags of a token: it is not shown; it is ordinary text, which may come within a grammar


def pack_tokenizer(gguf: GGUF) -> bytes:
    """The section of the file's tokenizer. ModelError for one that it cannot hold."""
    meta = Meta(gguf.metadata, str(gguf.path))
    tokenizer = build_tokenizer(gguf.metadata, source=str(gguf.path))
    if tokenizer.kind != "gpt2":
        raise ModelError(
            f"{gguf.path}: tokenizer.ggml.model is {tokenizer.kind!r}: expected 'gpt2', byte-level BPE; the "
            "C library runs no other tokenizer yet: use Satchel's server or its Python library for this model"
        )
    pre = pick(meta, tokenizer.kind)
    name = gguf.metadata.get("general.name")
    splitter = Splitter(tokenizer.vocab, meta.text("pre") or "", name if isinstance(name, str) else "")
    if any(special.lstrip or special.rstrip for special in splitter.specials):
        raise ModelError(f"{gguf.path}: special tokens take the spaces beside them: the C library does not")
    program = PatternProgram(library_ranges)
    starts = [program.add(pattern) for pattern in pre.patterns]
    texts = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    merges = _merges(meta, tokenizer)
    words, more = _words(tokenizer, texts) if pre.ignore_merges else (np.zeros(0, TOKENIZER_WORD), b"")
    specials = np.array([(s.id, s.parsed_always) for s in splitter.specials if s.text], TOKENIZER_SPECIAL)
    pool, ends = b"".join(texts) + more, np.array(sorted(tokenizer.eog), np.uint32)
    ranges = [r for found in program.classes for r in found]
    head = np.zeros((), TOKENIZER_HEAD)
    head["magic"], head["n_tokens"], head["n_bytes"] = MAGIC, len(texts), len(pool)
    head["n_merges"], head["n_words"], head["n_specials"] = len(merges), len(words), len(specials)
    head["n_ends"], head["n_programs"], head["n_code"] = len(ends), len(starts), len(program.code)
    head["n_classes"], head["n_ranges"] = len(program.classes), len(ranges)
    s = tokenizer.specials
    head["flags"] = ADD_BOS * s.add_bos + ADD_EOS * s.add_eos + WHOLE_WORDS * pre.ignore_merges
    head["bos"], head["eos"] = (-1 if i is None else i for i in (s.bos, s.eos))
    return section(
        head,
        [
            np.cumsum([0, *map(len, texts)]).astype(np.uint32),
            _flags(tokenizer),
            np.array([tokenizer.vocab.index.get(ALPHABET[byte], -1) for byte in range(256)], np.int32),
            merges,
            words,
            specials,
            ends,
            np.array(starts, np.uint32),
            np.array(program.code, TOKENIZER_CODE),
            _classes(program),
            np.array(ranges, TOKENIZER_RANGE),
            pool,
        ],
    )


def _flags(tokenizer: Tokenizer) -> Array:
    """The flags of each token, uint8."""
    plain = plain_tokens(tokenizer)
    plain[sorted(tokenizer.eog)] = False
    hidden = [tokenizer.is_control(i) for i in range(tokenizer.vocab_size)]
    return np.asarray(HIDDEN * np.array(hidden) + PLAIN * plain, np.uint8)


def _merges(meta: Meta, tokenizer: Tokenizer) -> Array:
    """The merges by their parts' ids."""
    index = tokenizer.vocab.index
    pairs = read_merges(meta, tokenizer.vocab)
    rows = ((index[a], index[b], index[a + b], rank) for rank, (a, b) in enumerate(pairs))
    return np.array(sorted(rows), TOKENIZER_MERGE)


def _words(tokenizer: Tokenizer, texts: Sequence[bytes]) -> tuple[Array, bytes]:
    """Tokens that a word may be as a whole, by its bytes; and bytes behind those of the tokens, for words
    that are found by others than they show.
    """
    begins, more = np.cumsum([0, *map(len, texts)]).tolist(), bytearray()
    rows: list[tuple[bytes, int, int]] = []
    for i, text in enumerate(tokenizer.vocab.tokens):
        try:
            raw = text.translate(TO_LATIN).encode("latin-1")
        except UnicodeEncodeError:  # a character outside the byte alphabet: no text becomes it
            continue
        rows.append((raw, i, begins[i] if raw == texts[i] else begins[-1] + len(more)))
        more += b"" if raw == texts[i] else raw
    return np.array([(i, at, len(raw), 0) for raw, i, at in sorted(rows)], TOKENIZER_WORD), bytes(more)


def _classes(program: PatternProgram) -> Array:
    rows, at = np.zeros(len(program.classes), TOKENIZER_CLASS), 0
    for i, found in enumerate(program.classes):
        rows[i] = at, len(found)
        at += len(found)
    return rows
