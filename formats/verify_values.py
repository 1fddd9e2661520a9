"""Checks every weight of a file for NaN, infinity, and codes outside of their format's tables.

Only scales and plain numbers are looked at where that is enough; what looks bad is decoded by the format's
definition before it is called so. The file is read through its mapping, in chunks, by a few threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.errors.threads import SafeThreadPool
from satchel.formats.gguf import GGUF, TensorInfo
from satchel.quant import FORMATS, Format
from satchel.quant.format import Blocks

Mask = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]  # bytes done, bytes in all
CHUNK = 4 << 20  # bytes: a chunk and its masks stay in the cache
THREADS = 2
FEW_BITS = 16  # a float16 below this many steps above zero has lost most of its precision

# By kind of damage: its description, and whether it is an error or a warning.
NOT_A_NUMBER, NO_CODE, SUBNORMAL = "NaN or infinity", "codes out of their table", "subnormal numbers only"


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with one tensor."""

    tensor: str
    kind: str
    row: int  # the first damaged row
    part: int  # the file of a split set that holds it
    at: int  # byte offset of the first damage in that file
    count: int  # damaged blocks (rows, where a format has no blocks)
    total: int  # all blocks

    @property
    def grave(self) -> bool:
        return self.kind != SUBNORMAL


def scan(
    gguf: GGUF, *, skip: Collection[str] = (), threads: int = THREADS, progress: Progress | None = None
) -> list[Damage]:
    """The damage of every tensor that this version can decode, in file order; `skip` names those left out.

    ModelError where the file becomes shorter meanwhile.
    """
    infos = [i for i in gguf.tensors.values() if i.name not in skip and i.nbytes and i.format in FORMATS]
    done, total = 0, sum(info.nbytes for info in infos)
    found: dict[tuple[str, str], Damage] = {}
    with SafeThreadPool(threads, "satchel-scan") as pool:
        # The queue is short: a file of a terabyte has 250,000 chunks.
        waiting: deque[tuple[int, Future[list[Damage]]]] = deque()
        for piece in (piece for info in infos for piece in _pieces(gguf, info)):
            waiting.append((piece.data.nbytes, pool.submit(piece.look)))
            while len(waiting) > 4 * threads:
                done += _collect(found, *waiting.popleft())
                if progress:
                    progress(done, total)
        while waiting:
            done += _collect(found, *waiting.popleft())
            if progress:
                progress(done, total)
    return list(found.values())


def _collect(found: dict[tuple[str, str], Damage], nbytes: int, future: Future[list[Damage]]) -> int:
    for damage in future.result():
        key = (damage.tensor, damage.kind)
        first = found.get(key)
        found[key] = replace(first, count=first.count + damage.count) if first else damage
    return nbytes


@dataclass(frozen=True, slots=True)
class _Piece:
    """Whole rows of a tensor."""

    info: TensorInfo
    fmt: Format
    data: Blocks  # (rows, blocks per row) of the format's dtype
    first: int

    def look(self) -> list[Damage]:
        row_bytes = self.data.shape[1] * self.data.dtype.itemsize
        rows = self.info.nbytes // max(1, row_bytes)
        damages = []
        for kind, bad in judge(self.fmt, self.data).items():
            row, block = (int(at[0]) for at in np.nonzero(bad))
            at = self.info.offset + (self.first + row) * row_bytes + block * self.data.dtype.itemsize
            total = rows * bad.shape[1]
            count = int(bad.sum())
            damages.append(Damage(self.info.name, kind, self.first + row, self.info.part, at, count, total))
        return damages


def _pieces(gguf: GGUF, info: TensorInfo) -> Iterator[_Piece]:
    fmt = FORMATS[info.format]
    blocks = (info.shape[-1] if info.shape else 1) // fmt.block
    part, row_bytes = gguf.parts[info.part], blocks * fmt.block_bytes
    rows, step = info.nbytes // row_bytes, max(1, CHUNK // row_bytes)
    for first in range(0, rows, step):
        raw = part.view(info.offset + first * row_bytes, min(step, rows - first) * row_bytes)
        yield _Piece(info, fmt, raw.view(fmt.dtype).reshape(-1, blocks), first)


def judge(fmt: Format, blocks: Blocks) -> dict[str, Mask]:
    """The masks by kind of damage that are not empty: (rows, blocks), or (rows, 1) for plain numbers.

    blocks: (rows, blocks per row).
    """
    if blocks.dtype.names is None:
        masks = _judge_plain(fmt, blocks)
    else:
        masks = _judge_scales(fmt, blocks)
        if fmt.name in CODES:
            masks[NO_CODE] = CODES[fmt.name](blocks)
    return {kind: mask for kind, mask in masks.items() if mask.any()}


