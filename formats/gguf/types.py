"""GGUF's constants: value types of metadata, and the block size and bytes of every tensor type.

A test compares them with the gguf package, which is the reference. It is not imported here, because that
would double the time of opening a file.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
HEADER_BYTES = 24  # magic, version, number of tensors, number of keys

U32 = Struct("<I")
U64 = Struct("<Q")


class ValueType(IntEnum):
    """The type of a metadata value, with GGUF's number."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


INTEGERS = frozenset(
    (
        ValueType.UINT8,
        ValueType.INT8,
        ValueType.UINT16,
        ValueType.INT16,
        ValueType.UINT32,
        ValueType.INT32,
        ValueType.UINT64,
        ValueType.INT64,
    )
)
FLOATS = frozenset((ValueType.FLOAT32, ValueType.FLOAT64))

DTYPES: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}
# Not numpy's type letters: its "L" is a C long of 8 bytes, struct's "<L" has 4.
SCALARS: dict[ValueType, Struct] = {
    kind: Struct("<" + letter) for kind, letter in zip(DTYPES, "BbHhIif?Qqd", strict=True)
}


class TensorType(NamedTuple):
    """A tensor type: a block of `block` elements takes `size` bytes."""

    name: str
    block: int
    size: int


TENSOR_TYPES: dict[int, TensorType] = {
    number: TensorType(*fields)
    for number, fields in {
        0: ("f32", 1, 4),
        1: ("f16", 1, 2),
        2: ("q4_0", 32, 18),
        3: ("q4_1", 32, 20),
        6: ("q5_0", 32, 22),
        7: ("q5_1", 32, 24),
        8: ("q8_0", 32, 34),
        9: ("q8_1", 32, 40),
        10: ("q2_k", 256, 84),
        11: ("q3_k", 256, 110),
        12: ("q4_k", 256, 144),
        13: ("q5_k", 256, 176),
        14: ("q6_k", 256, 210),
        15: ("q8_k", 256, 292),
        16: ("iq2_xxs", 256, 66),
        17: ("iq2_xs", 256, 74),
        18: ("iq3_xxs", 256, 98),
        19: ("iq1_s", 256, 50),
        20: ("iq4_nl", 32, 18),
        21: ("iq3_s", 256, 110),
        22: ("iq2_s", 256, 82),
        23: ("iq4_xs", 256, 136),
        24: ("i8", 1, 1),
        25: ("i16", 1, 2),
        26: ("i32", 1, 4),
        27: ("i64", 1, 8),
        28: ("f64", 1, 8),
        29: ("iq1_m", 256, 56),
        30: ("bf16", 1, 2),
        34: ("tq1_0", 256, 54),
        35: ("tq2_0", 256, 66),
        39: ("mxfp4", 32, 17),
        40: ("nvfp4", 64, 36),
        41: ("q1_0", 128, 18),
        42: ("q2_0", 64, 18),
        # Extension types of Satchel (docs/formats.md), far above the numbers that ggml assigns.
        2001: ("f8_e4m3", 128, 132),
        2002: ("f8_e5m2", 128, 132),
        2003: ("i8_g128", 128, 132),
    }.items()
}
EXTENSION_TYPES = frozenset(kind.name for number, kind in TENSOR_TYPES.items() if number > 2000)
EXTENSIONS_KEY = "satchel.extension_types"  # lists the extension types in a file
REMOVED_TYPES = frozenset((4, 5, 31, 32, 33, 36, 37, 38))
TYPE_IDS: dict[str, int] = {kind.name: number for number, kind in TENSOR_TYPES.items()}

# Types that numpy can view without a block format.
PLAIN_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "f64": np.dtype("<f8"),
    "i8": np.dtype("i1"),
    "i16": np.dtype("<i2"),
    "i32": np.dtype("<i4"),
    "i64": np.dtype("<i8"),
}
