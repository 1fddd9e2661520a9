"""Metadata values with their GGUF types. A value that is read and written again keeps its exact bytes.

A value is a Python bool, int, float or str, a numpy array, or a StringArray, which decodes on demand.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import isfinite
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf.check import quote
from satchel.formats.gguf.types import DTYPES, FLOATS, SCALARS, U32, U64, ValueType


class StringArray(Sequence[str]):
    """An array of length-prefixed strings, as in the file. A string is decoded when it is accessed.

    data: the bytes. starts: n + 1 offsets; string i is data[starts[i] : starts[i + 1] - 8]. Accessing a
    string that is not valid UTF-8 gives ModelError; `raw` returns its bytes.
    """

    __slots__ = ("_data", "_starts", "_where")

    def __init__(self, data: bytes, starts: array[int], where: str = "strings") -> None:
        self._data, self._starts, self._where = data, starts, where

    @classmethod
    def of(cls, strings: Iterable[str | bytes]) -> StringArray:
        starts, packed = array("Q", [8]), bytearray()
        for string in strings:
            raw = encode_text(string) if isinstance(string, str) else string
            packed += U64.pack(len(raw)) + raw
            starts.append(len(packed) + 8)
        return cls(bytes(packed), starts)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._decode(i) for i in range(len(self))[index]]
        return self._decode(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return self.packed() == other.packed()
        return self.tolist() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"

    def tolist(self) -> list[str]:
        """All strings as a list. A vocabulary of 150,000 tokens takes 20 ms."""
        data = self._data
        try:
            return [data[start : end - 8].decode() for start, end in pairwise(self._starts)]
        except UnicodeDecodeError:
            return [self._decode(i) for i in range(len(self))]

    def raw(self, index: int) -> bytes:
        index = range(len(self))[index]
        return self._data[self._starts[index] : self._starts[index + 1] - 8]

    def packed(self) -> bytes:
        """The strings as in the file, each with its length prefix."""
        return self._data[self._starts[0] - 8 : self._starts[-1] - 8]

    def _decode(self, index: int) -> str:
        raw = self.raw(index)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            reason = f"expected UTF-8, got {quote(raw)} ({error.reason})"
            raise ModelError(f"{self._where}: string {index}: {reason}; convert the model again") from None


NumberArray: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = bool | int | float | str | NumberArray | StringArray


@dataclass(frozen=True, slots=True)
class Typed:
    """A value and its GGUF type."""

    type: ValueType
    value: Value
    element: ValueType | None = None  # the type of an array's elements; None for scalars and strings

    @property
    def type_name(self) -> str:
        return self.type.name.lower() if self.element is None else f"array of {self.element.name.lower()}"


def encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RequestError(
            f"metadata: {quote(text)} holds half a surrogate pair and can't be UTF-8"
        ) from None


def typed(value: Value | Sequence[Any] | Typed, kind: ValueType | None = None) -> Typed:
    """A value with its GGUF type. kind: the type, or an array's element type.

    Without `kind`: bool, float32 or string; uint32 for integers from 0, int32 for negative ones, 64 bits
    where needed; int32, float32 or bool arrays for lists. RequestError where the value does not fit the type.
    """
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool | int | float | str):
        scalar = _usual(value) if kind is None else kind
        pack_scalar(scalar, value)
        return Typed(scalar, value)
    if isinstance(value, StringArray):
        return Typed(ValueType.ARRAY, value, ValueType.STRING)
    if not isinstance(value, np.ndarray):
        if not isinstance(value, list | tuple):
            raise RequestError(f"metadata: expected a value or a list of values, got {quote(repr(value))}")
        if kind is ValueType.STRING or (kind is None and value and isinstance(value[0], str | bytes)):
            return Typed(ValueType.ARRAY, _string_array(value), ValueType.STRING)
        value = _number_array(value, kind)
    element = next((k for k, dtype in DTYPES.items() if dtype == value.dtype), None)
    if element is None or value.ndim != 1 or kind not in (None, element):
        raise RequestError(
            f"metadata: expected a flat array of GGUF's number types, got {value.dtype} {value.shape}"
        )
    return Typed(ValueType.ARRAY, value, element)


def _usual(value: bool | int | float | str) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, str):
        return ValueType.STRING
    if isinstance(value, float):
        return ValueType.FLOAT32
    if value < 0:
        return ValueType.INT32 if value >= -(1 << 31) else ValueType.INT64
    return ValueType.UINT32 if value < 1 << 32 else ValueType.UINT64


def _string_array(values: Sequence[Any]) -> StringArray:
    if not all(isinstance(value, str | bytes) for value in values):
        raise RequestError(f"metadata: expected strings, got {quote(repr(values))}")
    return StringArray.of(values)


def _number_array(values: Sequence[Any], kind: ValueType | None) -> NumberArray:
    if kind is None:
        if not values:
            raise RequestError("metadata: an empty list needs its element type")
        kinds = {bool: ValueType.BOOL, int: ValueType.INT32, float: ValueType.FLOAT32}
        kind = kinds.get(type(values[0])) if len(set(map(type, values))) == 1 else None
    if kind is None or kind not in DTYPES:
        raise RequestError(f"metadata: expected a sequence of numbers, got {quote(repr(values))}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, DTYPES[kind])
    except (OverflowError, TypeError, ValueError):
        array = None
    # numpy silently truncates 1.5 to 1, converts True to 1, and turns a float that is too large into
    # infinity.
    if array is None or array.ndim != 1 or not all(map(partial(_same, kind), values, array.tolist())):
        raise RequestError(f"metadata: expected an array of {kind.name.lower()}, got {quote(repr(values))}")
    return array


def _same(kind: ValueType, value: Any, stored: bool | int | float) -> bool:
    """Whether the stored number equals the given one, apart from the rounding of floats."""
    if isinstance(value, bool | np.bool_) != (kind is ValueType.BOOL):
        return False
    if not isinstance(value, int | float | np.number | np.bool_):
        return False
    if kind in FLOATS:
        return isfinite(stored) or not isfinite(value)
    return isinstance(value, int | np.integer | np.bool_) and value == stored


def pack_scalar(kind: ValueType, value: object) -> bytes:
    """The bytes of a scalar or string. RequestError where the value has another type or is out of range."""
    if kind is ValueType.STRING and isinstance(value, str):
        raw = encode_text(value)
        return U64.pack(len(raw)) + raw
    exact = (kind is ValueType.BOOL) == isinstance(value, bool) and isinstance(value, bool | int | float)
    if exact and kind in SCALARS:
        try:
            return SCALARS[kind].pack(value)
        except (OverflowError, struct.error):
            pass
    raise RequestError(f"metadata: expected {kind.name.lower()}, got {quote(repr(value))}")


def pack(value: Typed) -> bytes:
    """A value as it follows its key in a file: the type number, then the bytes."""
    if value.element is None:
        return U32.pack(value.type) + pack_scalar(value.type, value.value)
    head = U32.pack(ValueType.ARRAY) + U32.pack(value.element)
    if isinstance(value.value, StringArray):
        return head + U64.pack(len(value.value)) + value.value.packed()
    numbers = np.ascontiguousarray(value.value, DTYPES[value.element])
    return head + U64.pack(len(numbers)) + numbers.tobytes()
