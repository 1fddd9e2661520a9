"""Context parallelism end to end, on groups of the test device: the answers of one device from a cache whose
blocks are dealt among the members, which together hold a context that one of them has no room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs

from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.device.device import Device
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.sharded import CacheRoom
from satchel.runtime.graph import Array, Roots, leaves
from satchel.runtime.layers.arch import Cache
from satchel.runtime.placement.dryrun import DryRun, dry_run
from satchel.runtime.placement.speeds import Speed
from satchel.runtime.sampling import Sampling
from satchel.runtime.shard.report import report

pytestmark = needs("remote")
GROUPS = {n: "+".join(f"remote:{i}" for i in range(n)) for n in (1, 2, 3, 4)}
LOAD = {"threads": 1, "context": 256, "activations": 16, "worker": "thread"}
ON, GREEDY = CacheRoom("on"), Sampling(temperature=0.0)
CACHE = Cache(96, 3, block=16)
SHARED = "the cat sat on the mat and looked at the dog that sat on the other mat; "


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "4")
    monkeypatch.setenv("SATCHEL_REMOTE_LATE_US", "0")


def group_of(n: int) -> Device:
    members = [find_backend("remote").open(i, threads=1) for i in range(n)]
    return GroupDevice(members) if n > 1 else members[0]


def engine_of(arch: str, n: int, cache: Cache = CACHE, format: str = "f32", **options: object) -> Engine:
    return tiny.engine(arch, tiny.weights(arch, format), cache, group_of(n), room=ON, **options)


def ids(seed: int, length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, tiny.VOCAB, length)]


def logits(engine: Engine) -> Array:
    """Of two sequences' prompts, which cross blocks, and of single tokens behind them."""
    try:
        found = [engine.logits([BatchEntry(1, ids(1, 40)), BatchEntry(2, ids(2, 3))])]
        found.append(engine.logits([BatchEntry(0, ids(3, 17))]))
        found.append(engine.logits([BatchEntry(slot, [9 + slot]) for slot in (0, 1, 2)]))
        return np.concatenate(found)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("arch", "n", "bound"),
    [
        ("deepseek2", 2, 1e-5),  # one latent for all heads
        ("deepseek2", 3, 1e-5),
        ("llama", 3, 1e-7),  # two KV heads for three members, whose heads are not divided
        ("llama", 4, 1e-7),
        ("olmo2", 2, 1e-7),  # a norm over all heads: each member computes them
        ("gpt_oss", 4, 1e-6),  # attention sinks, and windows whose caches stay as they are
    ],
)
def test_logits_are_those_of_one_device(
    arch: str, n: int, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_GROUP_CHECK", "1")
    one, group = logits(engine_of(arch, 1)), logits(engine_of(arch, n))
    assert np.square(group - one).sum() / np.square(one).sum() <= bound


@pytest.mark.parametrize("type", ["q8_0", "fp8"])
def test_types_of_cache(type: str) -> None:
    cache = Cache(96, 3, block=16, keys=type, values=type)
    one, group = (logits(engine_of("llama", n, cache)) for n in (1, 4))
    assert np.square(group - one).sum() / np.square(one).sum() <= 1e-5


def blocks_of(roots: Roots) -> set[object]:
    """Numbers of blocks of a member's caches."""
    return {leaf.shape[0] for leaf in leaves(roots, "state") if len(leaf.shape) == 4}


def test_members_have_the_blocks_of_the_pool_once() -> None:
    """Of 18 blocks four members have five each; the states of one device have all."""
    sizes = []
    for room in (CacheRoom("off"), ON):
        weights = tiny.weights("deepseek2", "f32")
        engine = tiny.engine("deepseek2", weights, CACHE, group_of(4), room=room)
        members = engine.optimized("tokens").ranks
        sizes.append([blocks_of(own.roots) for own in members])
        engine.close()
    assert CACHE.pool == 18
    assert sizes == [[{18}] * 4, [{5}] * 4]


def steps(engine: Engine, slot: int, tokens: Sequence[int], count: int) -> list[int]:
    """Greedy tokens after a prompt, of which the prefix tree may hold a part."""
    cached, _ = engine.begin(slot, tokens)
    found = engine.step([BatchEntry(slot, tokens[cached:], GREEDY)])
    while len(found) < count:
        found += engine.step([BatchEntry(slot, found[-1:], GREEDY)])
    engine.publish(slot, [*tokens, *found])
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_prompts_share_blocks_and_forks_copy_them(n: int) -> None:
    """A second prompt begins with cached blocks; a fork copies its last block to another member."""
    texts = []
    for count in (1, n):
        engine = engine_of("deepseek2", count)
        try:
            first = steps(engine, 0, ids(5, 50), 4)
            assert engine.begin(1, [*ids(5, 40), *ids(6, 9)])[0] == 32
            engine.rewind(1, 0)
            second = steps(engine, 1, [*ids(5, 40), *ids(6, 9)], 4)
            engine.fork(1, 2, [*ids(5, 40), *ids(6, 9), *second])
            third = [engine.step([BatchEntry(slot, second[-1:], GREEDY)]) for slot in (2, 1)]
            texts.append((first, second, third))
            engine.pages.check()
        finally:
            engine.close()
    assert texts[0] == texts[1]


@pytest.mark.parametrize("n", [2, 3])
def test_blocks_are_read_written_and_copied_as_one_device_has_them(n: int) -> None:
    alone, group = engine_of("deepseek2", 1), engine_of("deepseek2", n)
    try:
        (size,) = alone.states.block_bytes
        assert group.states.block_bytes == (size,)
        rng = np.random.default_rng(0)
        data = [rng.integers(0, 256, size).astype(np.uint8) for _ in range(CACHE.pool)]
        for block, bits in enumerate(data):
            group.states.write_block(block, bits)
        for old, new in ((0, 1), (2, 3), (4, 4 + n), (17, 0)):
            group.states.copy_block(old, new)
            data[new] = data[old]
        out = np.empty(size, np.uint8)
        for block, bits in enumerate(data):
            group.states.read_block(block, out)
            assert np.array_equal(out, bits), block
    finally:
        alone.close()
        group.close()


def test_what_was_evicted_comes_back_from_host_memory() -> None:
    cache = Cache(96, 2, block=8, blocks=13)
    found = []
    for n in (1, 3):
        engine = engine_of("deepseek2", n, cache, host_cache=1 << 30)
        try:
            assert engine.tier is not None
            engine.tier.recompute = lambda tokens: None  # moving always pays
            texts = []
            for seed in (1, 2, 1):
                texts.append(steps(engine, 0, ids(seed, 60), 5))
                engine.rewind(0, 0)
            assert engine.tier.brought_back
            found.append(texts)
        finally:
            engine.close()
    assert found[0] == found[1]
    assert found[0][0] == found[0][2]


@pytest.mark.parametrize(("arch", "n"), [("deepseek2", 2), ("deepseek2", 3), ("llama", 4)])
def test_greedy_text_is_that_of_one_device(tmp_path: Path, arch: str, n: int) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", arch, "f32")
    texts = []
    for device in (GROUPS[1], GROUPS[n]):
        with Model.load(path, device=device, context_parallel="on", slots=2, **LOAD) as model:  # type: ignore[arg-type]
            texts.append(
                [model.generate(SHARED + end, max_tokens=12, temperature=0.0).read() for end in "ab"]
            )
            reply = model.generate(SHARED + "b", max_tokens=2, temperature=0.0)
            reply.read()
            assert reply.report.cached_tokens >= 64
    assert texts[0] == texts[1]


@pytest.mark.model
@pytest.mark.parametrize("n", [2, 3, 4])
def test_greedy_text_of_the_bundled_model(n: int) -> None:
    texts = []
    for device in ("cpu", GROUPS[n]):
        with Model.load(device=device, context_parallel="on", **LOAD) as model:  # type: ignore[arg-type]
            texts.append(model.generate("Once upon a time", max_tokens=10, temperature=0.0).read())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("saved", "restored"), [(2, 1), (1, 3), (3, 2)])
