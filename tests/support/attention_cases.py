"""Test cases of kv_write, hadamard and attention: every cache format, ragged batches, windows, and positions
around the borders of blocks, spans and chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from one_step import CASES, Case, case, extremes, f32, i32, random_blocks

from satchel.quant import FORMATS
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime.graph import Array

BLOCK = 16
Tokens = list[tuple[int, int]]  # (slot, position) of each token
PROMPT: Tokens = [(0, p) for p in range(5, 45)]
RAGGED: Tokens = [(1, 30), (0, 0), (0, 1), (0, 2), (2, 100), (1, 31)]
BORDER = (0, 15, 16, 63, 64, 511, 512, 513, 1023, 1024, 2600)
BORDERS: Tokens = [(s, p + 7 * s) for s in range(2) for p in BORDER]


def paged(rng: np.random.Generator, lengths: list[int], block: int = BLOCK) -> tuple[Array, int]:
    """A block table in which each sequence's blocks stand in random order, and the number of blocks."""
    width = -(-max(lengths) // block) + 1
    order = rng.permutation(len(lengths) * width).astype(np.int32)
    return order.reshape(len(lengths), width), len(order)


@case("hadamard")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for d in (64, 128, 80, 96, 7, 2, 4, 1024):
        shape = (5, 3, d)
        yield Case(str(shape), (f32(rng, *shape),), shape, bound=1e-13)
    bad = f32(rng, 2, 2, 64)[0]
    bad[0, 0] = 0
    bad[1, 1, 5] = 1e30
    yield Case("outlier", ((bad, "f32"),), bad.shape, bound=1e-13)


@case("kv_write")
def _(rng: np.random.Generator) -> Iterator[Case]:
    table, blocks = paged(rng, [40, 20])
    for format in CACHE_TYPES:
        values = {"random": f32(rng, 4, 2, 96)[0], "extreme": extremes(rng, 8, 96).reshape(4, 2, 96)}
        for name, x in values.items():
            yield written(rng, f"{format}-{name}", format, x, table, blocks)
        bad = f32(rng, 4, 2, 96)[0]
        bad[0, 0, 3], bad[1, 1, 90], bad[2, 0, 32], bad[3] = np.inf, np.nan, -np.inf, -0.0
        yield written(rng, f"{format}-not-finite", format, bad, table, blocks)
        if FORMATS[format].block == 1:
            yield written(rng, f"{format}-odd", format, f32(rng, 4, 2, 23)[0], table, blocks)


def written(rng: np.random.Generator, name: str, format: str, x: Array, table: Array, blocks: int) -> Case:
    cache = random_blocks(rng, format, blocks * 2 * BLOCK, x.shape[2]).reshape(blocks, 2, BLOCK, -1)
    inputs = ((cache, format), (x, "f32"), i32(0, 1, 1, 0), i32(0, 15, 16, 39), (table, "i32"))
    return Case(name, inputs, (), format, bound=0)


def attention_case(
    rng: np.random.Generator,
    format: str,
    heads: tuple[int, int, int],
    tokens: Tokens,
    window: int = 0,
    scale: float = 0.125,
    wide: int = 0,
    cap: float = 0.0,
) -> Case:
    """format: of keys and values, or "keys/values". heads: (query heads, KV heads, D). wide: D of the values;
    0: as of the keys.
    """
    keys, _, values = format.partition("/")
    h, kv, d = heads
    lengths = [1 + max(p for s, p in tokens if s == slot) for slot in range(1 + max(s for s, _ in tokens))]
    table, blocks = paged(rng, lengths)
    caches = [
        (random_blocks(rng, kind, blocks * kv * BLOCK, size).reshape(blocks, kv, BLOCK, -1), kind)
        for kind, size in ((keys, d), (values or keys, wide or d))
    ]
    slot, pos = i32(*(s for s, _ in tokens)), i32(*(p for _, p in tokens))
    inputs = (f32(rng, len(tokens), h, d), *caches, slot, pos, (table, "i32"))
    name = f"{format}-{h}/{kv}x{d}-{len(tokens)}-w{window}-x{scale}-c{cap}"
    shape = (len(tokens), h * (wide or d))
    args = {"scale": scale, "window": window, "cap": cap}
    return Case(name, inputs, shape, args=args, bound=1e-11)


def latent_case(
    rng: np.random.Generator,
    format: str,
    heads: tuple[int, int, int],
    tokens: Tokens,
    value: int,
    extra: dict[str, float] | None = None,
) -> Case:
    """Attention whose values are the first `value` numbers of the keys (MLA). extra: arguments of the op. A
    kernel may round the queries and weights of so many heads to 16 significant bits, which sets the bound.
    """
    one = attention_case(rng, format, heads, tokens)
    q, k, _, *place = one.inputs
    more = {"value": value, **(extra or {})}
    return replace(
        one,
        name=f"{one.name}-latent-{more}",
        inputs=(q, k, k, *place),
        args={**one.args, **more},
        shape=(len(tokens), heads[0] * value),
        bound=5e-11,
    )


@case("attention")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in CACHE_TYPES:
        yield attention_case(rng, format, (4, 2, 64), PROMPT)
        yield attention_case(rng, format, (6, 2, 96), RAGGED, wide=32)
        yield attention_case(rng, format, (8, 1, 32), RAGGED, window=9)
        yield attention_case(rng, format, (4, 2, 64), [(0, 90)], scale=20.0)
        yield attention_case(rng, format, (3, 1, 32), BORDERS)
    for pair in ("q8_0/q4_0", "f16/fp8", "q4_0/f32", "fp8/bf16"):
        yield attention_case(rng, pair, (4, 2, 64), PROMPT)
        yield attention_case(rng, pair, (6, 2, 96), RAGGED, wide=32, window=9)
    for format in ("f32", "f16", "bf16", "fp8"):
        yield attention_case(rng, format, (6, 2, 40), RAGGED)
        yield attention_case(rng, format, (2, 2, 72), PROMPT, window=20)
        yield attention_case(rng, format, (7, 1, 5), BORDERS, window=600)
    for cap, scale in ((50.0, 20.0), (2.0, 0.125), (5.0, 1e4)):
        yield attention_case(rng, "f32", (4, 2, 64), PROMPT, scale=scale, cap=cap)
        yield attention_case(rng, "f32", (6, 2, 40), RAGGED, window=9, scale=scale, cap=cap)
    for format, tokens in (("f16", BORDERS), ("q8_0", RAGGED), ("f32", PROMPT)):
        one = attention_case(rng, format, (8, 1, 96), tokens)
        q, k, _, *place = one.inputs
        latent = {"value": 64, **one.args}
        yield replace(
            one, name=f"{one.name}-latent", inputs=(q, k, k, *place), args=latent, shape=(len(tokens), 512)
        )
        yield replace(one, name=f"{one.name}-sinks", inputs=(*one.inputs, f32(rng, 8, scale=4)))
        yield replace(one, name=f"{one.name}-chunk", args={**one.args, "chunk": 24})
        slopes = (np.array([0.5, -0.01, 0, 1e-3, 30, 1, 0.0625, 2], np.float32), "f32")
        for window in (0, 10):
            seen = {**one.args, "causal": 0, "window": window}
            yield replace(one, name=f"{one.name}-ahead-{window}", args=seen)
            sloping = replace(one, inputs=(*one.inputs, slopes), bound=1e-10)
            yield replace(sloping, name=f"{one.name}-ahead-alibi-{window}", args={**seen, "alibi": 1})
            back = {**one.args, "window": window, "alibi": 1, "cap": 3.0 * window}
            yield replace(sloping, name=f"{one.name}-alibi-{window}", args=back)
        both = (*one.inputs, f32(rng, 8, scale=4), slopes)
        args = {**one.args, "alibi": 1}
        yield replace(one, name=f"{one.name}-sinks-alibi", inputs=both, args=args, bound=1e-10)
    for format, h, tokens in (
        ("f16", 16, BORDERS),
        ("f16", 32, PROMPT),
        ("bf16", 16, PROMPT),
        ("f16", 128, RAGGED),
    ):
        for extra in ({}, {"window": 9}, {"cap": 5.0}):
            yield latent_case(rng, format, (h, 1, 192), tokens, 128, extra)
    yield attention_case(rng, "f16", (40, 1, 16), [(0, 3), (0, 4), (0, 5)])
    yield attention_case(rng, "f16", (130, 1, 8), [(0, 3), (0, 4), (1, 700)])
    yield attention_case(rng, "q8_0", (4, 2, 32), [(0, p) for p in range(460, 620)], window=70)


__all__ = ["CASES", "attention_case", "paged"]
