"""Test cases of the MLA ops: runs shorter and longer than `least`, mixed with single tokens; every weight
format; sparse positions that are all, some, or at borders of spans.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attention_cases import BLOCK, Tokens, paged
from one_step import CASES, Case, case, f32, i32, random_blocks

from satchel.quant.cache import CACHE_TYPES
from satchel.runtime.graph import Array

__all__ = ["CASES"]
MIXED: Tokens = [(1, 30), *((0, p) for p in range(3, 43)), (2, 0), (2, 1), *((1, p) for p in range(60, 100))]
LEAST = 20
Operand = tuple[Array, str]


def past_of(
    rng: np.random.Generator, format: str, tokens: Tokens, size: int
) -> tuple[Operand, tuple[Operand, ...]]:
    """A cache of one head with `size` numbers per token; slots, positions and the block table."""
    lengths = [1 + max(p for s, p in tokens if s == slot) for slot in range(1 + max(s for s, _ in tokens))]
    table, blocks = paged(rng, lengths)
    cache = random_blocks(rng, format, blocks * BLOCK, size).reshape(blocks, 1, BLOCK, -1), format
    return cache, (i32(*(s for s, _ in tokens)), i32(*(p for _, p in tokens)), (table, "i32"))


@case("absorbed_attention")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in CACHE_TYPES:
        cache, place = past_of(rng, format, MIXED, 96)
        for heads, least in ((16, LEAST), (3, LEAST), (4, 1000), (4, 1)):
            args = {"scale": 0.1, "value": 64, "least": least}
            inputs = (f32(rng, len(MIXED), heads, 96), cache, cache, *place)
            yield Case(f"{format}-{heads}-{least}", inputs, (len(MIXED), heads * 64), args=args, bound=5e-11)


def expanded_case(
    rng: np.random.Generator,
    formats: tuple[str, str],
    sizes: tuple[int, int, int, int],
    tokens: Tokens,
    heads: int = 3,
    least: int = LEAST,
) -> Case:
    """formats: of the cache and of the weights. sizes: (rank, nope, rope, value)."""
    rank, nope, rope, value = sizes
    cache, place = past_of(rng, formats[0], tokens, rank + rope)
    k_b = random_blocks(rng, formats[1], heads * rank, nope).reshape(heads, rank, -1)
    v_b = random_blocks(rng, formats[1], heads * value, rank).reshape(heads, value, -1)
    q, left = f32(rng, len(tokens), heads, nope + rope, scale=0.1), f32(rng, len(tokens), heads, value)
    weights = ((k_b, formats[1]), (v_b, formats[1]))
    name = f"{formats}-{sizes}-{len(tokens)}-{least}"
    args = {"scale": 0.05, "least": least}
    # Queries, keys, weights and values have 16 significant bits each, where tiles support them.
    return Case(name, (q, cache, cache, *place, *weights, left), left[0].shape, args=args, bound=5e-9)


def written(
    rng: np.random.Generator,
    formats: tuple[str, str],
    sizes: tuple[int, int, int],
    tokens: Tokens,
    *,
    heads: int = 3,
    style: int = 0,
) -> Case:
    """rope_latent_write. formats: of the cache and of k_b. sizes: (rank, nope, n_rot)."""
    rank, nope, n_rot = sizes
    t = len(tokens)
    cache, place = past_of(rng, formats[0], tokens, rank + n_rot)
    angle = rng.uniform(-3, 3, (t, n_rot // 2))
    turn = np.concatenate([np.cos(angle), np.sin(angle)], -1).astype(np.float32), "f32"
    k_b = random_blocks(rng, formats[1], heads * rank, nope).reshape(heads, rank, -1)
    inputs = (
        f32(rng, t, heads, nope + n_rot),
        f32(rng, t, rank + n_rot),
        cache,
        *place,
        turn,
        f32(rng, rank),
    )
    return Case(
        f"{formats}-{sizes}-{t}",
        (*inputs, (k_b, formats[1])),
        (t, heads, rank + n_rot),
        args={"eps": 1e-5, "style": style},
        bound=1e-10,
    )


@case("rope_latent_write")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for i, format in enumerate(CACHE_TYPES):
        for t in (1, 3):
            tokens = [(s, 5 * s + p) for s, p in ((0, 17), (1, 3), (1, 4))[:t]]
            yield written(rng, (format, ("q8_0", "q5_0", "f32")[i % 3]), (64, 64, 32), tokens, style=i % 2)


@case("expanded_attention")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in CACHE_TYPES:
        yield expanded_case(rng, (format, "f32"), (64, 64, 32, 64), MIXED)
    for weights in ("f16", "bf16", "q8_0", "q4_0"):
        yield expanded_case(rng, ("f16", weights), (64, 64, 32, 64), MIXED)
    yield expanded_case(rng, ("f16", "q4_k"), (256, 256, 64, 128), MIXED)
    yield expanded_case(rng, ("f16", "f32"), (40, 24, 8, 12), MIXED)
    yield expanded_case(rng, ("bf16", "q8_0"), (128, 64, 64, 64), [(0, p) for p in range(490, 620)])
    yield expanded_case(rng, ("f16", "q8_0"), (64, 64, 32, 64), [(0, p) for p in range(600)], heads=1)
    yield expanded_case(rng, ("f16", "q8_0"), (64, 64, 32, 64), MIXED, least=1000)
    yield expanded_case(rng, ("f16", "q8_0"), (64, 64, 32, 64), MIXED, least=1)


SEEN: Tokens = [(0, 0), (0, 5), (0, 6), (1, 63), (1, 64), (1, 300), (2, 39), (2, 40)]


@case("index_positions")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in CACHE_TYPES:
        for k in (1, 40, 64, 500):
            cache, place = past_of(rng, format, SEEN, 64)
            # Values with few bits: sums are exact in any order, and some are equal.
            q = rng.integers(-3, 4, (len(SEEN), 5, 64)).astype(np.float32)
            cache = random_like(rng, format, cache[0].shape, 64)
            weights = rng.integers(-2, 5, (len(SEEN), 5)).astype(np.float32)
            inputs = ((q, "f32"), (weights, "f32"), cache, *place)
            yield Case(f"{format}-{k}", inputs, (len(SEEN), k), "i32", {"k": k}, bound=0)
    yield many_indexed(rng)
    yield odd_scores(rng)


def many_indexed(rng: np.random.Generator) -> Case:
    """Many heads, and pasts of many positions."""
    tokens, heads, k = [(0, 2999), (1, 130), (0, 1023), (0, 1024)], 37, 100
    cache, place = past_of(rng, "f16", tokens, 32)
    cache = random_like(rng, "f16", cache[0].shape, 32)
    q = rng.integers(-3, 4, (len(tokens), heads, 32)).astype(np.float32)
    weights = rng.integers(-2, 5, (len(tokens), heads)).astype(np.float32)
    inputs = ((q, "f32"), (weights, "f32"), cache, *place)
    return Case("many", inputs, (len(tokens), k), "i32", {"k": k}, bound=0)


def odd_scores(rng: np.random.Generator) -> Case:
    """Scores that are all zero or negative, infinite, and NaN."""
    tokens = [(0, 199), (0, 150), (0, 180), (0, 190), (1, 90), (1, 99)]
    (cache, _), place = past_of(rng, "f32", tokens, 32)
    rows = rng.integers(-1, 2, (cache.shape[0], BLOCK, 32)).astype(np.float32)
    for block in place[2][0][0]:  # those of slot 0
        rows[block, rng.random(BLOCK) < 0.3, 7] = np.inf
        rows[block, rng.random(BLOCK) < 0.2, 9] = np.nan
    weights = np.array([[1, 1], [-1, -2], [np.inf, 1], [np.nan, 1], [0, 0], [-1, 0]], np.float32)
    q = np.ones((len(tokens), 2, 32), np.float32)
    inputs = ((q, "f32"), (weights, "f32"), (rows.reshape(cache.shape), "f32"), *place)
    return Case("odd", inputs, (len(tokens), 60), "i32", {"k": 60}, bound=0)


def random_like(rng: np.random.Generator, format: str, shape: tuple[int, ...], size: int) -> Operand:
    """A cache of random blocks whose values are small integers."""
    from one_step import encode

    small = rng.integers(-1, 2, (shape[0] * shape[2], size)).astype(np.float32)
    return encode(format, small).reshape(shape[0], 1, shape[2], -1), format


@case("sparse_attention")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in CACHE_TYPES:
        for heads, k in ((16, 70), (3, 70), (16, 1), (4, 400)):
            yield sparse_case(rng, format, heads, k)
    yield sparse_case(rng, "f16", 2, 90, (576, 512))  # DeepSeek's own sizes


def sparse_case(
    rng: np.random.Generator, format: str, heads: int, k: int, sizes: tuple[int, int] = (96, 64)
) -> Case:
    """sizes: of a cached row, and of the value in it."""
    size, value = sizes
    cache, place = past_of(rng, format, SEEN, size)
    positions = np.full((len(SEEN), k), -1, np.int32)
    for row, (_, pos) in zip(positions, SEEN, strict=True):
        n = min(k, pos + 1)
        row[:n] = np.sort(rng.permutation(pos + 1)[:n])
    inputs = (f32(rng, len(SEEN), heads, size), cache, cache, *place, (positions, "i32"))
    args = {"scale": 0.1, "value": value}
    return Case(f"{format}-{heads}-{k}", inputs, (len(SEEN), heads * value), args=args, bound=5e-11)
