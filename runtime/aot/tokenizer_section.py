"""The tokenizer section: a vocabulary as tables that C reads without building anything.

Ids, bytes, merges and scores are those of the tokenizer that the file's metadata builds, asked of it or read
by the same functions. Tokenizers that the tables do not hold are refused.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

import numpy as np

from satchel.formats.gguf import GGUF
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.formats.tokenizer.specials import Splitter
from satchel.formats.tokenizer.splitting import Special
from satchel.formats.tokenizer.vocab import Meta
from satchel.runtime.aot.patterns import PatternProgram, library_ranges
from satchel.runtime.aot.records import (
    TOKENIZER_CLASS,
    TOKENIZER_CODE,
    TOKENIZER_HEAD,
    TOKENIZER_MAP,
    TOKENIZER_MERGE,
    TOKENIZER_RANGE,
    TOKENIZER_SPECIAL,
    TOKENIZER_WORD,
    section,
)
from satchel.runtime.aot.tokenizer_kinds import EncoderTables, encoder_tables
from satchel.runtime.grammar.vocabulary import plain_tokens
from satchel.runtime.graph import Array

MAGIC = b"SATTOK02"
ADD_BOS, ADD_EOS = 1, 2  # flags of the head
HIDDEN = 1  # flag of a token: it is not shown
PLAIN = 2  # flag of a token: it is ordinary text, which may come within a grammar
ALWAYS, LEFT, RIGHT = 1, 2, 4  # flags of a special token


def pack_tokenizer(gguf: GGUF) -> bytes:
    """The section of the file's tokenizer. ModelError for one that it cannot hold."""
    meta = Meta(gguf.metadata, str(gguf.path))
    tokenizer = build_tokenizer(gguf.metadata, source=str(gguf.path))
    name = gguf.metadata.get("general.name")
    splitter = Splitter(tokenizer.vocab, meta.text("pre") or "", name if isinstance(name, str) else "")
    program = PatternProgram(library_ranges)
    texts = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    tables = encoder_tables(meta, tokenizer, program)
    words, more = _words(tables.words, texts)
    specials = np.array([(s.id, _flags(s)) for s in splitter.specials if s.text], TOKENIZER_SPECIAL)
    pool, ends = b"".join(texts) + more, np.array(sorted(tokenizer.eog), np.uint32)
    ranges = [r for found in program.classes for r in found]
    counts: dict[str, Sized] = {
        "tokens": texts, "bytes": pool, "merges": tables.merges, "words": words, "specials": specials,
        "ends": ends, "programs": tables.starts, "code": program.code, "classes": program.classes,
        "ranges": ranges, "maps": tables.maps, "points": tables.points, "charsmap": tables.charsmap,
    }  # fmt: skip
    return section(
        _head(tokenizer, tables, {name: len(table) for name, table in counts.items()}),
        [
            np.cumsum([0, *map(len, texts)]).astype(np.uint32),
            _token_flags(tokenizer),
            np.array(tables.byte_tokens, np.int32),
            np.array(tables.merges, TOKENIZER_MERGE),
            words,
            specials,
            ends,
            np.array(tables.starts, np.uint32),
            np.array(program.code, TOKENIZER_CODE),
            _classes(program),
            np.array(ranges, TOKENIZER_RANGE),
            np.array(tables.maps, TOKENIZER_MAP),
            np.array(tables.points, np.uint32),
            tables.charsmap,
            pool,
        ],
    )


def _token_flags(tokenizer: Tokenizer) -> Array:
    """The flags of each token, uint8."""
    plain = plain_tokens(tokenizer)
    plain[sorted(tokenizer.eog)] = False
    hidden = [tokenizer.is_control(i) for i in range(tokenizer.vocab_size)]
    return np.asarray(HIDDEN * np.array(hidden) + PLAIN * plain, np.uint8)


def _head(tokenizer: Tokenizer, tables: EncoderTables, counts: dict[str, int]) -> Array:
    head, s = np.zeros((), TOKENIZER_HEAD), tokenizer.specials
    head["magic"] = MAGIC
    for name, count in counts.items():
        head[f"n_{name}"] = count
    # What a tokenizer adds at the end of a text: WordPiece its separator, the others the end token.
    separated = tokenizer.kind == "bert" and s.add_sep and s.sep is not None
    end = s.sep if separated else s.eos if s.add_eos else None
    head["flags"] = ADD_BOS * s.add_bos + ADD_EOS * (end is not None) + tables.flags
    head["kind"], head["unknown_score"] = tables.kind, tables.unknown_score
    head["bos"], head["eos"], head["unknown"] = (-1 if i is None else i for i in (s.bos, end, tables.unknown))
    return head


def _flags(special: Special) -> int:
    return ALWAYS * special.parsed_always + LEFT * special.lstrip + RIGHT * special.rstrip


def _words(rows: Sequence[tuple[bytes, int, int]], texts: Sequence[bytes]) -> tuple[Array, bytes]:
    """The words, (bytes, token, value) each, by their bytes; and bytes behind those of the tokens, for words
    that are found by others than they show.
    """
    begins, more = np.cumsum([0, *map(len, texts)]).tolist(), bytearray()
    made: list[tuple[int, int, int, int]] = []
    for raw, token, value in sorted(rows):
        made.append(
            (token, begins[token] if raw == texts[token] else begins[-1] + len(more), len(raw), value)
        )
        more += b"" if raw == texts[token] else raw
    return np.array(made, TOKENIZER_WORD), bytes(more)


def _classes(program: PatternProgram) -> Array:
    rows, at = np.zeros(len(program.classes), TOKENIZER_CLASS), 0
    for i, found in enumerate(program.classes):
        rows[i] = at, len(found)
        at += len(found)
    return rows
