"""Softmax states of parts of a cache merge to the attention to all of it, however the blocks are dealt."""

from __future__ import annotations

import numpy as np
import pytest
from accuracy import nmse
from attention_cases import BLOCK, paged
from context_cases import states
from hypothesis import given
from hypothesis import strategies as st
from one_step import encode

from satchel.runtime.graph import Array
from satchel.runtime.ops import OPS
from satchel.runtime.shard.blocks import own_blocks

attention, attention_parts, kv_write, kv_write_part, merge_parts = (
    OPS[name].define for name in ("attention", "attention_parts", "kv_write", "kv_write_part", "merge_parts")
)


def part_of(cache: Array, ranks: int, rank: int) -> Array:
    """A rank's blocks of a whole cache; those that it has and the pool has not are zeros."""
    own = np.zeros((own_blocks(len(cache), ranks), *cache.shape[1:]), cache.dtype)
    mine = cache[rank::ranks]
    own[: len(mine)] = mine
    return own


def merged(parts: list[Array], heads: int, *sinks: Array) -> Array:
    """The sum of what each rank makes of its parts, in the order of ranks."""
    stats = np.concatenate([one[:, -2 * heads :] for one in parts], axis=1)
    found = [merge_parts(one, stats, *sinks, heads=heads, rank=rank) for rank, one in enumerate(parts)]
    return np.sum(found, axis=0, dtype=np.float32)


@given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.sampled_from([(4, 2), (3, 1), (2, 2)]),
    st.sampled_from(["f32", "f16", "q8_0"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_merged_parts_are_attention(
    seed: int, ranks: int, heads: tuple[int, int], format: str, latent: bool, sinks: bool, alibi: bool
) -> None:
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(1, 150, 3)]
    table, blocks = paged(rng, lengths)
    (h, kv), d = heads, 32
    k, v = (encode(format, rng.standard_normal((blocks, kv, BLOCK, d)).astype(np.float32)) for _ in "kv")
    slot = rng.integers(0, 3, 5).astype(np.int32)
    pos = np.array([rng.integers(0, lengths[s]) for s in slot], np.int32)
    q = rng.standard_normal((5, h, d)).astype(np.float32) * 3
    args = {"scale": 0.3, "value": 16 * latent, "alibi": int(alibi), "cap": float(rng.choice([0, 5]))}
    sink = [rng.standard_normal(h).astype(np.float32)] * sinks
    slopes = [rng.uniform(0, 0.5, h).astype(np.float32)] * alibi
    v = k if latent else v
    wanted = attention(q, k, v, slot, pos, table, *sink, *slopes, **args)
    parts = [
        attention_parts(
            q, part_of(k, ranks, rank), part_of(v, ranks, rank), slot, pos, table, *slopes,
            **args, ranks=ranks, rank=rank,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    assert nmse(merged(parts, h, *sink), wanted) < 1e-10


@given(st.integers(0, 2**32), st.integers(1, 16))
def test_the_shares_of_all_ranks_add_up_to_one(seed: int, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    stats = states(rng, 4, 3, ranks)
    each = stats.reshape(4, ranks, 2, 3)
    own = [np.concatenate((each[:, r, 1], each[:, r, 0], each[:, r, 1]), axis=1) for r in range(ranks)]
    found = merged(own, 3)  # of one number for each head: the sum of weights itself
    seen = (each[:, :, 1] != 0).any(axis=1)
    assert np.allclose(found, seen, atol=1e-6)


def state_of(most: float, total: float, value: float) -> Array:
    """The parts of one token and one head of one number."""
    return np.array([[value, most, total]], np.float32)


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([(-np.inf, 0, 0), (-np.inf, 0, 0)], 0),  # no rank has a position
        ([(-np.inf, 0, 0), (2, 4, 8)], 2),  # one rank has none
        ([(-np.inf, 2, 6), (-np.inf, 2, 2)], 2),  # all scores are -inf: every position weighs the same
        ([(-np.inf, 2, 6), (-90, 1, 5)], 5),
        ([(np.inf, 1, 3), (7, 9, 1)], 3),
        ([(np.inf, 1, 3), (np.inf, 1, 5)], 4),
        ([(3e38, 1, 3), (-3e38, 1, 5)], 3),
        ([(np.nan, np.nan, 1), (0, 1, 5)], np.nan),
    ],
)
def test_states_that_are_not_finite(parts: list[tuple[float, float, float]], wanted: float) -> None:
    for order in (parts, parts[::-1]):
        found = merged([state_of(*part) for part in order], 1)
        assert np.array_equal(found, [[wanted]], equal_nan=True)


def test_a_score_of_minus_infinity_weighs_nothing_beside_a_number() -> None:
    k = np.zeros((2, 1, BLOCK, 2), np.float32)
    k[0, 0, :, 0], k[1, 0, :, 1] = -np.inf, 1
    slot, pos, table = (np.array(x, np.int32) for x in ([0], [BLOCK], [[0, 1]]))
    q = np.array([[[1, 1]]], np.float32)
    parts = [
        attention_parts(q, part_of(k, 2, r), part_of(k, 2, r), slot, pos, table, scale=1.0, ranks=2, rank=r)
        for r in range(2)
    ]
    assert parts[0][0, -2] == -np.inf
    assert parts[0][0, -1] == BLOCK
    assert merged(parts, 1)[0, 1] == 1


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_the_ranks_write_what_one_device_writes(seed: int, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    table, blocks = paged(rng, [40, 20])
    cache = rng.standard_normal((blocks, 2, BLOCK, 8)).astype(np.float32)
    x = rng.standard_normal((6, 2, 8)).astype(np.float32)
    at = rng.permutation(20)[:6].astype(np.int32)
    place = (rng.integers(0, 2, 6).astype(np.int32), at, table)
    wanted = kv_write(cache, x, *place)
    for rank in range(ranks):
        found = kv_write_part(part_of(cache, ranks, rank), x, *place, ranks=ranks, rank=rank)
        assert np.array_equal(found, part_of(wanted, ranks, rank))