def test_a_saved_state_does_not_depend_on_the_division(tmp_path: Path, saved: int, restored: int) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "deepseek2", "f32")
    state, prompt = tmp_path / "state", SHARED * 2
    load = {"context_parallel": "on", "threads": 1, "worker": "thread", "context": 256}
    with Model.load(path, device=GROUPS[saved], **load) as model:  # type: ignore[arg-type]
        text = model.generate(prompt, max_tokens=8, temperature=0.0).read()
        kept = model.save_state(state, prompt)
    with Model.load(path, device=GROUPS[restored], **load) as model:  # type: ignore[arg-type]
        assert model.restore_state(state).tokens == kept
        reply = model.generate(prompt, max_tokens=8, temperature=0.0)
        assert reply.read() == text
        assert reply.report.cached_tokens > 0


@contextmanager
def planned(path: Path, **options: object) -> Iterator[DryRun]:
    """The plan on a group of four, of a context far longer than the model was trained for."""
    made = Options(threads=1, context=1 << 16, batch=64, device=GROUPS[4], **options)  # type: ignore[arg-type]
    group = group_of(4)
    try:
        with open_gguf(path) as gguf:
            yield dry_run(gguf, [group], made, lambda device: Speed((1, 1), (1, 1), 1e9, 1e-6))
    finally:
        group.close()


def test_a_context_that_fits_only_where_its_blocks_are_dealt(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "deepseek2", "f32")
    caches, most = [], []
    for how in ("off", "on"):
        with planned(path, context_parallel=how) as run:
            shares = list(run.shares())
            caches.append(max(share.kv for share in shares))
            most.append(max(share.total for share in shares))
    assert caches[0] / 4 <= caches[1] < caches[0] / 3.9
    fits = {}
    for how in ("off", "on", "auto"):
        with planned(path, context_parallel=how, gpu_memory=sum(most) // 2) as run:
            fits[how] = all(share.fits for share in run.shares())
    assert fits == {"off": False, "on": True, "auto": True}


def test_auto_divides_caches_only_where_they_do_not_fit(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "deepseek2", "f32")
    for memory, caches in ((0, 0), (1 << 20, tiny.LAYERS)):
        with planned(path, gpu_memory=memory) as run:
            assert run.division is not None
            (sharding,) = run.division.shardings.values()
            assert len(sharding.blocks) == caches
            (shown,) = report(run.optimized, run.division)
            assert shown.blocks == caches
            assert shown.block_gathers == 2 * caches  # the queries, and the states of the softmax


def test_caches_that_are_divided_by_heads_stay_so() -> None:
    engine = engine_of("llama", 2)
    try:
        assert engine.division is not None
        assert not any(own.blocks for own in engine.division.shardings.values())
    finally:
        engine.close()
