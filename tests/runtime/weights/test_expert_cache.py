"""The expert cache: answers stay the same, the cached experts follow their use, and no plan reads an expert
that is being swapped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_file
from accuracy import nmse
from waiting import happened

from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.compiler.check import check_steps
from satchel.runtime.device.device import (
    Buffer,
    Device,
)
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.placement.expert_cache import _helps
from satchel.runtime.placement.options import read_expert_cache
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import HANDOVER, Speed
from satchel.runtime.sampling import GREEDY
from satchel.runtime.weights.expert_cache.cache import ExpertCache
from satchel.runtime.weights.expert_cache.layout import CACHED
from satchel.runtime.weights.expert_cache.usage import ExpertUsage

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(not {"cpu", "remote"} <= HAVE, reason="needs the cpu and the remote backend")
IDS = [(7 * i) % 250 + 3 for i in range(24)]
FAST = Speed((1e-5, 1e-3), (1e-4, 1e-4), 1e10, 1e-6)
SLOW = Speed((1e-3, 1e-1), (1e-3, 1e-3), 1e10, 1e-6)
KINDS = {"qwen3moe": "f32", "deepseek2": "q4_k", "llama4": "q4_k"}
EXPERTS = "_exps=cpu"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("cached experts")
    return {a: tiny_file.write_model(folder / f"{a}.gguf", a, f) for a, f in KINDS.items()}


def load(path: Path, cache: str | int, device: str = "remote", **more: object) -> Model:
    options = Options(
        device=device,
        threads=1,
        cache_type="f32",
        override_tensor=[EXPERTS],
        expert_cache=cache,
        prefetch_weights="off",
    )
    return Model.load(path, options, gpu_layers="all", **more)  # type: ignore[arg-type]


def experts_of(model: Model) -> ExpertCache:
    found = model.engine.residency
    assert isinstance(found, ExpertCache)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_answers_stay_whatever_is_held(files: dict[str, Path], kind: str) -> None:
    with load(files[kind], "off") as model:
        assert not isinstance(model.engine.residency, ExpertCache)
        wanted = model.logits(IDS)
    with load(files[kind], 2) as model:
        cache = experts_of(model)
        cache.step_bytes = 0  # no swap by itself
        first, bound = next(iter(cache.usage.values())), 1e-9 if KINDS[kind] == "f32" else 1e-4
        assert nmse(model.logits(IDS), wanted) < bound
        everything = set(range(len(first.slots)))
        while everything:  # each expert is held once
            chosen = sorted(everything)[:2]
            everything -= set(chosen)
            hold(cache, [*chosen, *(e for e in range(len(first.slots)) if e not in chosen)][:2])
            assert nmse(model.logits(IDS), wanted) < bound, chosen
            assert nmse(np.stack([model.logits(IDS[: n + 1])[-1] for n in (0, 1)]), wanted[:2]) < bound


def hold(cache: ExpertCache, experts: list[int]) -> None:
    """Caches these experts of every layer, as if they had been swapped in."""
    for label, usage in cache.usage.items():
        usage.slots[:] = -1
        for slot, expert in enumerate(experts):
            usage.holders[slot] = expert
            usage.slots[expert] = slot
            cache._fill(label, slot, expert)
        cache._tell_all(label)


def test_both_devices_have_a_part_of_a_layer_and_no_other_copy(files: dict[str, Path]) -> None:
    with load(files["qwen3moe"], 3) as model:
        steps = [(s.device, step) for s in model.engine.program(1, 1).plan.segments for step in s.steps]
        for device in ("cpu", "remote"):
            ops = [step.op for on, step in steps if on == device]
            assert {"gather", "expert_swiglu", "expert_linear", "expert_sum"} <= set(ops)
            assert ("attention" in ops) == (device == "remote")
        assert all(
            (CACHED in str(step.inputs)) == (on == "remote") for on, step in steps if "swiglu" in step.op
        )
        assert not model.engine.moved
        reports = check_steps(model, IDS)
        assert {r.op for r in reports} >= {"gather", "expert_linear"}


@pytest.mark.skipif("emulated" not in HAVE, reason="needs the emulated backend")
def test_the_kernels_of_gpus_have_their_part(files: dict[str, Path]) -> None:
    ids = IDS[:3]
    with load(files["qwen3moe"], "off", "emulated") as model:
        wanted = model.logits(ids)
    with load(files["qwen3moe"], 2, "emulated") as model:
        assert len(experts_of(model).layout.layers) == 3
        assert nmse(model.logits(ids), wanted) < 1e-4
        assert nmse(model.logits(ids), wanted) < 1e-4  # after what moved


def skewed(weights: tiny.TinyWeights) -> None:
    """Routers that always select the last experts: all other rows are the negative of one row."""
    for name in [n for n in weights.tensors if n.endswith("ffn_gate_inp.weight")]:
        rows = np.random.default_rng(5).standard_normal(weights.shapes[name]).astype(np.float32)
        rows[:-2] *= 0.01
        rows[-2] = -rows[-1]
        weights.put(name, rows)


def test_what_is_held_follows_what_is_picked(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "skewed router.gguf", "qwen3moe", change=skewed)
    with load(path, "off") as model:
        wanted = model.logits(IDS * 3)
    with load(path, 2) as model:
        cache = experts_of(model)
        assert all(list(p.holders) == [0, 1] for p in cache.usage.values())
        for _ in range(12):
            assert nmse(model.logits(IDS * 3), wanted) < 1e-9
            cache.wait()
        for usage in cache.usage.values():
            assert usage.swap() is None and usage.favourites(1)[0] in usage.holders
            assert set(np.flatnonzero(usage.slots >= 0)) == set(usage.holders)
        assert cache.moved
        before = cache.counted
        model.logits(IDS)
        total, held = (now - then for now, then in zip(cache.counted, before, strict=True))
        counts = np.array([np.sort(p.counts) for p in cache.usage.values()])
        best = counts[:, -2:].sum() / counts.sum()  # of any two experts of each layer
        assert not total % (len(IDS) * len(cache.usage)) and held / total > 0.8 * best
        stats = model.stats()
        assert (
            stats.expert_cache_lookups,
            stats.expert_cache_hits,
        ) == cache.counted and stats.expert_cache_moved_bytes == cache.moved


def test_steps_go_on_while_an_expert_is_on_its_way(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(files["qwen3moe"], "off") as model:
        wanted = model.logits(IDS)
    go, sent = threading.Event(), threading.Event()
    fill = ExpertCache._fill

    def slow(self: ExpertCache, label: str, slot: int, expert: int) -> None:
        assert self.usage[label].slots[expert] < 0 and slot not in self.usage[label].slots
        layer = self.layout.layers[label]
        for name in layer.tensors:  # a reader gets nonsense now
            place = self._places[layer.device][name + CACHED]
            size = self.bytes_of(label) // 8
            each = self.gguf.tensors[name].nbytes // layer.experts
            self._buffers[layer.device].write(
                place.offset + each * slot, np.full(min(size, each), 0x7F, np.uint8)
            )
        sent.set()
        happened(go, "leave to fill")
        fill(self, label, slot, expert)

    with load(files["qwen3moe"], 2) as model:
        cache = experts_of(model)
        monkeypatch.setattr(ExpertCache, "_fill", slow)
        for usage in cache.usage.values():
            usage.counts[-1] = 1e4
        assert nmse(model.logits(IDS), wanted) < 1e-9
        happened(sent, "an expert is on its way")
        for _ in range(3):
            assert nmse(model.logits(IDS), wanted) < 1e-9
        assert all(p.slots[-1] < 0 for p in cache.usage.values())
        go.set()
        for _ in range(4):
            cache.wait()
            assert nmse(model.logits(IDS), wanted) < 1e-9
        assert any(p.slots[-1] >= 0 for p in cache.usage.values())


def test_a_move_that_fails_leaves_the_cpu_the_expert(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(files["qwen3moe"], 2) as model:
        wanted, cache = model.logits(IDS), experts_of(model)

        def broken(self: Buffer, *rest: object) -> None:
            raise DeviceError("the cable is out")

        for usage in cache.usage.values():
            usage.counts[-1] = 1e4
        with monkeypatch.context() as patch:
            patch.setattr(Buffer, "pack", broken)
            model.logits(IDS[:2])
            cache.wait()
        for _ in range(2):
            assert nmse(model.logits(IDS), wanted) < 1e-9


def test_a_step_sends_no_more_than_it_may(files: dict[str, Path]) -> None:
    with load(files["qwen3moe"], 2) as model:
        cache = experts_of(model)
        for usage in cache.usage.values():
            usage.counts[-1] = 1e4
        cache.step_bytes = 1
        assert len(cache._wanted()) == 1
        cache.step_bytes = 2 * cache.bytes_of(next(iter(cache.usage)))
        assert len(cache._wanted()) == min(2, len(cache.usage))
        cache.step_bytes = 0
        assert not cache._wanted()


def test_chance_moves_nothing() -> None:
    """With equally likely experts the cached ones stay, except for a few."""
    rng, usage, moved = np.random.default_rng(3), ExpertUsage(64, 16), 0
    usage.holders[:] = range(16)
    usage.slots[:16] = range(16)
    for _ in range(2000):
        usage.add(rng.permuted(np.tile(np.arange(64), (1, 1)), axis=1)[:, :4])
        swap = usage.swap()
        if swap is not None:
            moved += 1
            usage.holders[swap.slot] = swap.expert
    assert moved <= 4


def test_favourites_are_found_and_old_ones_forgotten() -> None:
    usage = ExpertUsage(8, 2)
    for favourites in ([5, 6], [1, 2]):
        for _ in range(40):
            usage.add(np.tile(np.array(favourites), (200, 1)))
            for _ in range(2):
                swap = usage.swap()
                if swap is not None:
                    usage.holders[swap.slot] = swap.expert
        assert set(usage.holders) == set(favourites) == set(usage.favourites(2))
    assert ExpertUsage(2, 2).swap() is not None  # a place that nobody has


def test_memory_is_what_was_foretold_and_given_back(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: dict[str, int] = {}
    alloc = Device.alloc

    def counted(self: Device, size: int, usage: int) -> Buffer:
        reserved[self.name] = reserved.get(self.name, 0) + size
        return alloc(self, size, usage)

    monkeypatch.setattr(Device, "alloc", counted)
    options = Options(
        device="remote",
        threads=1,
        override_tensor=[EXPERTS],
        expert_cache=3,
        prefetch_weights="off",
        gpu_layers="all",
    )
    with Model.load(files["qwen3moe"], options) as model:
        model.generate(IDS * 3, max_tokens=1, sampling=GREEDY).read()
        model.engine.program(1, 1)
        model.engine.program(96, 1)
        held, cache = dict(reserved), experts_of(model)
        buffers = list(cache._buffers.values())
    assert all(buffer.handle is None for buffer in buffers) and not cache._buffers
    with open_gguf(files["qwen3moe"]) as gguf:
        devices = [find_backend(n).open(threads=1) for n in ("remote", "cpu")]
        run = dry_run(gguf, devices, options, lambda d: FAST)
        shares = {s.device: s for s in run.shares()}
        assert any("3 of 7 experts" in note for note in run.settled.notes)
        predicted = run.predicted()
        assert predicted is not None and predicted.tg > 0
        for device in devices:
            device.close()
    share = shares["remote"]
    assert held["remote"] == pytest.approx(share.total, rel=0.05)


@pytest.fixture
def foretold(files: dict[str, Path]) -> Iterator[object]:
    devices = [find_backend(n).open(threads=1) for n in ("remote", "cpu")]
    with open_gguf(files["qwen3moe"]) as gguf:
        yield (
            lambda options, fast: (
                dry_run(
                    gguf, devices, options, lambda d: FAST if (d.name == "remote") == fast else SLOW
                ).settled
            )
        )
    for device in devices:
        device.close()


def test_auto_takes_what_is_left_where_it_helps(foretold) -> None:  # type: ignore[no-untyped-def]
    auto = Options(device="remote,cpu", threads=1, override_tensor=[EXPERTS])
    settled = foretold(auto, True)
    assert (
        settled.expert_cache is not None
        and next(iter(settled.expert_cache.layers.values())).count == tiny.EXPERTS
    )
    assert foretold(auto, False).expert_cache is None  # a device that is slower than the CPU
    named = Options(device="remote", threads=1, override_tensor=[EXPERTS])
    assert foretold(named, True).expert_cache is not None  # the rule leaves experts: speeds say what is open
    assert foretold(named, False).expert_cache is None
    off = Options(device="remote,cpu", threads=1, override_tensor=[EXPERTS], deterministic=True)
    assert off.placement_options.expert_cache == "off"


def test_a_cache_of_few_experts_must_pay_for_a_turn_of_the_device() -> None:
    expert: Any = SimpleNamespace(label="blk.0", name="blk.0.ffn_up_exps.weight", read=100.0)
    sizes: Any = SimpleNamespace(tensors=[expert], layers=1)  # all that a layer reads: 1 ms of the CPU

    def helps(share: float, start: float) -> bool:
        speeds = {"cpu": SLOW, "remote": replace(FAST, start=start)}
        return _helps(sizes, Placement("cpu", {}), "remote", {"blk.0": [expert]}, speeds, share)

    cost = (1e-4 + HANDOVER) / SLOW.layer[0]  # the share of the CPU's time that a turn takes
    assert not helps(0.9 * cost, 1e-4) and helps(1.1 * cost, 1e-4)
    assert helps(1.0, 1e-4) and not helps(1.0, SLOW.layer[0]), "the device is no faster than the CPU"


def test_more_than_there_is_room_for_is_refused(foretold) -> None:  # type: ignore[no-untyped-def]
    how = {"device": "remote", "threads": 1, "override_tensor": [EXPERTS], "gpu_layers": "all"}
    with pytest.raises(
        DeviceError, match=r"device remote: .*cached experts|all layers need|tensors placed there need"
    ):
        foretold(Options(**how, expert_cache=7, gpu_memory=2_600_000), True)
    with pytest.raises(RequestError, match="expert_cache is 'many'"):
        Options(expert_cache="many").check()
    assert (
        read_expert_cache("4GB").bytes == 4 * 10**9
        and read_expert_cache(8).experts == 8
        and read_expert_cache("off").experts == 0
    )


def test_many_sequences_and_a_worker_process(files: dict[str, Path]) -> None:
    with load(files["qwen3moe"], "off", slots=3) as model:
        wanted = [r.ids for r in model.generate_many([IDS, IDS[3:], IDS[:5]], max_tokens=6, sampling=GREEDY)]
    with load(files["qwen3moe"], 3, slots=3) as model:
        assert [
            r.ids for r in model.generate_many([IDS, IDS[3:], IDS[:5]], max_tokens=6, sampling=GREEDY)
        ] == wanted
    with load(files["qwen3moe"], 3, worker="process") as model:
        reply = model.generate(IDS, max_tokens=6, sampling=GREEDY)
        reply.read()
        assert reply.ids == wanted[0] and model.stats().expert_cache_hits > 0


def test_a_step_of_the_engine_alone(files: dict[str, Path]) -> None:
    with load(files["qwen3moe"], 2) as model:
        cache = experts_of(model)
        model.engine.step([BatchEntry(0, IDS, GREEDY)])
        used = cache.counted[0] // len(cache.usage)
        assert 0 < used <= 4 * len(IDS)
