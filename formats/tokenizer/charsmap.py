"""Checks the precompiled normalization table of a Unigram vocabulary, so that no look-up can leave it.

Layout: u32 size of the trie in bytes; the trie, a double array of u32 units; then zero-terminated replacement
strings. The sentencepiece library does not check bounds when it walks the trie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.formats.tokenizer.vocab import Meta

KEY = "precompiled_charsmap"
LEAF = np.uint32(1 << 31)
BLOCK = 1024  # bytes: the library builds and accepts only whole blocks of 256 units


def read_charsmap(meta: Meta) -> bytes:
    """The table's bytes; b"" where the file has none. ModelError for a table that points outside itself."""
    value = meta.get(KEY)
    if value is None:
        return b""
    if not isinstance(value, np.ndarray) or value.dtype.name not in ("uint8", "int8"):
        raise meta.fail(
            KEY, "an array of uint8", f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip()
        )
    data = value.tobytes()
    if not data:
        return data
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or not 0 < size <= len(data) - 4 or size % BLOCK:
        wanted = f"a trie size that is a multiple of {BLOCK} and at most {len(data) - 4}"
        raise meta.fail(KEY, wanted, f"{size} in an array of {len(data)} bytes")
    _check_trie(meta, np.frombuffer(data, "<u4", size // 4, 4), data[4 + size :])
    return data


def _check_trie(meta: Meta, units: npt.NDArray[Any], strings: bytes) -> None:
    """Checks that every unit's children are inside the array, and every leaf's offset inside the strings."""
    leaf = (units & LEAF) != 0
    offsets = (units >> 10) << ((units & np.uint32(1 << 9)) >> np.uint32(6))
    # A child is at (position ^ offset) ^ label, and labels are below 256, a block of units.
    children = np.arange(len(units), dtype=np.uint32) ^ offsets
    outside = np.flatnonzero(~leaf & (children >= len(units)))
    if len(outside):
        at = int(outside[0])
        raise meta.fail(KEY, f"children below unit {len(units)}", f"{int(children[at])} at unit {at}")
    ends = units[leaf] & ~LEAF
    if len(ends) and int(ends.max()) >= len(strings):
        raise meta.fail(KEY, f"replacements below byte {len(strings)}", f"one at {int(ends.max())}")
    if not strings.endswith(b"\0"):
        raise meta.fail(KEY, "a zero byte after the last replacement", "none")
