"""The page pool allocates each block once, all or nothing, and frees it."""

import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.runtime.kv import Pages
from satchel.runtime.layers.arch import Cache


def held(pages: Pages, lengths: list[int]) -> list[int]:
    block = pages.cache.block
    return [int(b) for slot, n in enumerate(lengths) for b in pages.table[slot, : -(-n // block)]]


def test_blocks_are_never_shared() -> None:
    rng = np.random.default_rng(0)
    pages = Pages(Cache(context=256, slots=4, block=16, blocks=40))
    lengths = [0] * 4
    for _ in range(2000):
        slot = int(rng.integers(4))
        if rng.random() < 0.7:
            wanted = min(256, lengths[slot] + int(rng.integers(1, 60)))
            before = pages.free_blocks
            try:
                pages.reserve(slot, wanted)
                lengths[slot] = wanted
            except RequestError:
                assert pages.free_blocks == before, "a refusal takes nothing"
        else:
            lengths[slot] = int(rng.integers(0, lengths[slot] + 1))
            pages.release(slot, lengths[slot])
        blocks = held(pages, lengths)
        assert len(blocks) == len(set(blocks)) and all(0 <= b < 40 for b in blocks)
    for slot in range(4):
        pages.release(slot)
    assert pages.free_blocks == 40


def test_a_full_context_and_a_full_pool_say_so() -> None:
    pages = Pages(Cache(context=64, slots=2, block=32, blocks=3))
    with pytest.raises(RequestError, match="65 tokens do not fit the context of 64"):
        pages.reserve(0, 65)
    pages.reserve(0, 64)
    with pytest.raises(RequestError, match="2 blocks are needed, 1 of 3"):
        pages.reserve(1, 64)
    pages.reserve(1, 32)
