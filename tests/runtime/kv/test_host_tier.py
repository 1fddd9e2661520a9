"""The host memory tier: evicted blocks move there and return instead of being recomputed, with the same
tokens, within the limit, and never under another salt.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import tiny

from satchel.errors import RequestError
from satchel.runtime.api.options import settled
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.kv import Miss
from satchel.runtime.kv.digests import BlockDigests
from satchel.runtime.kv.host import HostTier
from satchel.runtime.kv.news import BlockNews
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY
from satchel.runtime.weights.resident import Uploaded

BACKENDS = [f.name for f in libraries() if f.name in ("cpu", "remote") and not f.reason]
BLOCK, AMPLE = 8, 1 << 30
pytestmark = pytest.mark.skipif("cpu" not in BACKENDS, reason="no compiled backend is installed")
both = pytest.mark.parametrize("backend", BACKENDS)


def ids(seed: int, length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, tiny.VOCAB, length)]


@contextmanager
def opened(backend: str = "cpu", blocks: int = 10, slots: int = 2, tier: int = AMPLE) -> Iterator[Engine]:
    cache, w = Cache(context=96, slots=slots, block=BLOCK, blocks=blocks), tiny.weights("llama", "q8_0")
    device = find_backend(backend).open(threads=2)
    graph = tiny.build("llama", w, cache)
    engine = Engine(graph, cache, [device], Uploaded(w.tensors), batch=32, host_cache=tier)
    try:
        yield engine
    finally:
        engine.close()


def tier_of(engine: Engine) -> HostTier:
    assert engine.tier is not None
    return engine.tier


def run(engine: Engine, tokens: Sequence[int], salt: str = "") -> tuple[list[int], int, Miss]:
    """Five greedy tokens; the number of cached tokens, and why not more."""
    cached, why = engine.begin(0, tokens, salt)
    at, found = cached, list[int]()
    while at < len(tokens):
        some = tokens[at : at + 32]
        at += len(some)
        found = engine.step([BatchEntry(0, some, GREEDY if at == len(tokens) else None)])
    while len(found) < 5:
        found += engine.step([BatchEntry(0, found[-1:], GREEDY)])
    engine.publish(0, [*tokens, *found], salt)
    engine.rewind(0, 0)
    check(engine)
    return found, cached, why


def check(engine: Engine) -> None:
    engine.pages.check()
    if engine.tier is not None:
        engine.tier.check()


@both
def test_what_was_pushed_out_comes_back_with_the_same_answer(backend: str) -> None:
    first, second = ids(1, 60), ids(2, 60)
    with opened(backend) as engine:
        wanted, cached, why = run(engine, first)
        assert (cached, why) == (0, Miss.COLD)
        run(engine, second)  # the two do not fit together
        tier = tier_of(engine)
        assert tier.kept_out and engine.pages.tree.match(first)[0].length < 7
        assert run(engine, first) == (wanted, 56, Miss.NONE)
        assert tier.brought_back
        assert run(engine, second)[1] == 56


@both
def test_who_gave_way_comes_back_with_all_full_blocks(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests that do not fit together: preemption moves blocks, and only partial blocks are
    recomputed.
    """
    requests = [GenerateRequest(ids(i, 30), 40, GREEDY) for i in (1, 2)]
    with opened(backend, blocks=14) as engine:
        service = Service(engine)
        tier_of(engine).recompute = lambda tokens: None  # moving always pays
        begun = dict[int, int]()
        begin = engine.begin

        def noted(slot: int, tokens: Sequence[int], salt: str = "") -> tuple[int, Miss]:
            found = begin(slot, tokens, salt)
            begun[len(tokens)] = found[0]  # the last attempt is the one that was admitted
            return found

        monkeypatch.setattr(engine, "begin", noted)
        handles = [service.submit(r) for r in requests]
        together = [list(t) for t in handles]
        assert sum(t.seq.preempted for t in handles) > 0
        returns = {length: cached for length, cached in begun.items() if length > 30}
        assert returns == {length: (length - 1) // BLOCK * BLOCK for length in returns} != {}
        assert service.stats().host_moved_back == tier_of(engine).brought_back > 0
        service.call(lambda: check(engine))
        alone = [list(service.submit(r)) for r in requests]
        service.close()
    assert together == alone


@pytest.mark.parametrize("tier", [0, 20_000, AMPLE])
def test_news_of_blocks_are_what_the_tree_and_the_tier_have(tier: int) -> None:
    """Without a tier, with one that gives up blocks itself, and with one that has room for all."""
    with opened(tier=tier) as engine:
        news, tree = BlockNews(BlockDigests(BLOCK)), engine.pages.tree
        tree.news = news
        if engine.tier is not None:
            engine.tier.news, engine.tier.digests = news, news.digests
        known, left = set[bytes](), set[bytes]()

        def look() -> None:
            kept, gone = news.take()
            known.difference_update(gone)
            known.update(kept)
            left.update(gone)
            nodes = {news.digests.of(node) for node in tree._nodes()}
            assert known == nodes | set(engine.tier._kept if engine.tier is not None else ())

        for seed in (1, 2, 1, 3, 2, 4, 1):
            run(engine, ids(seed, 60), "ab"[seed % 2])
            look()
            assert {*news.digests.chain(ids(seed, 56), "ab"[seed % 2])} <= known
        assert bool(left) == (tier < AMPLE), "what has room is given up by nobody"
        tree.clear("a")
        look()
        tree.clear()
        look()
        assert not known


@both
def test_a_salt_holds_in_the_tier_too(backend: str) -> None:
    first = ids(1, 60)
    with opened(backend) as engine:
        run(engine, first, "a")
        run(engine, ids(2, 60), "b")
        assert run(engine, first, "b")[1] == 0
        assert run(engine, first, "a")[1] == 56
        assert run(engine, first)[1] == 0


def test_the_tier_keeps_what_was_used_last_within_its_limit() -> None:
    with opened(tier=0) as plain:
        size = plain.states.block_bytes[0]
        assert plain.tier is None
    first, second, third = (ids(i, 64) for i in (1, 2, 3))
    with opened(tier=9 * size + 1) as engine:
        for tokens in (first, second, third):
            run(engine, tokens)
        tier = tier_of(engine)
        assert len(tier) == 9 and tier.used == 9 * size
        assert run(engine, second)[1] == 56
        _, cached, why = run(engine, first)
        assert cached < 56 and why is Miss.EVICTED


def test_a_limit_below_one_block_keeps_nothing() -> None:
    with opened(tier=100) as engine:
        for seed in (1, 2, 3):
            run(engine, ids(seed, 60))
        assert len(tier_of(engine)) == 0 == tier_of(engine).used
    with pytest.raises(RequestError, match="host_cache"):
        settled(None, {"host_cache": -1})


def test_a_miss_says_given_up_only_where_the_block_is_in_neither() -> None:
    first = ids(1, 60)
    with opened() as engine:
        run(engine, first)
        run(engine, ids(2, 60))
        assert run(engine, [*first[:40], *ids(3, 20)])[1:] == (40, Miss.DIFFERS)
        tier_of(engine).recompute = lambda tokens: 0.0  # nothing is moved any more
        run(engine, ids(4, 72))
        cached, why = run(engine, first)[1:]
        assert cached < 56 and why is Miss.EVICTED


def test_forgetting_a_salt_forgets_it_below_too() -> None:
    first, second = ids(1, 60), ids(2, 60)
    with opened() as engine:
        run(engine, first, "a")
        run(engine, second, "b")
        engine.pages.tree.clear("a")
        check(engine)
        assert run(engine, first, "a")[1] == 0
        assert run(engine, second, "b")[1] == 56


def test_moving_is_left_where_computing_is_quicker() -> None:
    with opened() as engine:
        tier = tier_of(engine)
        tier.recompute = lambda tokens: 1e-12
        run(engine, ids(1, 60))
        run(engine, ids(2, 60))
        assert tier.kept_out == 1 and tier.skipped > 3  # the first move is the measurement
        assert tier.out.value > 0
        tier.recompute = lambda tokens: 1e3
        run(engine, ids(3, 60))
        assert tier.kept_out > 4


def test_random_turns_lose_nothing() -> None:
    """Answers equal those without a cache, whatever is evicted, restored and cut."""
    rng, size = np.random.default_rng(7), 0
    with opened(tier=0) as plain:
        size = plain.states.block_bytes[0]
        stems = [ids(s, 70) for s in range(4)]
        asked = []
        for _ in range(40):
            stem = stems[int(rng.integers(4))][: int(rng.integers(1, 70))]
            asked.append(
                ([*stem, *ids(int(rng.integers(99)), int(rng.integers(1, 15)))], str(rng.integers(2)))
            )
        wanted = []
        for tokens, salt in asked:
            plain.pages.tree.clear()
            wanted.append(run(plain, tokens, salt)[0])
    with opened(tier=12 * size) as engine:
        assert [run(engine, tokens, salt)[0] for tokens, salt in asked] == wanted
        assert tier_of(engine).brought_back > 20
        engine.pages.tree.clear()
        assert engine.pages.pool.free == engine.pages.pool.size
