"""Test cases of the recurrent ops: pieces that start at position 0 or continue inside blocks and across their
ends, single tokens, heads of odd sizes, positions without a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from elementwise_cases import wide
from one_step import CASES, Case, case, f32, i32

from satchel.runtime.graph import Array

__all__ = ["CASES"]
BLOCK, PAGES = 8, 12
GONE = -1
# (slot, first position, length) of each piece, and the blocks that are not allocated.
STEPS: dict[str, tuple[tuple[tuple[int, int, int], ...], set[tuple[int, int]]]] = {
    "one": (((0, 5, 1),), set()),
    "begin": (((0, 0, 1), (2, 0, 11)), {(2, 0)}),
    "border": (((1, 7, 1), (0, 8, 1), (2, 15, 3)), set()),
    "long": (((1, 3, 30), (0, 14, 5)), {(1, 1), (1, 2)}),
}
Operand = tuple[Array, str]


def placed(step: str) -> tuple[int, tuple[Operand, ...]]:
    """The number of tokens, then slot, pos and table (3, 5)."""
    pieces, gone = STEPS[step]
    table = np.array([[3, 0, 7, 1, 2], [5, 4, 6, 8, 11], [9, 10, 1, 2, 3]], np.int32)
    for place in gone:
        table[place] = GONE
    slot = [s for s, _, n in pieces for _ in range(n)]
    pos = [p for _, at, n in pieces for p in range(at, at + n)]
    return len(slot), (i32(*slot), i32(*pos), (table, "i32"))


@case("sigmoid")
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("small", (f32(rng, 5, 77, scale=3),), (5, 77))
    yield Case("wide", ((wide(), "f32"),), wide().shape)


@case("softplus")
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("small", (f32(rng, 5, 77, scale=3),), (5, 77))
    yield Case("wide", ((np.clip(wide(), -3e38, 1e15), "f32"),), wide().shape)


@case("short_conv")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for step, channels, taps, bias in (
        ("one", 64, 4, False),
        ("begin", 70, 4, True),
        ("border", 5, 2, False),
        ("long", 200, 3, True),
        ("long", 16, 9, False),
    ):
        n, where = placed(step)
        state = f32(rng, PAGES, taps - 1, channels)
        more = (f32(rng, channels),) if bias else ()
        inputs = (f32(rng, n, channels), state, f32(rng, channels, taps), *where, *more)
        yield Case(f"{step} {channels}", inputs, (n, channels), args={"block": BLOCK})


@case("conv_write")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for step, channels, taps in (("long", 130, 4), ("begin", 70, 9), ("border", 5, 4), ("one", 16, 2)):
        n, where = placed(step)
        inputs = (f32(rng, PAGES, taps - 1, channels), f32(rng, n, channels), *where)
        yield Case(f"{step} {channels}", inputs, (), args={"block": BLOCK}, bound=0)


def scanned(
    rng: np.random.Generator, step: str, sizes: tuple[int, int, int, int], fade: float
) -> list[Operand]:
    """k, g and the places, then q, v and beta. sizes: H, G, N, P."""
    (n, where), (heads, groups, keys, size) = placed(step), sizes
    k, q = f32(rng, n, groups, keys, scale=keys**-0.5), f32(rng, n, groups, keys)
    g = (-np.abs(f32(rng, n, heads)[0]) * np.float32(fade), "f32")
    return [k, g, *where, q, f32(rng, n, heads, size), (rng.random((n, heads), np.float32), "f32")]


SCANS = (
    ("one", (4, 2, 32, 16), 1.0, 1),
    ("begin", (6, 2, 20, 33), 0.1, 0),
    ("border", (3, 1, 7, 5), 50.0, 0),
    ("long", (4, 4, 64, 64), 0.05, 1),
    ("long", (2, 2, 1, 130), 300.0, 0),
)


@case("gated_scan")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for step, sizes, fade, tiled in SCANS:
        k, g, *where, q, v, beta = scanned(rng, step, sizes, fade)
        heads, _, keys, size = sizes
        state = f32(rng, PAGES, heads, keys, size)
        for delta in (0, 1):
            args = {"block": BLOCK, "delta": delta, "tiled": tiled}
            shape = (len(v[0]), heads, 2 * size)
            yield Case(f"{step} {sizes} {delta}", (q, k, v, g, beta, state, *where), shape, args=args)


def fused_scan(
    rng: np.random.Generator,
    pieces: tuple[tuple[int, int, int], ...],
    sizes: tuple[int, int, int, int],
    fade: float,
    **how: int,
) -> Case:
    """A call of gated_scan_write whose pieces (slot, first position, length) have pages at their ends, and at
    every third block's.
    """
    (heads, groups, keys, size), block = sizes, how["block"]
    n = sum(length for *_, length in pieces)
    table = np.full((len(pieces), 1 + max(at + length for _, at, length in pieces) // block), GONE, np.int32)
    pages = itertools.count()
    for place, at, length in pieces:
        ends = (p for p in range(at, at + length) if (p + 1) % block == 0 and p // block % 3 == 0)
        for border in sorted({p // block for p in (max(at - 1, 0), at + length - 1, *ends)}):
            table[place, border] = next(pages)
    slot = i32(*(s for s, _, length in pieces for _ in range(length)))
    pos = i32(*(p for _, at, length in pieces for p in range(at, at + length)))
    k, _ = f32(rng, n, groups, keys)
    unit = (k / np.linalg.norm(k, axis=-1, keepdims=True)).astype(np.float32), "f32"
    g = (-np.abs(f32(rng, n, heads)[0]) * np.float32(fade), "f32")
    v, beta = f32(rng, n, heads, size), (rng.random((n, heads), np.float32), "f32")
    state = f32(rng, next(pages), heads, keys, size)
    inputs = (f32(rng, n, groups, keys), unit, v, g, beta, state, slot, pos, (table, "i32"))
    return Case(f"{n} {sizes} {how} {fade}", inputs, (n, heads, size), args=how, bound=1e-5)


FUSED_SCANS = (
    (((0, 5, 1),), (4, 2, 128, 128), 0.1),
    (((0, 5, 1), (1, 0, 20), (2, 8, 3)), (4, 2, 64, 36), 0.1),
    (((0, 5, 1), (1, 8, 30)), (2, 1, 200, 36), 0.1),
    (((0, 0, 150),), (2, 2, 128, 32), 0.05),
    (((0, 5, 1), (1, 3, 150), (2, 64, 16), (3, 63, 15), (4, 0, 70)), (4, 2, 64, 40), 0.1),
    (((0, 3, 190),), (3, 1, 8, 4), 1.0),
    (((0, 0, 65), (1, 63, 66)), (6, 2, 128, 64), 300.0),
    (((0, 30, 200),), (2, 1, 128, 128), 0.0),
)


@case("gated_scan_write")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for i, (pieces, sizes, fade) in enumerate(FUSED_SCANS):
        for delta in (0, 1):
            yield fused_scan(rng, pieces, sizes, fade, block=(8, 16, 32)[i % 3], delta=delta, tiled=i % 2)


@case("scan_write")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for step, sizes, fade, tiled in reversed(SCANS):
        k, g, *where, _, v, _ = scanned(rng, step, sizes, fade)
        heads, _, keys, size = sizes
        made = f32(rng, len(v[0]), heads, 2 * size)
        state = f32(rng, PAGES, heads, keys, size)
        yield Case(f"{step} {sizes}", (state, k, made, g, *where), (), args={"block": BLOCK, "tiled": tiled})
