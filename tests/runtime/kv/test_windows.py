"""Sliding-window layers keep only their window: groups of layers with blocks of their own, freed behind the
window, found again by prompts that need no more, with the same results.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tiny
from accuracy import nmse

from satchel.errors import RequestError
from satchel.quant import FORMATS
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.resume import restore, save, shape_of
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array, leaves
from satchel.runtime.kv import Miss, Pages
from satchel.runtime.kv.host import HostTier
from satchel.runtime.layers.arch import REWIND, Arch, Cache, HParams, windows_of
from satchel.runtime.models.llama import Llama
from satchel.runtime.ops import evaluate
from satchel.runtime.placement.sizing import affordable, cache_bytes
from satchel.runtime.sampling import GREEDY
from satchel.runtime.weights.resident import Uploaded

BACKENDS = [f.name for f in libraries() if f.name in ("cpu", "remote", "numba") and not f.reason]
CONTEXT, BLOCK, BATCH = 320, 8, 48
LAYERS = {"mixed": (0, 20, 0), "three": (0, 12, 37), "all": (20, 20, 20)}
IDS = [int(i) for i in np.random.default_rng(3).integers(0, tiny.VOCAB, CONTEXT)]

compiled = pytest.mark.skipif("cpu" not in BACKENDS, reason="needs the cpu backend")


class Windowed(Llama):
    """Llama with the windows of `seen`."""

    seen: tuple[int, ...] = ()

    def window(self, i: int) -> int:
        return self.seen[i]


def arch(kind: str, cache: Cache) -> Arch:
    made = type("Made", (Windowed,), {"seen": LAYERS[kind]})
    return made(
        HParams(tiny.metadata("llama", context_length=1 << 20), "llama"), tiny.weights("llama"), cache
    )


def cache(**more: object) -> Cache:
    return Cache(**{"context": CONTEXT, "slots": 3, "block": BLOCK, "batch": BATCH, **more})  # type: ignore[arg-type]


@contextmanager
def opened(kind: str, backend: str = "cpu", **more: object) -> Iterator[Engine]:
    c, values = cache(**more), tiny.weights("llama").tensors
    device = find_backend(backend).open(threads=2)
    engine = Engine(arch(kind, c).build(), c, [device], Uploaded(values), batch=BATCH)
    try:
        yield engine
    finally:
        engine.close()


def oracle(kind: str, ids: list[int]) -> Array:
    """Logits by the numpy definitions in one step, with all positions in every group."""
    w, c, n = tiny.weights("llama"), cache(slots=1, batch=1 << 20, keys="f32", values="f32"), len(ids)
    roots = arch(kind, c).build().roots("logits")
    values: dict[str, Array] = dict(w.tensors)
    for state in leaves(roots, "state"):
        values[state.name] = np.zeros(state.shape, FORMATS[state.type.format].dtype)
    values |= {"ids": np.array(ids, np.int32), "pos": np.arange(n, dtype=np.int32)}
    values |= {"slot": np.zeros(n, np.int32), "rows": np.arange(n, dtype=np.int32)}
    values |= Pages(c, windows_of(roots)).tables
    for name in values:
        if name.startswith("table"):
            values[name] = np.arange(c.table_width, dtype=np.int32)[None]
    return evaluate(roots[:1], values)[0]


def fed(engine: Engine, slot: int, ids: list[int], size: Callable[[], int]) -> Array:
    """Logits of tokens processed in chunks; the pages are checked after each."""
    found, at = [], 0
    while at < len(ids):
        n = min(size(), len(ids) - at)
        found.append(engine.logits([BatchEntry(slot, ids[at : at + n])]))
        engine.pages.check()
        at += n
    return np.concatenate(found)


def used(engine: Engine) -> list[int]:
    return [g.pool.size - g.pool.free for g in engine.pages.groups]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", LAYERS)
def test_windows_give_what_numpy_gives_and_keep_no_more(kind: str, backend: str) -> None:
    """Freed blocks are -1 in the table: a kernel that read them would fail."""
    ids, rng = IDS[:200], np.random.default_rng(1)
    with opened(kind, backend, keys="f32", values="f32") as engine:
        got = fed(engine, 1, ids, lambda: int(rng.integers(1, BATCH + 1)))
        for group, count in zip(engine.pages.groups, used(engine), strict=True):
            least = -(-group.window // BLOCK) if group.window else 200 // BLOCK
            most = -(-(group.window + REWIND + BATCH) // BLOCK) + 1 if group.window else 200 // BLOCK
            assert least <= count <= most and (not group.window or group.first[1] > 0)
    assert nmse(got, oracle(kind, ids)) < 1e-9


@compiled
@pytest.mark.parametrize("kind", LAYERS)
def test_pieces_give_the_same_bits(kind: str) -> None:
    ids = IDS[:150]
    with opened(kind, keys="q8_0", values="f16") as engine:
        whole = fed(engine, 0, ids, lambda: BATCH)
        np.testing.assert_array_equal(fed(engine, 2, ids, lambda: 1), whole)
        np.testing.assert_array_equal(fed(engine, 1, ids, lambda: 7), whole)


@compiled
@pytest.mark.parametrize("kind", LAYERS)
def test_going_back_a_little_works_and_far_begins_anew(kind: str) -> None:
    ids = IDS[:210]
    with opened(kind) as engine:
        whole = fed(engine, 0, ids, lambda: BATCH)
        engine.rewind(0, 0)
        fed(engine, 0, ids, lambda: BATCH)
        last = (len(ids) - 1) // BATCH * BATCH  # where the last piece began
        for back in (last - REWIND, last, 205):
            assert engine.rewind(0, back) == back
            np.testing.assert_array_equal(fed(engine, 0, ids[back:], lambda: BATCH), whole[back:])
        assert engine.rewind(0, 50) == 0 == engine.length(0)
        engine.pages.check()
        np.testing.assert_array_equal(fed(engine, 0, ids, lambda: BATCH), whole)


@compiled
@pytest.mark.parametrize("kind", LAYERS)
def test_the_next_turn_finds_its_window(kind: str) -> None:
    """A prompt that continues another is found; one that diverges before the window is not."""
    ids, other = IDS[:200], [(i + 1) % tiny.VOCAB for i in IDS]
    with opened(kind) as engine:
        whole = fed(engine, 0, [*ids, *other[:5]], lambda: BATCH)
        engine.rewind(0, 200)
        engine.publish(0, ids)
        assert engine.begin(1, [*ids, *other[:5]]) == (200, Miss.NONE)
        np.testing.assert_array_equal(fed(engine, 1, other[:5], lambda: BATCH), whole[200:])
        assert engine.begin(2, ids) == (192, Miss.NONE)
        wanted = oracle(kind, [*ids[:60], *other[:30]])[60:]
        cached, why = engine.begin(1, [*ids[:60], *other[:30]])
        assert (cached, why) == (0, Miss.WINDOW)
        assert nmse(fed(engine, 1, [*ids[:60], *other[:30]], lambda: BATCH)[60:], wanted) < 1e-5
        engine.pages.check()


@compiled
@pytest.mark.parametrize("kind", LAYERS)
def test_a_shared_block_is_copied_in_every_group(kind: str) -> None:
    ids = IDS[:100]
    with opened(kind) as engine:
        whole = fed(engine, 0, ids, lambda: BATCH)
        engine.publish(0, ids)
        before = [g.blocks(0)[11] for g in engine.pages.groups]
        for slot in (1, 2):
            assert engine.begin(slot, ids)[0] == 96
            assert engine.rewind(slot, 93) == 93
            engine.pages.check()
        assert all(g.blocks(1)[11] != b for g, b in zip(engine.pages.groups, before, strict=True))
        both = engine.logits([BatchEntry(1, [1, 2, 3]), BatchEntry(2, ids[93:])])
        np.testing.assert_array_equal(both[3:], whole[93:])
        assert engine.begin(1, ids)[0] == 96
        np.testing.assert_array_equal(engine.logits([BatchEntry(1, ids[96:])]), whole[96:])


@compiled
@pytest.mark.parametrize("kind", LAYERS)
def test_requests_together_answer_as_each_alone(kind: str) -> None:
    rng = np.random.default_rng(8)
    prompts = [
        IDS[: int(n)] + [int(i) for i in rng.integers(0, 9, m)] for n, m in rng.integers(1, 120, (9, 2))
    ]
    with opened(kind, slots=1) as engine:
        alone = []
        for p in prompts:
            engine.rewind(0, 0)
            fed(engine, 0, p[:-1], lambda: BATCH)
            token, out = p[-1], []
            for _ in range(12):
                (token,) = engine.step([BatchEntry(0, [token], GREEDY)])
                out.append(token)
            alone.append(out)
    with opened(kind, blocks=60) as engine:  # too few for all three slots: some must give way
        service = Service(engine)
        handles = [service.submit(GenerateRequest(p, 12)) for p in prompts]
        assert [list(t) for t in handles] == alone
        service.close()
        engine.pages.check()
        engine.pages.tree.clear()
        assert used(engine) == [0] * len(engine.pages.groups)


@pytest.mark.parametrize("windows", [(0, 5), (7,), (0, 4, 19)])
@pytest.mark.parametrize("seed", range(3))
def test_random_requests_lose_no_block(windows: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = Pages(Cache(context=64, slots=4, block=4, blocks=30, batch=9), windows)
    live: dict[int, tuple[list[int], int]] = {}  # the slot's tokens, and how many of them it has
    for _ in range(1500):
        slot = int(rng.integers(4))
        ids, n = live.get(slot, ([], 0))
        try:
            match int(rng.integers(5)):
                case 0 if slot not in live:
                    ids = [int(i) for i in rng.integers(0, 2, rng.integers(1, 65))]
                    live[slot] = ids, p.adopt(slot, ids, str(rng.integers(2)))[0]
                case 1 | 2 if n < len(ids):
                    end = min(len(ids), n + int(rng.integers(1, 10)))
                    p.reserve(slot, end)
                    p.advance(slot, n, end)
                    live[slot] = ids, end
                case 3 if slot in live:
                    back = p.reach(slot, int(rng.integers(0, n + 1)))
                    p.release(slot, back)
                    live[slot] = ids, back
                case 4 if slot in live:
                    p.publish(slot, ids[:n], "0")
                    p.release(slot)
                    del live[slot]
        except RequestError:
            pass
        p.check()
        for slot, (_, n) in live.items():
            for g in p.groups:
                places = g.table[slot, g.needed(n) : -(-n // 4)]
                assert (places >= 0).all() and all(g.pool.holders[int(b)] for b in places)
    for slot in range(4):
        p.release(slot)
    p.tree.clear()
    assert [g.pool.free for g in p.groups] == [g.pool.size for g in p.groups]
    assert p.tree.size == 0


def test_a_window_bounds_the_memory_of_any_context() -> None:
    """A Mistral of 32 layers, 8 heads of 128 and a window of 4096, as far as numbers go."""
    least = arch("all", cache(context=8192))
    least.layers, least.kv_heads, least.head_dim, least.value_dim = 32, (8,) * 32, 128, 128
    type(least).window = lambda self, i: 4096  # type: ignore[method-assign]
    sizes = [cache_bytes(least, Cache(n)) for n in (1 << 15, 1 << 17, 1 << 20)]
    assert sizes[0] == sizes[1] == sizes[2] < 1.3 * 2 * cache_bytes(least, Cache(4096))
    assert affordable(least, Cache(0), 1 << 20, sizes[0]) == 1 << 20
    whole = cache_bytes(least, Cache(4096))
    assert affordable(least, Cache(0), 1 << 20, whole) == 4096
    assert affordable(least, Cache(0), 1 << 20, 0) == 512


def test_a_step_that_the_cache_was_not_made_for_is_refused() -> None:
    c = cache(batch=16)
    device = find_backend("numba").open(threads=1)
    with (
        device,
        pytest.raises(RequestError, match="a step of 48 tokens is more than the cache was made for: 16"),
    ):
        Engine(arch("all", c).build(), c, [device], Uploaded({}), batch=BATCH)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "numba"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_saved_state_has_what_the_next_token_sees_of_each_window(
    kind: str, backend: str, tmp_path: Path
) -> None:
    path, ids = tmp_path / "state.kv", IDS[:205]

    def run(engine: Engine, *, fresh: bool) -> tuple[list[int], int]:
        service, shape = Service(engine), shape_of(engine, "0" * 64, "exact")
        try:
            if not fresh:
                assert restore(service, shape, path).tokens == 200
                assert restore(service, shape, path).tokens == 200
            handle = service.submit(GenerateRequest(ids, 6, GREEDY))
            found = list(handle)
            if fresh:
                assert save(service, shape, path, ids) == 200
            service.call(engine.pages.check)
            return found, handle.seq.cached
        finally:
            service.close()

    with opened(kind, backend) as engine:
        wanted, _ = run(engine, fresh=True)
    with opened(kind, backend, slots=2) as engine:
        assert run(engine, fresh=False) == (wanted, 200)


@compiled
@pytest.mark.parametrize("kind", LAYERS)
def test_a_tier_brings_back_what_the_next_token_sees_of_each_window(kind: str) -> None:
    texts = [[int(i) for i in np.random.default_rng(s).integers(0, tiny.VOCAB, 120)] for s in (1, 2, 3)]

    def answer(engine: Engine, ids: list[int]) -> tuple[list[int], int]:
        at, found = engine.begin(0, ids)[0], list[int]()
        cached = at
        while at < len(ids):
            part = ids[at : at + BATCH]
            at += len(part)
            found = engine.step([BatchEntry(0, part, GREEDY if at == len(ids) else None)])
        while len(found) < 4:
            found += engine.step([BatchEntry(0, found[-1:], GREEDY)])
        engine.publish(0, [*ids, *found])
        engine.rewind(0, 0)
        engine.pages.check()
        return found, cached

    with opened(kind) as plain:
        wanted = []
        for ids in texts:
            plain.pages.tree.clear()
            wanted.append(answer(plain, ids)[0])
    with opened(kind, slots=1, blocks=20) as engine:
        tier = engine.tier = HostTier(1 << 30, engine.pages, engine.states)
        cached = 0
        for _ in range(3):
            for ids, known in zip(texts, wanted, strict=True):
                found, some = answer(engine, ids)
                assert found == known
                cached += some
                tier.check()
        assert kind == "all" or (tier.brought_back and cached > 0)
