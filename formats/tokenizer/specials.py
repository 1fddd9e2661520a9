"""Special tokens: their ids, splitting a text at them, and escaping user text that spells one.

The file's metadata wins over token texts. Ids out of range are ignored with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from satchel.formats.tokenizer.splitting import Cutter, Special
from satchel.formats.tokenizer.vocab import Kind, Meta, Vocab

# Role: its GGUF keys, the current one first.
KEYS: Mapping[str, tuple[str, ...]] = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id", "separator_token_id"),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
}
# Token texts that identify a role where the file has no key for it; the first one in the vocabulary counts.
TEXTS: Mapping[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
        "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
END_TEXTS = (
    *TEXTS["eot"], *TEXTS["eom"], "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "[EOS]", "<eos>",
    "<turn|>", "<|tool_response>", "[e~[", "</s>",
)  # fmt: skip
# Channel markers of the harmony format, which the chat parser must see.
SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# Sets of tokens that identify a format in which `<|end|>` ends a message, not the answer.
HARMONY = (
    ("<|return|>", "<|call|>"),
    ("<|return|>", "<|calls|>"),
    ("<|call|>", "<|flush|>"),
    ("<|calls|>", "<|flush|>"),
)
PIECE = 1 << 16  # characters per call of `re`, which holds the GIL
BRACKETS = frozenset("<>[]{}|｜")


@dataclass(frozen=True)
class SpecialIds:
    """Special ids by role, the tokens added to a text, and the ids that end generation (eog)."""

    bos: int | None = None
    eos: int | None = None
    eot: int | None = None
    eom: int | None = None
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_pad: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    eog: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Adds:
    """The tokens that a kind of tokenizer adds to a text where the file does not say."""

    bos: bool = False
    eos: bool = False
    sep: bool = False


def read_specials(meta: Meta, vocab: Vocab, model: str, adds: Adds) -> tuple[SpecialIds, Vocab]:
    """The special ids, and the vocabulary with corrected token types.

    A token with the text of an end marker becomes a control token whatever its type (llama.cpp's rule): some
    converters mark it as ordinary text, and such a model would never stop.
    """
    types = vocab.types.copy()
    ids = {
        name: _read_id(meta, keys, len(vocab), DEFAULTS.get(model, {}).get(name))
        for name, keys in KEYS.items()
    }
    for name, texts in TEXTS.items():
        if ids[name] is None and (found := _first(vocab, texts)) is not None:
            ids[name] = found
            types[found] = Kind.CONTROL
    ends = {vocab.index[text] for text in END_TEXTS if text in vocab.index}
    if "<|tool_response>" in vocab.index:
        ends.discard(vocab.index.get("</s>", -1))
    types[list(ends)] = Kind.CONTROL
    types[[vocab.index[text] for text in SHOWN if text in vocab.index]] = Kind.USER_DEFINED
    for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"):
        if (token := ids[name]) is not None:
            ends.add(token)
    end = vocab.index.get("<|end|>")
    if end in ends and any(all(text in vocab.index for text in texts) for texts in HARMONY):
        ends.discard(end)
        types[end] = Kind.USER_DEFINED
    flags = {name: _read_add(meta, name, getattr(adds, name), ids[name]) for name in ("bos", "eos", "sep")}
    specials = SpecialIds(
        **ids, add_bos=flags["bos"], add_eos=flags["eos"], add_sep=flags["sep"], eog=frozenset(ends)
    )
    return specials, Vocab(vocab.tokens, vocab.index, types, vocab.scores)


def _read_id(meta: Meta, keys: tuple[str, ...], count: int, default: int | None) -> int | None:
    if default is not None and default >= count:
        default = None
    for key in keys:
        value = meta.integer(key)
        # Some converters write "none" as -1, signed or unsigned.
        if value is None or value in (-1, 0xFFFFFFFF):
            continue
        if 0 <= value < count:
            return value
        meta.warn(key, f"expected an id under {count:,}, got {value}; the key is ignored")
    return default


def _read_add(meta: Meta, name: str, default: bool, token: int | None) -> bool:
    wanted = meta.flag(f"add_{name}_token", default)
    if wanted and token is None:
        meta.warn(f"add_{name}_token", f"the vocabulary has no {name} token, so none is added")
        return False
    return wanted


def _first(vocab: Vocab, texts: Iterable[str]) -> int | None:
    return next((vocab.index[text] for text in texts if text in vocab.index), None)


class Splitter:
    """Splits a text at special tokens as llama.cpp does: longer tokens first, each from left to right."""

    def __init__(self, vocab: Vocab, pre: str, name: str) -> None:
        ids = vocab.ids_of(Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
        stripping = _stripping(pre, name.lower())
        specials = [
            Special(
                i,
                vocab.tokens[i],
                bool(vocab.types[i] == Kind.USER_DEFINED),
                *stripping.get(
                    vocab.tokens[i], (False, "*" in stripping and vocab.tokens[i] not in stripping)
                ),
            )
            for i in ids
        ]
        self.specials = sorted(specials, key=lambda special: -len(special.text.encode()))
        self._cutters: dict[tuple[bool, frozenset[int]], Cutter] = {}

    def split(self, text: str, special: bool, but: Iterable[int] = ()) -> list[str | int]:
        """The ids of the tokens found and the non-empty texts between them, in order.

        special: False finds user-defined tokens only; control tokens stay text. but: ids to ignore.
        """
        key = special, frozenset(but)
        cutter = self._cutters.get(key)
        if cutter is None:
            wanted = [s for s in self.specials if (special or s.parsed_always) and s.id not in key[1]]
            cutter = self._cutters[key] = Cutter(wanted)  # one for each template's markers: they are few
        return cutter.cut(text)


def _stripping(pre: str, name: str) -> dict[str, tuple[bool, bool]]:
    """(lstrip, rstrip) by token text, "*" for all others. GGUF has no such attributes, so they are chosen by
    the model's name.
    """
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return {"<mask>": (True, False)}
    if "phi-3" in name or "phi3" in name:
        plain = (False, False)
        return {"*": plain, "<unk>": plain, "<s>": plain, "<|endoftext|>": plain}
    if "modern-bert" in name:
        return {"[MASK]": (True, False)}
    return {}


class Escape:
    """A reversible mapping of text to text in which no control token can be found.

    Every delimiter of a control token (brackets and bars; for a token without any, its other punctuation, or
    else all of its characters) becomes a private-use character. So no control token can be inside, or
    overlap, any slice of escaped text that contains one of its delimiters. Private-use characters in the text
    that would be ambiguous are prefixed with a mark.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        texts = [text for text in texts if text]
        guarded = sorted(set().union(*map(_delimiters, texts))) if texts else []
        codes = _free_characters(len(guarded) + 1, set().union(*map(set, texts)) if texts else set())
        self._mark = codes[-1]
        self._escapes = str.maketrans(
            dict(zip(guarded, codes, strict=False)) | {code: self._mark + code for code in codes}
        )
        self._back = dict(zip(codes, guarded, strict=False))
        self._border = re.compile(f"[^{''.join(codes)}]")
        self._codes = re.compile(f"{self._mark}[{''.join(codes)}]|[{''.join(codes)}]")

    @property
    def pairs(self) -> dict[str, str]:
        """The guarded characters, and what each becomes."""
        return {char: code for code, char in self._back.items()}

    @property
    def mark(self) -> str:
        """What stands before a private-use character of the text that could be taken for an escape."""
        return self._mark

    def escape(self, text: str) -> str:
        if len(text) <= PIECE:
            return text.translate(self._escapes)
        pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
        return "".join(piece.translate(self._escapes) for piece in pieces)

    def unescape(self, text: str) -> str:
        if text.isascii():
            return text  # nothing is escaped
        if len(text) <= PIECE:
            return self._codes.sub(self._restore, text)
        return "".join(self._codes.sub(self._restore, piece) for piece in self._pieces(text))

    def _pieces(self, text: str) -> Iterator[str]:
        """The text split before characters that are not codes, so never between a mark and its character."""
        at = 0
        while at < len(text):
            border = self._border.search(text, at + PIECE)
            end = border.start() if border else len(text)
            yield text[at:end]
            at = end

    def _restore(self, match: re.Match[str]) -> str:
        found = match[0]
        return found[1] if len(found) == 2 else self._back.get(found, found)


def _delimiters(text: str) -> set[str]:
    chars = set(text)
    marks = {char for char in chars if not char.isalnum() and not char.isspace()}
    return chars & BRACKETS or marks or chars


def _free_characters(count: int, taken: set[str]) -> list[str]:
    """Private-use characters (plane 15) that occur in no special token."""
    free = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in taken)
    return [next(free) for _ in range(count)]


def control_texts(vocab: Vocab) -> list[str]:
    return [vocab.tokens[i] for i in np.flatnonzero(np.isin(vocab.types, (Kind.CONTROL, Kind.UNKNOWN)))]
