"""Reads post_processor of tokenizer.json: the tokens that an encoder puts before and after a text, or between
two, as GGUF's keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.convert.token_table import PREFIX


@dataclass(frozen=True, slots=True)
class PostProcessor:
    """Ids before and after a text; pair: how many more two texts get than one."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pair: int = 0


def read_added(path: Path, part: object) -> dict[str, Any]:
    """The keys add_bos_token, add_eos_token and add_sep_token, and the ids where one token is added. The
    token that ends an encoded text need not be the one that ends a generated text. ModelError for a
    post-processor that is not known.
    """
    added = _read(path, part)
    values: dict[str, Any] = {
        f"{PREFIX}add_bos_token": bool(added.before),
        f"{PREFIX}add_eos_token": bool(added.after),
    }
    if len(added.before) == 1:
        values[f"{PREFIX}bos_token_id"] = added.before[0]
    if len(added.after) == 1:
        values[f"{PREFIX}eos_token_id"] = added.after[0]
    separates = added.pair > 1 and (added.before or added.after)
    return values | ({f"{PREFIX}add_sep_token": True} if separates else {})


def _read(path: Path, part: object) -> PostProcessor:
    if part is None:
        return PostProcessor()
    try:
        return _of(part)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
        raise ModelError(
            f"{path}: post_processor: expected TemplateProcessing, BertProcessing, RobertaProcessing,"
            f" ByteLevel or a Sequence of them, got {str(part)[:120]!a}; the file is damaged, or this version"
            " cannot read it"
        ) from None


def _of(part: Any) -> PostProcessor:
    """Any malformed part raises one of the errors that _read names."""
    kind = part["type"]
    if kind == "ByteLevel":  # it changes offsets alone
        return PostProcessor()
    if kind == "Sequence":
        found = PostProcessor()
        for one in map(_of, part["processors"]):
            found = PostProcessor(one.before + found.before, found.after + one.after, found.pair + one.pair)
        return found
    if kind in ("BertProcessing", "RobertaProcessing"):
        # BERT: [CLS] A [SEP] B [SEP]. RoBERTa: <s> A </s> </s> B </s>.
        (_, first), (_, last) = part["cls"], part["sep"]
        return PostProcessor((_id(first),), (_id(last),), 1 if kind == "BertProcessing" else 2)
    if kind == "TemplateProcessing":
        return _template(part)
    raise ValueError(kind)


def _template(part: Any) -> PostProcessor:
    known = {name: tuple(map(_id, entry["ids"])) for name, entry in part["special_tokens"].items()}
    single, pair = (_pieces(part[key], known) for key in ("single", "pair"))
    at = single.index(None)
    before, after = (
        tuple(i for ids in half if ids is not None for i in ids) for half in (single[:at], single[at + 1 :])
    )
    more = sum(len(ids) for ids in pair if ids is not None) - len(before) - len(after)
    return PostProcessor(before, after, more)


def _pieces(pieces: Any, known: dict[str, tuple[int, ...]]) -> list[tuple[int, ...] | None]:
    """The ids of each special token of a template; None for a text."""
    return [None if "Sequence" in piece else known[piece["SpecialToken"]["id"]] for piece in pieces]


def _id(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
