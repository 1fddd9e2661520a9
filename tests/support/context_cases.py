"""Test cases of the ops of context parallelism: blocks dealt in order and at random, ranks that have none of
a token's blocks, latents, caps, slopes, and states that are not finite.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attention_cases import BLOCK, Tokens, paged
from one_step import CASES, Case, case, extremes, f32, i32, random_blocks

from satchel.quant.cache import CACHE_TYPES
from satchel.runtime.graph import Array
from satchel.runtime.shard.blocks import own_blocks

__all__ = ["CASES", "parts_case"]
LONG: Tokens = [(s, p) for s in range(2) for p in (64, 79, 80, 255, 256, 300, 767)]
SHORT: Tokens = [(0, 0), (0, 1), (1, 15), (1, 16), (2, 40), (0, 2)]


def in_turn(lengths: list[int], ranks: int) -> tuple[Array, int]:
    """A block table in which the blocks of each sequence belong to the ranks in turn, and the number of
    blocks.
    """
    width = -(-max(lengths) // (BLOCK * ranks)) * ranks
    table = np.arange(len(lengths) * width, dtype=np.int32).reshape(len(lengths), width)
    return table, table.size


def parts_case(
    rng: np.random.Generator,
    format: str,
    heads: tuple[int, int, int],
    tokens: Tokens,
    deal: tuple[int, int],
    value: int = 0,
    turns: bool = True,
    **args: float,
) -> Case:
    """heads: (query heads, KV heads, D). deal: (ranks, rank). value: as of attention. turns: the table of
    in_turn(), else a random one. args: of the op.
    """
    (h, kv, d), (ranks, rank) = heads, deal
    lengths = [1 + max(p for s, p in tokens if s == slot) for slot in range(1 + max(s for s, _ in tokens))]
    table, blocks = in_turn(lengths, ranks) if turns else paged(rng, lengths)
    own = own_blocks(blocks, ranks)
    k, v = (
        (random_blocks(rng, format, own * kv * BLOCK, d).reshape(own, kv, BLOCK, -1), format)
        for _ in range(2)
    )
    slot, pos = i32(*(s for s, _ in tokens)), i32(*(p for _, p in tokens))
    inputs = (f32(rng, len(tokens), h, d), k, k if value else v, slot, pos, (table, "i32"))
    inputs = (*inputs, f32(rng, h, scale=0.1)) if args.get("alibi") else inputs
    name = f"{format}-{h}/{kv}x{d}-{ranks}.{rank}-{len(tokens)}-{value}-{turns}-{args}"
    more = {"scale": 0.125, "value": value, "ranks": ranks, "rank": rank, **args}
    return Case(name, inputs, (len(tokens), h * ((value or d) + 2)), args=more, bound=1e-11)


@case("kv_write_part")
def _(rng: np.random.Generator) -> Iterator[Case]:
    table, blocks = paged(rng, [40, 20])
    for format in CACHE_TYPES:
        for ranks, rank in ((1, 0), (2, 0), (2, 1), (3, 2), (16, 15)):
            for x in (f32(rng, 4, 2, 96)[0], extremes(rng, 8, 96).reshape(4, 2, 96)):
                own = own_blocks(blocks, ranks)
                cache = random_blocks(rng, format, own * 2 * BLOCK, 96).reshape(own, 2, BLOCK, -1)
                place = (i32(0, 1, 1, 0), i32(0, 15, 16, 39), (table, "i32"))
                inputs = ((cache, format), (x, "f32"), *place)
                args = {"ranks": ranks, "rank": rank}
                yield Case(f"{format}-{ranks}.{rank}", inputs, (), format, args, bound=0)


@case("attention_parts")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in CACHE_TYPES:
        for deal in ((1, 0), (2, 0), (2, 1), (3, 1), (4, 3)):
            yield parts_case(rng, format, (4, 2, 64), LONG, deal)
        yield parts_case(rng, format, (6, 1, 96), LONG, (2, 1), value=64)
        yield parts_case(rng, format, (2, 2, 32), SHORT, (2, 0), turns=False)
    for format, d in (("f32", 7), ("f16", 40), ("bf16", 72)):
        yield parts_case(rng, format, (6, 2, d), LONG, (3, 2))
    for deal in ((2, 0), (3, 2)):
        yield parts_case(rng, "f32", (4, 2, 64), LONG, deal, cap=2.0)
        yield parts_case(rng, "f16", (4, 2, 64), LONG, deal, alibi=1)
        yield parts_case(rng, "f32", (4, 4, 64), LONG, deal, scale=20.0)
        yield parts_case(rng, "f16", (16, 1, 192), LONG, deal, value=128)
    for rank in range(4):
        yield parts_case(rng, "f16", (3, 1, 32), SHORT, (4, rank))


def states(rng: np.random.Generator, tokens: int, heads: int, ranks: int) -> Array:
    """Largest scores and sums of weights (T, ranks * 2 H); a fifth of the ranks have seen nothing."""
    each = np.stack(
        (rng.standard_normal((tokens, ranks, heads)) * 30, rng.uniform(1, 500, (tokens, ranks, heads))),
        axis=2,
    ).astype(np.float32)
    each[np.broadcast_to(rng.random((tokens, ranks, 1, heads)) < 0.2, each.shape)] = 0
    each[:, :, 0][each[:, :, 1] == 0] = -np.inf
    return each.reshape(tokens, -1)


@case("merge_parts")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for tokens, heads, width, ranks in (
        (1, 1, 1, 1),
        (5, 4, 64, 2),
        (3, 7, 33, 3),
        (40, 16, 128, 4),
        (2, 3, 5, 16),
    ):
        parts = f32(rng, tokens, heads * (width + 2))
        stats = states(rng, tokens, heads, ranks), "f32"
        for rank in {0, ranks - 1}:
            args = {"heads": heads, "rank": rank}
            shape = (tokens, heads * width)
            yield Case(f"{shape}-{ranks}.{rank}", (parts, stats), shape, args=args)
            sinks = f32(rng, heads, scale=20)
            yield Case(f"{shape}-{ranks}.{rank}-sinks", (parts, stats, sinks), shape, args=args)
    inf, one = np.inf, (np.arange(12, dtype=np.float32).reshape(6, 2) @ np.ones((2, 8), np.float32), "f32")
    every = np.array(  # of two heads: largest scores and sums of two ranks
        [
            [-inf, -inf, 0, 0, -inf, -inf, 0, 0],  # nothing was seen
            [-inf, -inf, 3, 3, -inf, 5, 1, 1],  # scores of -inf, and one rank with a number
            [inf, 1, 1, 2, 0, inf, 4, 2],
            [3e38, -3e38, 1, 1, -3e38, 3e38, 1, 1],
            [np.nan, 1, np.nan, 1, 0, 0, 1, 1],
            [-inf, 0, 0, 1, 88, -inf, 1, 0],
        ],
        np.float32,
    )
    for rank in range(2):
        yield Case(f"extremes.{rank}", (one, (every, "f32")), (6, 4), args={"heads": 2, "rank": rank})
        sinks = np.array([-inf, 10], np.float32), "f32"
        yield Case(f"sinks.{rank}", (one, (every, "f32"), sinks), (6, 4), args={"heads": 2, "rank": rank})
