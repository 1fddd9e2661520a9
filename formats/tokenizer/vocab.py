"""The token table of a GGUF file: texts, types and scores, checked before they are used.

Invariant: index and tokens of a Vocab agree; every text is unique, not empty and at most MAX_TOKEN long.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError

PREFIX = "tokenizer.ggml."
LOG = logging.getLogger("satchel.tokenizer")
MAX_ENTRIES = 1 << 22  # tokens or merges: ten times the largest vocabulary in use
MAX_TOKEN = 1 << 16  # characters of one token
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
MISSING = object()


class Kind(IntEnum):
    """tokenizer.ggml.token_type, as the format numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Meta:
    """Typed access to a file's tokenizer metadata. Errors name the file, the key, the expected
    and the found.
    """

    values: Mapping[str, Any]
    source: str = ""

    def fail(self, key: str, wanted: str, found: str) -> ModelError:
        where = f"{self.source}: " if self.source else ""
        return ModelError(f"{where}{PREFIX}{key}: expected {wanted}, got {found}; convert the model again")

    def warn(self, key: str, text: str) -> None:
        where = f"{self.source}: " if self.source else ""
        LOG.warning("%s%s%s: %s", where, PREFIX, key, text)

    def get(self, key: str) -> Any:
        return self.values.get(PREFIX + key)

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fail(key, "a string", _describe(value))
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool | np.bool_):
            raise self.fail(key, "a bool", _describe(value))
        return bool(value)

    def integer(self, key: str) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise self.fail(key, "an integer", _describe(value))
        return int(value)

    def strings(self, key: str) -> list[str]:
        """An array of strings. ModelError where it is missing, of another type or too long."""
        value = self.values.get(PREFIX + key, MISSING)
        if value is MISSING or isinstance(value, str | bytes) or not hasattr(value, "__len__"):
            raise self.fail(key, "an array of strings", "nothing" if value is MISSING else _describe(value))
        if len(value) > MAX_ENTRIES:
            raise self.fail(key, f"at most {MAX_ENTRIES:,} strings", f"{len(value):,}")
        items: list[Any] = value.tolist() if hasattr(value, "tolist") else list(value)
        wrong = next((item for item in items if type(item) is not str), "")
        if not isinstance(wrong, str):
            raise self.fail(key, "an array of strings", f"an array with {_describe(wrong)}")
        return items

    def numbers(self, key: str, count: int, kinds: tuple[str, ...]) -> npt.NDArray[Any] | None:
        """An array of at least `count` numbers whose dtype is one of `kinds`; None where it is missing."""
        value = self.get(key)
        if value is None:
            return None
        wanted = f"an array of {count:,} {' or '.join(kinds)}"
        array = _as_array(value)
        if array is None or array.dtype.name not in kinds:
            raise self.fail(key, wanted, _describe(value))
        if len(array) < count:
            raise self.fail(key, wanted, f"{len(array):,} values")
        if len(array) > count:
            self.warn(key, f"{len(array):,} values for {count:,} tokens; the rest is not used")
        return array[:count]


@dataclass(frozen=True)
class Vocab:
    """Token texts by id, ids by text, `types` [n] of Kind, `scores` [n] float32 or None."""

    tokens: list[str]
    index: dict[str, int]
    types: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.tokens)

    def ids_of(self, *kinds: Kind) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(self.types, kinds)).tolist()
        return found


def read_vocab(meta: Meta) -> Vocab:
    """The tokens, types and scores of a file.

    ModelError for a wrong element type, a short array, a duplicate token, or one of more than 65,536
    characters. An empty token is renamed to [EMPTY_i], as in llama.cpp.
    """
    tokens = meta.strings("tokens")
    if not tokens:
        raise meta.fail("tokens", "at least one token", "none")
    if "" in tokens:
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
    if (longest := max(map(len, tokens))) > MAX_TOKEN:
        raise meta.fail("tokens", f"tokens of at most {MAX_TOKEN:,} characters", f"one of {longest:,}")
    index = {text: i for i, text in enumerate(tokens)}
    if len(index) < len(tokens):
        twice = next(i for i, text in enumerate(tokens) if index[text] != i)
        raise meta.fail(
            "tokens", "every token once", f"{tokens[twice]!r:.80} as {twice} and {index[tokens[twice]]}"
        )
    types = meta.numbers("token_type", len(tokens), ("int32", "uint32"))
    if types is None:
        types = np.full(len(tokens), Kind.NORMAL, np.int32)
    types = np.where((types < 0) | (types > Kind.BYTE), Kind.UNDEFINED, types).astype(np.int32)
    scores = meta.numbers("scores", len(tokens), ("float32", "int32"))
    return Vocab(tokens, index, types, None if scores is None else scores.astype(np.float32))


def byte_values(meta: Meta, vocab: Vocab) -> dict[int, int]:
    """The values of the byte tokens `<0xNN>` by id. ModelError for a byte token with another text."""
    values = {}
    for i in vocab.ids_of(Kind.BYTE):
        match = BYTE_TOKEN.fullmatch(vocab.tokens[i])
        if match is None:
            raise meta.fail(
                "tokens", "byte tokens named <0x00> to <0xFF>", f"{vocab.tokens[i]!r:.80} as token {i}"
            )
        values[i] = int(match[1], 16)
    return values


def _as_array(value: Any) -> npt.NDArray[Any] | None:
    """A flat array of numbers; lists of Python numbers become GGUF's 32-bit types."""
    if isinstance(value, np.ndarray):
        return value if value.ndim == 1 else None
    if isinstance(value, list | tuple) and value:
        if all(type(item) is int and abs(item) < 1 << 31 for item in value):
            return np.array(value, np.int32)
        if all(type(item) in (int, float) for item in value):
            return np.array(value, np.float32)
    return None


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name}"
    if hasattr(value, "__len__") and not isinstance(value, str | bytes):
        return f"an array of {len(value):,} values"
    return f"{type(value).__name__} {value!r:.60}"