def _judge_plain(fmt: Format, numbers: Blocks) -> dict[str, Mask]:
    """Rows of f32, f16, bf16 or f64, by their largest number's bits; integers are always numbers."""
    if fmt.name not in EXPONENTS or not numbers.shape[1]:
        return {}
    word, exponent, normal = EXPONENTS[fmt.name]
    sign = word.type(1 << (8 * word.itemsize - 1))
    largest = (numbers.view(word) & word.type(~sign)).max(axis=1, keepdims=True)
    return {NOT_A_NUMBER: largest >= word.type(exponent), SUBNORMAL: (largest > 0) & (largest < normal)}


def _judge_scales(fmt: Format, blocks: Blocks) -> dict[str, Mask]:
    suspect = np.zeros(blocks.shape, np.bool_)
    weak = np.zeros(blocks.shape, np.bool_)
    for name in blocks.dtype.names or ():
        kind = blocks.dtype[name]
        if kind == np.float16:
            bits = blocks[name].view(np.uint16) & np.uint16(0x7FFF)
            suspect |= bits >= 0x7C00
            if name == "d":
                weak = (bits > 0) & (bits < FEW_BITS)
        elif kind == np.float32:
            # The scale is finite, but its product with a code can overflow.
            suspect |= (blocks[name].view(np.uint32) & np.uint32(0x7FFFFFFF)) >= 0x70000000
    if fmt.name in SUSPECTS:
        suspect |= SUSPECTS[fmt.name](blocks)
    bad = suspect.copy()
    if suspect.any():
        decoded = fmt.decode(blocks[suspect]).reshape(int(suspect.sum()), -1)
        bad[suspect] = ~np.isfinite(decoded).all(axis=-1)
    return {NOT_A_NUMBER: bad, SUBNORMAL: weak}


def _split_scale(blocks: Blocks) -> Mask:
    """iq1_m keeps its scale in four nibbles; the top one has the exponent's upper three bits, of which a
    number has at least one clear."""
    limit = np.array([0xC000, 0x7000], np.uint16)
    return np.asarray(np.all((blocks["scales"][..., 2:] & limit) == limit, axis=-1), np.bool_)


def _codes(blocks: Blocks) -> Blocks:
    """The codes: the last field, after the scale."""
    codes: Blocks = blocks[(blocks.dtype.names or ())[-1]]
    return codes


def _any(mask: npt.NDArray[Any]) -> Mask:
    return np.asarray(np.any(mask, axis=-1), np.bool_)


def _ternary(blocks: Blocks) -> Mask:
    return _any(~_POWERS[blocks["qs"]]) | _any(~_POWERS[blocks["qh"]])


# A byte of tq1_0 holds v < 243 (five digits of base three) as ceil(256 v / 243).
_POWERS = np.zeros(256, np.bool_)
_POWERS[[(256 * value + 242) // 243 for value in range(243)]] = True

# Of plain numbers: word, least bits of what is no number, least bits of what is normal.
EXPONENTS: Mapping[str, tuple[np.dtype[Any], int, int]] = {
    "f32": (np.dtype("<u4"), 0x7F800000, 0x00800000),
    "f16": (np.dtype("<u2"), 0x7C00, 0x0400),
    "bf16": (np.dtype("<u2"), 0x7F80, 0x0080),
    # A value that overflows float32, in which everything is computed, counts as infinite too.
    "f64": (np.dtype("<u8"), 0x47EFFFFFF0000000, 0x3810000000000000),
}
# Blocks that may decode to no number though no field of floats says so.
SUSPECTS: Mapping[str, Callable[[Blocks], Mask]] = {
    "iq1_m": _split_scale,
    "f8_e4m3": lambda b: _any((_codes(b) & 0x7F) == 0x7F),
    "f8_e5m2": lambda b: _any((_codes(b) & 0x7C) == 0x7C),
    "mxfp4": lambda b: b["e"] > 252,
}
# Formats with invalid codes. In all other formats every bit pattern is a valid code.
CODES: Mapping[str, Callable[[Blocks], Mask]] = {
    "tq1_0": _ternary,
    "tq2_0": lambda b: _any(b["qs"] & b["qs"] >> 1 & 0x55),
    "mxfp4": lambda b: b["e"] == 0xFF,
    "nvfp4": lambda b: _any(b["scales"] >= 0x7F),
}
