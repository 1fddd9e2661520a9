"""Reads tokenizer.json. GGUF's kind of tokenizer (tokenizer.ggml.model) by the vocabulary's model:

    BPE on bytes                            gpt2
    BPE with spaces as U+2581, <0xNN> bytes llama
    WordPiece (BERT)                        bert
    Unigram (XLM-RoBERTa)                   t5, in unigram.py

What is put around a text is in post_processor.py. A pre-tokenizer that splits text as no known one does is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.convert.jsonfile import read_json
from satchel.formats.convert.post_processor import read_added
from satchel.formats.convert.pretokenizer import find_pretokenizer
from satchel.formats.convert.token_table import PREFIX, Table, added_entries, put_added
from satchel.formats.convert.unigram import read_unigram
from satchel.formats.gguf.check import quote
from satchel.formats.tokenizer.vocab import BYTE_TOKEN, MAX_ENTRIES, Kind

AGAIN = "the file is damaged: download it again"


def read_tokenizer_json(path: Path, notes: list[str]) -> tuple[Table, dict[str, Any]]:
    """The tokens and the GGUF keys. notes: gets a line for each part that GGUF cannot hold."""
    data = read_json(path)
    model = data.get("model")
    if isinstance(model, dict) and (model.get("type") == "WordPiece" or "max_input_chars_per_word" in model):
        return _wordpiece(path, data, model)
    if isinstance(model, dict) and model.get("type") == "Unigram":
        table, values = read_unigram(path, data, model)
        return table, values | read_added(path, data.get("post_processor"))
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or "merges" not in model:
        kind = model.get("type") if isinstance(model, dict) else None
        raise ModelError(
            f"{path}: model.type: expected BPE, WordPiece or Unigram, got {kind!a:.40}; this version converts"
            " them alone"
        )
    table = _tokens(path, model)
    merges = _merges(path, model.get("merges"), frozenset(table.texts.values()))
    put_added(table, added_entries(data.get("added_tokens")))
    values = read_added(path, data.get("post_processor"))
    if model.get("byte_fallback"):
        return table, values | _spaced(path, data, table, merges)
    name = find_pretokenizer(path, data.get("pre_tokenizer"), bool(model.get("ignore_merges")))
    if data.get("normalizer") is not None:
        kind = data["normalizer"].get("type") if isinstance(data["normalizer"], dict) else "?"
        notes.append(f"{path}: normalizer {kind!a:.40} is left out: GGUF has no place for it")
    return table, values | {
        f"{PREFIX}model": "gpt2",
        f"{PREFIX}pre": name,
        f"{PREFIX}merges": [" ".join(merge) for merge in merges],
    }


def _wordpiece(path: Path, data: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[Table, dict[str, Any]]:
    """A WordPiece vocabulary. ModelError unless text is normalized and split as BERT does it."""
    table = _tokens(path, model)
    put_added(table, added_entries(data.get("added_tokens")))
    clean, cut = (data.get(key) or {} for key in ("normalizer", "pre_tokenizer"))
    usual = (clean.get("type"), cut.get("type"), model.get("continuing_subword_prefix", "##"))
    flags = (clean.get("clean_text", True), clean.get("handle_chinese_chars", True))
    if usual != ("BertNormalizer", "BertPreTokenizer", "##") or flags != (True, True):
        raise ModelError(
            f"{path}: expected BertNormalizer, BertPreTokenizer and ##, got {usual!a}, {flags}; other ways to"
            " cut words are not supported"
        )
    lowercase = bool(clean.get("lowercase", True))
    accents = clean.get("strip_accents")
    return table, {
        f"{PREFIX}model": "bert",
        f"{PREFIX}pre": "default",
        f"{PREFIX}add_bos_token": True,
        f"{PREFIX}add_sep_token": True,
        f"{PREFIX}normalizer.lowercase": lowercase,
        f"{PREFIX}normalizer.strip_accents": lowercase if accents is None else bool(accents),
    }


def _tokens(path: Path, model: Mapping[str, Any]) -> Table:
    vocab, unknown = model.get("vocab"), model.get("unk_token")
    table = Table()
    if not isinstance(vocab, dict) or not vocab or len(vocab) > MAX_ENTRIES:
        raise ModelError(f"{path}: model.vocab: expected ids by token, got {str(vocab)[:40]!a}; {AGAIN}")
    for text, id in vocab.items():
        if type(id) is not int or not 0 <= id < MAX_ENTRIES or id in table.texts:
            raise ModelError(
                f"{path}: model.vocab: {quote(text)}: expected an id of its own, got {id!a:.20}; {AGAIN}"
            )
        byte = model.get("byte_fallback") and BYTE_TOKEN.fullmatch(text)
        kind = Kind.BYTE if byte else Kind.UNKNOWN if text == unknown else Kind.NORMAL
        table.put(id, text, kind)
    return table


def _merges(path: Path, merges: object, tokens: frozenset[str]) -> list[tuple[str, str]]:
    """The merges by rank; both parts and what they make are tokens. Newer files write a pair as a list of
    two, older ones as a text with a space.
    """
    if not isinstance(merges, list) or len(merges) > MAX_ENTRIES:
        raise ModelError(f"{path}: model.merges: expected a list of pairs, got {str(merges)[:40]!a}; {AGAIN}")
    pairs = []
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(p, str) and p for p in pair):
            raise ModelError(f"{path}: model.merges: expected pairs, got {str(merge)[:40]!a}; {AGAIN}")
        if not tokens.issuperset((pair[0], pair[1], pair[0] + pair[1])):
            raise ModelError(f"{path}: model.merges: expected tokens, got {str(merge)[:40]!a}; {AGAIN}")
        pairs.append((pair[0], pair[1]))
    return pairs


def _spaced(
    path: Path, data: Mapping[str, Any], table: Table, merges: list[tuple[str, str]]
) -> dict[str, Any]:
    """A SentencePiece vocabulary in BPE form. SentencePiece merges the pair with the highest score first, so
    a token's score is the negative rank of the first merge that makes it.
    """
    index = {text: i for i, text in table.texts.items()}
    for rank, (left, right) in enumerate(merges):
        id = index.get(left + right)
        if id is not None and table.kinds[id] == Kind.NORMAL:
            table.scores.setdefault(id, 0.0)
            table.scores[id] = table.scores[id] or -float(rank + 1)
    worst = -float(len(merges) + 1)
    for id, kind in table.kinds.items():
        if kind == Kind.NORMAL and not table.scores[id]:
            table.scores[id] = worst
    return {
        f"{PREFIX}model": "llama",
        f"{PREFIX}pre": "default",
        f"{PREFIX}add_space_prefix": _prefixes(path, data),
        f"{PREFIX}remove_extra_whitespaces": False,
    }


def _prefixes(path: Path, data: Mapping[str, Any]) -> bool:
    """Whether a space is put before a text: by the normalizers Prepend and Replace, or by the pre-tokenizer
    Metaspace. ModelError for anything else.
    """
    steps = _steps(data.get("normalizer"), "normalizers")
    kinds = [step.get("type") for step in steps]
    cut = _steps(data.get("pre_tokenizer"), "pretokenizers")
    if kinds in (["Prepend", "Replace"], ["Replace"]) and not cut:
        return len(kinds) == 2
    if not kinds and [step.get("type") for step in cut] == ["Metaspace"]:
        scheme = cut[0].get("prepend_scheme", "always" if cut[0].get("add_prefix_space", True) else "never")
        return str(scheme) != "never" and cut[0].get("split") is not True
    raise ModelError(
        f"{path}: expected spaces as U+2581 by Prepend and Replace or by Metaspace, got normalizer"
        f" {str(data.get('normalizer'))[:120]!a} and pre_tokenizer {str(data.get('pre_tokenizer'))[:120]!a};"
        " this is not supported"
    )


def _steps(part: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(part, dict):
        return []
    inner = part.get(name) if part.get("type") == "Sequence" else [part]
    return [step for step in inner if isinstance(step, dict)] if isinstance(inner, list) else []
