"""Prefix caching: shared prefixes are found, kept, evicted in the order of their use, and never visible under
another salt.
"""

import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.runtime.kv import Miss, Pages
from satchel.runtime.layers.arch import Cache

BLOCK = 4


def pages(blocks: int = 12, slots: int = 3) -> Pages:
    return Pages(Cache(context=32, slots=slots, block=BLOCK, blocks=blocks))


def finish(p: Pages, slot: int, ids: list[int], salt: str = "") -> None:
    """A finished request that leaves its blocks in the cache."""
    p.adopt(slot, ids, salt)
    p.reserve(slot, len(ids))
    p.publish(slot, ids, salt)
    p.release(slot)
    p.check()


def test_a_second_request_finds_whole_blocks_but_never_its_last_token() -> None:
    p = pages()
    ids = list(range(12))
    finish(p, 0, ids)
    assert p.adopt(1, ids) == (8, Miss.NONE)
    assert p.adopt(2, [*ids, 99]) == (12, Miss.NONE)
    p.release(1)
    assert p.adopt(1, [0, 1, 2, 3, 7, 7, 7, 7, 8]) == (4, Miss.DIFFERS)
    p.check()


def test_readers_share_a_block_and_it_lives_as_long_as_one_of_them() -> None:
    p = pages(blocks=4)
    ids = list(range(9))
    finish(p, 0, ids)
    p.adopt(0, ids)
    p.adopt(1, ids)
    assert p.held(0) == p.held(1)
    p.tree.clear()
    p.release(0)
    assert p.pool.free == 2
    p.release(1)
    assert p.pool.free == 4


def test_what_was_used_longest_ago_is_given_up_first_and_only_from_its_end() -> None:
    p = pages(blocks=6)
    first, second = list(range(12)), list(range(100, 112))
    finish(p, 0, first)
    finish(p, 0, second)
    assert p.pool.free == 0 and p.free_blocks == 6
    p.adopt(1, first)  # reads two of its three blocks
    p.reserve(2, 2 * BLOCK)
    p.check()
    # The block of `first` that was not read again went before those of `second`.
    found, why = p.tree.match(first)
    assert found.blocks == (p.held(1),) and why == Miss.EVICTED
    assert p.tree.match(second)[0].length == 2
    assert p.adopt(0, [*second, 1]) == (8, Miss.EVICTED)


@pytest.mark.parametrize("windows", [(0,), (0, 8), (8,)])
def test_a_new_block_of_a_full_cache_is_found_without_looking_at_every_kept_one(
    monkeypatch: pytest.MonkeyPatch, windows: tuple[int, ...]
) -> None:
    p = Pages(Cache(context=32, slots=3, block=BLOCK, blocks=12), windows)

    def write(slot: int, first: int) -> None:
        """A request as long as the context, written token by token, that leaves what it had."""
        ids = list(range(first, first + 32))
        p.adopt(slot, ids[:1])
        for end in range(1, 33):
            assert p.missing(slot, end) <= p.free_blocks
            p.reserve(slot, end)
            p.advance(slot, end - 1, end)
        p.publish(slot, ids)
        p.release(slot)

    write(0, 0)
    write(1, 100)
    p.check()
    with monkeypatch.context() as patched:
        patched.delattr(type(p.tree), "_nodes")
        for n in range(2, 9):
            write(n % 3, 100 * n)
    p.check()
    assert p.pool.free < 12 and p.tree.size


def test_salts_do_not_see_each_other() -> None:
    p = pages()
    finish(p, 0, list(range(9)), salt="a")
    assert p.adopt(1, list(range(9)), "b") == (0, Miss.SALT)
    assert p.adopt(2, list(range(9)), "a") == (8, Miss.NONE)


def test_going_back_into_a_shared_block_gives_the_slot_one_of_its_own() -> None:
    p = pages()
    ids = list(range(9))
    finish(p, 0, ids)
    p.adopt(0, ids)
    old = p.held(0)
    (moved,) = p.release(0, 6)
    assert moved.old == old[1] and p.held(0) == [old[0], moved.new]
    assert p.release(0, 4) == () and p.held(0) == [old[0]]
    p.check()


def test_random_requests_lose_no_block() -> None:
    rng = np.random.default_rng(0)
    p = pages(blocks=24, slots=4)
    live: dict[int, list[int]] = {}
    for _ in range(3000):
        slot = int(rng.integers(4))
        if slot not in live:
            ids = [int(i) for i in rng.integers(0, 2, rng.integers(1, 33))]
            p.adopt(slot, ids, str(rng.integers(2)))
            try:
                p.reserve(slot, len(ids))
                live[slot] = ids
            except RequestError:
                p.release(slot)
        elif rng.random() < 0.3:
            n = int(rng.integers(0, len(live[slot]) + 1))
            try:
                p.release(slot, n)
                live[slot] = live[slot][:n]
            except RequestError:
                pass
        else:
            if rng.random() < 0.7:
                p.publish(slot, live[slot], "0")
            p.release(slot)
            del live[slot]
        p.check()
    for slot in live:
        p.release(slot)
    p.tree.clear()
    assert p.pool.free == 24


def test_a_pool_that_others_read_says_that_it_is_full() -> None:
    p = pages(blocks=3)
    p.reserve(0, 12)
    with pytest.raises(RequestError, match="1 blocks are needed, 0 of 3"):
        p.reserve(1, 1)
