"""Metadata as a read-only mapping with typed getters. Their errors name the key, the expected and the found
value.

A getter without `default` requires the key. Integers of all widths are accepted as integers; no other type is
converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from math import inf, isfinite
from typing import Any, Literal, TypeVar, overload

import numpy as np

from satchel.formats.gguf.check import Fault, quote
from satchel.formats.gguf.types import FLOATS, INTEGERS, ValueType
from satchel.formats.gguf.values import NumberArray, StringArray, Typed, Value, typed

U32_MAX = (1 << 32) - 1


class Needed(Enum):
    """The type of NEEDED, the default value that means "the key is required"."""

    NEEDED = "needed"


NEEDED = Needed.NEEDED
D = TypeVar("D")
Kind = Literal["int", "float", "bool", "str"]
KINDS: dict[Kind, frozenset[ValueType]] = {
    "int": INTEGERS,
    "float": FLOATS,
    "bool": frozenset((ValueType.BOOL,)),
    "str": frozenset((ValueType.STRING,)),
}


class Metadata(Mapping[str, Value]):
    """Metadata values by key, in the file's order. source: names the file in errors."""

    __slots__ = ("_values", "source")

    def __init__(self, values: Mapping[str, Typed], source: str = "metadata") -> None:
        self._values, self.source = dict(values), source

    @classmethod
    def of(cls, values: Mapping[str, Value | Typed | Sequence[Any]], source: str = "metadata") -> Metadata:
        """Metadata of plain values, each with its default GGUF type (see `typed`)."""
        return cls({key: typed(value) for key, value in values.items()}, source)

    def __getitem__(self, key: str) -> Value:
        return self._values[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({self.source}: {len(self)} keys)"

    def typed(self, key: str) -> Typed:
        """The value with its GGUF type. KeyError where the key is missing."""
        return self._values[key]

    def fault(self, key: str, expected: str, got: object, do: str = "convert the model again") -> Fault:
        """The error for a value that is valid GGUF but wrong for the model."""
        return Fault(self.source, key, None, f"expected {expected}, got {got}", do)

    def get_uint(
        self, key: str, default: D | Literal[Needed.NEEDED] = NEEDED, *, low: int = 0, high: int = U32_MAX
    ) -> int | D:
        """An integer in low..high, of any width and sign."""
        wanted = f"an integer from {low} to {high}"
        found = self._values.get(key)
        if found is None:
            return self._missing(key, default, wanted)
        return int(self._bounded(key, self._scalar(key, found, "int", wanted), low, high, wanted))

    def get_uints(
        self,
        key: str,
        count: int,
        default: D | Literal[Needed.NEEDED] = NEEDED,
        *,
        low: int = 0,
        high: int = U32_MAX,
    ) -> tuple[int, ...] | D:
        """`count` integers in low..high, from an array of that length or from one integer that is repeated
        (per-layer keys)."""
        wanted = f"{count} integers from {low} to {high}"
        found = self._values.get(key)
        if found is None:
            return self._missing(key, default, wanted)
        if found.type is not ValueType.ARRAY:
            return (self.get_uint(key, low=low, high=high),) * count
        numbers = self.get_array(key, kind="int", length=count).tolist()
        return tuple(self._bounded(f"{key}[{i}]", n, low, high, wanted) for i, n in enumerate(numbers))

    def get_float(
        self, key: str, default: D | Literal[Needed.NEEDED] = NEEDED, *, low: float = -inf, high: float = inf
    ) -> float | D:
        """A finite float in low..high."""
        bounds = "" if (low, high) == (-inf, inf) else f" from {low:g} to {high:g}"
        wanted = f"a finite float{bounds}"
        found = self._values.get(key)
        if found is None:
            return self._missing(key, default, wanted)
        number = self._scalar(key, found, "float", wanted)
        if not isfinite(number):
            raise self.fault(key, wanted, number)
        return float(self._bounded(key, number, low, high, wanted))

    def get_bool(self, key: str, default: D | Literal[Needed.NEEDED] = NEEDED) -> bool | D:
        found = self._values.get(key)
        if found is None:
            return self._missing(key, default, "a bool")
        return bool(self._scalar(key, found, "bool", "a bool"))

    def get_str(self, key: str, default: D | Literal[Needed.NEEDED] = NEEDED) -> str | D:
        found = self._values.get(key)
        if found is None:
            return self._missing(key, default, "a string")
        return str(self._scalar(key, found, "str", "a string"))

    @overload
    def get_array(
        self,
        key: str,
        default: D | Literal[Needed.NEEDED] = NEEDED,
        *,
        kind: Literal["str"],
        length: int | None = None,
    ) -> StringArray | D: ...
    @overload
    def get_array(
        self,
        key: str,
        default: D | Literal[Needed.NEEDED] = NEEDED,
        *,
        kind: Literal["int", "float", "bool"],
        length: int | None = None,
    ) -> NumberArray | D: ...
    def get_array(
        self,
        key: str,
        default: D | Literal[Needed.NEEDED] = NEEDED,
        *,
        kind: Kind,
        length: int | None = None,
    ) -> StringArray | NumberArray | D:
        """An array of `kind`, with `length` elements where one is given. Floats may be NaN or infinite; the
        caller checks them."""
        found = self._values.get(key)
        wanted = f"an array of {'' if length is None else f'{length} '}{kind} values"
        if found is None:
            return self._missing(key, default, wanted)
        if found.element not in KINDS[kind] or not isinstance(found.value, StringArray | np.ndarray):
            raise self.fault(key, wanted, _shown(found))
        if length is not None and len(found.value) != length:
            raise self.fault(key, wanted, f"{len(found.value)} values")
        return found.value

    def _scalar(self, key: str, found: Typed, kind: Kind, wanted: str) -> Any:
        if found.type not in KINDS[kind]:
            raise self.fault(key, wanted, _shown(found))
        return found.value

    def _missing(self, key: str, default: D | Literal[Needed.NEEDED], wanted: str) -> D:
        if isinstance(default, Needed):
            raise self.fault(key, wanted, "no such key")
        return default

    def _bounded(self, key: str, number: Any, low: float, high: float, wanted: str) -> Any:
        if not low <= number <= high:
            raise self.fault(key, wanted, number)
        return number


def _shown(value: Typed) -> str:
    if value.element is not None:
        return value.type_name
    return f"{value.type_name} {quote(value.value) if isinstance(value.value, str) else value.value}"
