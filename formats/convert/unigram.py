"""Reads the Unigram vocabulary of a tokenizer.json (XLM-RoBERTa) as GGUF's t5 kind: pieces with their scores,
and the character map of the normalizer. Spaces are removed at the ends and collapsed as in SentencePiece.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import ModelError
from satchel.formats.convert.token_table import PREFIX, Table, added_entries, put_added
from satchel.formats.tokenizer.charsmap import read_charsmap
from satchel.formats.tokenizer.vocab import MAX_ENTRIES, Kind, Meta

AGAIN = "the file is damaged: download it again"


def read_unigram(
    path: Path, data: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[Table, dict[str, Any]]:
    """The tokens and the GGUF keys. ModelError for a piece without a score, and for a normalizer or a
    pre-tokenizer that SentencePiece does not have.
    """
    table = _pieces(path, model)
    put_added(table, added_entries(data.get("added_tokens")))
    charsmap = _normalizer(path, data.get("normalizer"))
    _check_cutter(path, data.get("pre_tokenizer"))
    if model.get("byte_fallback"):
        raise ModelError(f"{path}: model.byte_fallback: expected false, got true; it is not supported here")
    return table, {
        f"{PREFIX}model": "t5",
        f"{PREFIX}pre": "default",
        f"{PREFIX}add_space_prefix": True,
        f"{PREFIX}remove_extra_whitespaces": True,
        **({f"{PREFIX}precompiled_charsmap": charsmap} if charsmap is not None else {}),
    }


def _pieces(path: Path, model: Mapping[str, Any]) -> Table:
    vocab, unknown, table = model.get("vocab"), model.get("unk_id"), Table()
    if not isinstance(vocab, list) or not vocab or len(vocab) > MAX_ENTRIES:
        raise ModelError(f"{path}: model.vocab: expected a list of pieces, got {str(vocab)[:40]!a}; {AGAIN}")
    for id, entry in enumerate(vocab):
        fits = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        if not fits or type(entry[1]) not in (int, float) or not math.isfinite(entry[1]):
            raise ModelError(
                f"{path}: model.vocab: expected a text and its score as entry {id}, got"
                f" {str(entry)[:40]!a}; {AGAIN}"
            )
        table.put(id, entry[0], Kind.UNKNOWN if id == unknown else Kind.NORMAL, float(entry[1]))
    return table


def _normalizer(path: Path, part: object) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """The character map (precompiled_charsmap), or None. Collapsing spaces needs no key of its own:
    remove_extra_whitespaces says it.
    """
    steps = part.get("normalizers") if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    found = None
    for step in steps if isinstance(steps, list) else [steps]:
        if step is None:
            continue
        kind = step.get("type") if isinstance(step, dict) else None
        if kind == "Precompiled" and found is None:
            found = _charsmap(path, step.get("precompiled_charsmap"))
        elif not (kind == "Replace" and step.get("pattern") == {"Regex": " {2,}"}) and kind != "Strip":
            raise ModelError(
                f"{path}: normalizer: expected a Precompiled table and blanks that are squeezed, got"
                f" {str(step)[:80]!a}; this is not supported"
            )
    return found


def _charsmap(path: Path, text: object) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        raw = None
    if raw is None:
        raise ModelError(
            f"{path}: normalizer.precompiled_charsmap: expected base64, got {str(text)[:40]!a}; {AGAIN}"
        )
    table = np.frombuffer(raw, np.uint8)
    read_charsmap(Meta({f"{PREFIX}precompiled_charsmap": table}, str(path)))
    return table if len(table) else None


def _check_cutter(path: Path, part: object) -> None:
    """ModelError unless the pre-tokenizer is Metaspace, splits at spaces alone and puts one before each
    text.
    """
    steps = part.get("pretokenizers") if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    kinds = [step.get("type") if isinstance(step, dict) else None for step in steps or []]
    last = steps[-1] if isinstance(steps, list) and kinds and isinstance(steps[-1], dict) else {}
    scheme = last.get("prepend_scheme", "always" if last.get("add_prefix_space", True) else "never")
    if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]) or scheme != "always":
        raise ModelError(
            f"{path}: pre_tokenizer: expected Metaspace that puts a space before each text, got"
            f" {str(part)[:120]!a}; this is not supported"
        )
