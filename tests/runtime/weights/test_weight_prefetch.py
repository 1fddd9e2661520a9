"""Weight prefetch: another device prefetches the CPU's weights for long steps. Answers stay the same, the
layers' products run there, from the predicted number of tokens on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_file
from kept_experts import keep_experts

from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadKwargs, Options
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device.device import Buffer, Device, PinnedMemory
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.graph import Node
from satchel.runtime.placement import prefetch as candidates
from satchel.runtime.placement.choose import MemoryBudget, choose
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.placement.predict import Speed, predict
from satchel.runtime.placement.prefetch import (
    LEAST,
    LEFT,
    Prefetching,
    min_prefetch_tokens,
    prefetch_layers,
    prefetch_seconds,
)
from satchel.runtime.placement.sizes import Sizes, sizes_of
from satchel.runtime.plan import Bucket
from satchel.runtime.sampling import GREEDY
from satchel.runtime.weights import prefetch
from satchel.runtime.weights.prefetch import (
    SLOTS,
    PrefetchPlan,
    WeightPrefetcher,
    block_ranges,
    step_blocks,
)

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(not {"cpu", "remote"} <= HAVE, reason="needs the cpu and the remote backend")
IDS = [(7 * i) % 250 + 3 for i in range(2 * LEAST)]
FAST = Speed((1e-5, 1e-3), (1e-4, 1e-4), 1e10, 1e-6)
HOST = MemoryBudget("cpu", 1 << 40, False)
SLOW = Speed((1e-3, 1e-1), (1e-3, 1e-3), 1e10, 1e-6)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("prefetch")
    kinds = {
        "dense": ("llama", "q8_0"),
        "mixture": ("deepseek2", "q4_k"),
        "deep": ("smollm3", "q8_0"),
        "experts": ("qwen3moe", "q4_k"),
        "exact": ("qwen3moe", "f32"),
        "windows": ("gemma2", "q8_0"),
        "factors": ("llama", "q8_0"),
        "latent": ("deepseek2", "q4_k"),
        "hybrid": ("qwen3next", "q8_0"),
    }
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    keys: dict[str, dict[str, Any]] = {
        "windows": {"gemma2__attention__sliding_window": 20},
        "factors": {"change": lambda w: w.put("rope_freqs.weight", factors)},
    }
    return {
        name: tiny_file.write_model(folder / f"{name}.gguf", *kind, **keys.get(name, {}))
        for name, kind in kinds.items()
    }


@pytest.fixture(scope="module")
def sized(files: dict[str, Path]) -> Iterator[Sizes]:
    cpu, remote = (find_backend(name).open(threads=1) for name in ("cpu", "remote"))
    with cpu, remote, open_gguf(files["dense"]) as gguf:
        run = dry_run(gguf, [cpu], measure=lambda d: FAST)
        yield sizes_of(run.arch.build(), run.arch.layers, [remote, cpu])


@pytest.mark.parametrize("device", ["remote", "emulated"])
@pytest.mark.parametrize("kind", ["dense", "mixture", "deep"])
def test_long_steps_go_where_the_weights_are_prefetched(
    files: dict[str, Path], kind: str, device: str
) -> None:
    if device not in HAVE or (device == "emulated" and kind != "dense"):
        pytest.skip("one emulated model will do")
    found, slow = {}, device == "emulated"
    ids = IDS[:LEAST] if slow else IDS
    # Of the deep one all layers are prefetched, more than there are buffers.
    kwargs: LoadKwargs = (
        {"gpu_layers": 1} if kind != "deep" else {"gpu_layers": 0, "override_tensor": ["token_embd=remote"]}
    )
    for word in ("off", "on"):
        options = Options(device=device, threads=1, cache_type="f32", prefetch_weights=word)
        with Model.load(files[kind], options, **kwargs) as model:
            found[word] = model.logits(ids)
            if not slow:
                assert model.logits(ids).tobytes() == found[word].tobytes()
                reply = model.generate(ids, max_tokens=3, sampling=GREEDY)
                reply.read()
                assert reply.ids[0] == int(found[word][-1].argmax())
            on = {n: _products(model, n) for n in (1, LEAST // 2, len(IDS))}
    bound = 1e-3 if device == "emulated" or kind == "mixture" else 1e-9
    error = np.square(found["on"] - found["off"]).sum() / np.square(found["off"]).sum()
    assert error < bound
    assert "cpu" in on[1] and "cpu" in on[LEAST // 2]  # the last model prefetches: short steps stay
    assert on[len(IDS)] == {device}


def _products(model: Model, tokens: int) -> set[str]:
    """Where the layers' products are."""
    plan = model.engine.program(tokens, 1).plan
    names = ("linear", "expert_linear")
    return {
        segment.device
        for segment in plan.segments
        for step in segment.steps
        if step.label.startswith("blk.") and step.op.startswith(names)
    }


def test_a_layer_is_sent_once_a_step_and_its_neighbour_meanwhile(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model.load(files["dense"], device="remote", threads=1, gpu_layers=0, prefetch_weights="on") as model:
        assert not isinstance(model.engine.residency, WeightPrefetcher)
    with Model.load(files["dense"], device="remote", threads=1, gpu_layers=1, prefetch_weights="on") as model:
        prefetcher = model.engine.residency
        assert isinstance(prefetcher, WeightPrefetcher)
        assert [prefetcher.variant(tokens) for tokens in (1, LEAST - 1, LEAST, 512)] == [1, 1, LEAST, LEAST]
        model.logits(IDS)

        def broken(self: Buffer, *rest: object) -> None:
            raise DeviceError("the cable is out")

        assert len(prefetcher.buffers) == min(SLOTS, len(prefetcher.plan.layers))
        prefetcher._filled.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Buffer, "pack", broken)
            with pytest.raises(DeviceError, match="the cable is out"):
                model.logits(IDS)
        assert np.isfinite(model.logits(IDS)).all()  # what was begun is forgotten


@pytest.mark.parametrize("device", ["remote", "emulated"])
@pytest.mark.parametrize("kind", ["dense", "windows", "latent", "factors"])
def test_keys_and_values_travel_with_the_weights(files: dict[str, Path], kind: str, device: str) -> None:
    """A long step has the bits that it has where the device holds the model, behind others and beside
    another sequence; what it wrote is what the CPU's own steps read.
    """
    if device not in HAVE or (device == "emulated" and kind != "dense"):
        pytest.skip("one emulated model will do")
    rounds = [[(0, IDS[:40])], [(0, IDS[5:37]), (1, IDS[:33])], [(1, IDS[9:42]), (0, IDS[:3])]]
    rules = [f"^output={device}", f"token_embd={device}"]
    found, options = (
        {},
        Options(device=device, threads=1, cache_type="f16", slots=2, context=160, override_tensor=rules),
    )
    for word in ("off", "on"):
        layers = replace(options, gpu_layers="all" if word == "off" else 1, prefetch_weights=word)
        with Model.load(files[kind], layers) as model:
            on = model.engine.residency
            assert isinstance(on, WeightPrefetcher) == (word == "on")
            if isinstance(on, WeightPrefetcher):
                assert on.plan.states.keys() == on.plan.layers.keys()
                plan = model.engine.program(LEAST, LEAST, "logits").plan
                assert {s.device for s in plan.segments if s.steps[0].label.startswith("blk.")} == {device}
            got = [
                model.engine.logits([BatchEntry(slot, tuple(ids)) for slot, ids in entries])
                for entries in rounds
            ]
            found[word] = got, model.engine.logits([BatchEntry(0, (7,)), BatchEntry(1, (8,))])
    for mine, theirs in zip(found["on"][0], found["off"][0], strict=True):
        assert mine.tobytes() == theirs.tobytes()
    short, expected = found["on"][1], found["off"][1]
    assert np.square(short - expected).sum() / np.square(expected).sum() < 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["dense", "windows"])
def test_sequences_that_fork_and_go_back_find_their_keys(
    files: dict[str, Path], kind: str, seed: int
) -> None:
    """Long steps with states that travel and short ones without, of three sequences that share blocks of the
    prefix cache, fork, go back and begin anew: every logit has the bits that it has where no weight moves.
    """
    rng, found = np.random.default_rng(seed), list[list[bytes]]()
    script = [
        (int(rng.integers(4)), int(rng.integers(3)), int(rng.integers(3)), int(rng.integers(1, 70)))
        for _ in range(40)
    ]
    rules = ["^output=remote", "token_embd=remote"]
    for word in ("off", "on"):
        options = Options(
            device="remote",
            threads=1,
            slots=3,
            context=200,
            override_tensor=rules,
            gpu_layers="all" if word == "off" else 1,
            prefetch_weights=word,
        )
        with Model.load(files[kind], options) as model:
            engine, held, got = model.engine, [list[int]() for _ in range(3)], list[bytes]()
            assert isinstance(engine.residency, WeightPrefetcher) == (word == "on")
            for what, slot, other, n in script:
                ids = [IDS[(n * 7 + i * 3) % len(IDS)] for i in range(n)]
                if what == 0 and slot != other:
                    engine.fork(slot, other, held[slot])
                    held[other] = list(held[slot])
                elif what == 1:
                    held[slot] = held[slot][: engine.rewind(slot, len(held[slot]) * n // 70)]
                elif what == 2:
                    engine.publish(slot, held[slot])
                    cached, _ = engine.begin(slot, [*held[slot][:64], *ids])
                    held[slot] = held[slot][:cached]
                if len(held[slot]) + n > 190:
                    held[slot] = held[slot][: engine.rewind(slot, 0)]
                got.append(engine.logits([BatchEntry(slot, tuple(ids))]).tobytes())
                held[slot] += ids
            engine.pages.check()
        found.append(got)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("kind", "device", "share"),
    [
        ("deep", "remote", 0.0),
        ("experts", "remote", 0.0),
        ("experts", "remote", 0.5),
        ("experts", "emulated", 0.0),
    ],
)
def test_layers_of_the_device_lie_in_the_buffers_between_long_steps(
    files: dict[str, Path], kind: str, device: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short steps read them there, before a long step, behind one and behind one that failed. share: of the
    prefetched experts, what the CPU keeps.
    """
    if device not in HAVE:
        pytest.skip(f"needs the backend {device}")
    if share:
        keep_experts(monkeypatch, (LEAST, share))
    monkeypatch.setattr(candidates, "product", lambda states, residents: [(states[0], residents[1])])
    rules = ["blk.0.*_exps=cpu"] if kind == "experts" else [f"^output={device}", f"token_embd={device}"]
    options = Options(device=device, threads=1, override_tensor=rules, expert_cache="off", context=160)
    layers = "all" if kind == "experts" else 2
    found = {}
    for word in ("off", "on"):
        with Model.load(files[kind], replace(options, gpu_layers=layers, prefetch_weights=word)) as model:
            residency = model.engine.residency
            short = [model.engine.logits([BatchEntry(0, (5,))])]
            for ids in (IDS[:LEAST], IDS[3 : LEAST + 3]):
                model.engine.logits([BatchEntry(0, tuple(ids))])
                short.append(model.engine.logits([BatchEntry(0, (7,))]))
            if isinstance(residency, WeightPrefetcher):
                plan = residency.plan
                assert (
                    plan.residents == tuple(list(plan.layers)[-2:]) and plan.residents[0] not in plan.states
                )
                assert any(residency._parts.values()) == (share > 0)
                held = model.engine._weights[device].sizes()
                assert sum(held.values()) < sum(found["held"].values())
                with monkeypatch.context() as patch:
                    patch.setattr(WeightPrefetcher, "_send", _broken_at_second)
                    with pytest.raises(DeviceError, match="the cable is out"):
                        model.engine.logits([BatchEntry(0, tuple(IDS[:LEAST]))])
                assert not residency._filled
                with monkeypatch.context() as patch:
                    patch.setattr(WeightPrefetcher, "_fill", _broken)
                    with pytest.raises(DeviceError, match="the cable is out"):
                        model.engine.logits([BatchEntry(0, (7,))])
                assert not residency._filled
            else:
                found["held"] = model.engine._weights[device].sizes()
            model.engine.rewind(0, 0)
            short.append(model.engine.logits([BatchEntry(0, (5,))]))
            found[word] = short
    assert found["on"][0].tobytes() == found["off"][0].tobytes() == found["on"][-1].tobytes()
    for mine, theirs in zip(found["on"], found["off"], strict=True):
        assert np.square(mine - theirs).sum() / np.square(theirs).sum() < 1e-3


def _broken(self: WeightPrefetcher, label: str, *what: int) -> None:
    raise DeviceError("the cable is out")


def _broken_at_second(self: WeightPrefetcher, at: int, ahead: bool = False) -> None:
    if at == 1 and not ahead:
        raise DeviceError("the cable is out")


def test_what_layers_of_the_device_read_too_is_not_sent(sized: Sizes) -> None:
    """Such as the factors of RoPE of all layers."""
    shared = [replace(sized.tensors[1], name="rope_freqs.weight", label=f"blk.{i}") for i in range(3)]
    held = {name: {**sizes, "rope_freqs.weight": 64} for name, sizes in sized.held.items()}
    sizes = replace(sized, tensors=(*sized.tensors, *shared), held=held)
    for own, sent in ((1, False), (0, True)):
        options = Options(device="remote", gpu_layers=own, override_tensor=["token_embd=remote"])
        budgets = [MemoryBudget("remote", 1 << 40, True), HOST]
        placement = choose(sizes, budgets, options.placement_options).placement
        layers = prefetch_layers(placement, sizes, "remote")
        assert len(layers) == 3 - own
        for tensors in layers.values():
            assert any(t.name == "rope_freqs.weight" for t in tensors) == sent


def test_residents_are_counted_once(sized: Sizes) -> None:
    """Where the buffers find no room beside all of the device's layers, the first of these lies in them."""
    usual = Options(device="remote", gpu_layers=1).placement_options
    placement = choose(sized, [MemoryBudget("remote", 1 << 40, True), HOST], usual).placement
    held = sized.on(placement)["remote"]

    def candidate(room: int) -> PrefetchPlan | None:
        return Prefetching(sized, [MemoryBudget("remote", held + room, True), HOST], usual).candidate(
            placement
        )

    whole = candidate(1 << 30)
    assert whole is not None and not whole.residents and whole.states
    fewer = candidate(whole.nbytes - 1)
    assert fewer is not None and fewer.residents == ("blk.2",) and fewer.states == whole.states
    assert list(fewer.layers) == ["blk.0", "blk.1", "blk.2"] and fewer.sent > whole.sent
    resident = fewer.sent - whole.sent
    assert whole.nbytes - resident <= fewer.nbytes < whole.nbytes
    least = candidate(fewer.nbytes - 1)
    assert least is not None and least.residents and not least.states
    assert candidate(least.nbytes - 1) is None


def test_recurrent_states_do_not_travel(files: dict[str, Path]) -> None:
    options = Options(device="remote", threads=1, prefetch_weights="on", gpu_layers=1)
    with Model.load(files["hybrid"], options) as model:
        residency = model.engine.residency
        assert isinstance(residency, WeightPrefetcher)
        plan = residency.plan
        assert (list(plan.layers), list(plan.states)) == (["blk.0", "blk.1"], ["blk.1"])
        expected = model.logits(IDS).tobytes()
        assert model.logits(IDS).tobytes() == expected


def test_the_cache_stays_where_the_options_say(files: dict[str, Path]) -> None:
    options = Options(device="remote", threads=1, gpu_layers=1, prefetch_weights="on", kv_offload=False)
    with Model.load(files["dense"], options) as model:
        residency = model.engine.residency
        assert isinstance(residency, WeightPrefetcher) and not residency.plan.states


def test_what_a_failed_step_wrote_is_not_read_back(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model.load(files["dense"], device="remote", threads=1, gpu_layers=1, prefetch_weights="on") as model:
        residency = model.engine.residency
        assert isinstance(residency, WeightPrefetcher)
        expected = model.logits(IDS).tobytes()
        read, sent = list[str](), WeightPrefetcher._send

        def broken(self: WeightPrefetcher, at: int, ahead: bool = False) -> None:
            if at == 1:
                raise DeviceError("the cable is out")
            sent(self, at, ahead)

        with monkeypatch.context() as patch:
            patch.setattr(WeightPrefetcher, "_send", broken)
            with pytest.raises(DeviceError, match="the cable is out"):
                model.logits(IDS)
        assert residency._entered == "blk.0"
        read_back = WeightPrefetcher._read_back

        def noted(self: WeightPrefetcher, label: str) -> None:
            read.append(label)
            read_back(self, label)

        monkeypatch.setattr(WeightPrefetcher, "_read_back", noted)
        assert model.logits(IDS).tobytes() == expected
        assert [label for label in read if label] == list(residency.plan.states)


def test_blocks_of_a_step() -> None:
    tables = {
        "table": np.array([[4, 5, 6, 9], [0, 1, 2, 3]], np.int32),
        "table.8": np.array([[-1, -1, 7, 2]] * 2),
    }
    slots, positions = np.array([1, 0, 0, 0]), np.array([0, 31, 32, 33])
    found = step_blocks(tables, slots, positions, 16)
    assert found.before == {"table": [(4, 2)], "table.8": []}
    assert found.written == {"table": [(0, 1), (5, 2)], "table.8": [(7, 1)]}
    assert block_ranges([]) == []


EXPERTS: LoadKwargs = {
    "threads": 1,
    "gpu_layers": "all",
    "override_tensor": ["_exps=cpu"],
    "expert_cache": "off",
}


@pytest.mark.parametrize("device", ["remote", "emulated"])
def test_experts_of_a_devices_layers_are_prefetched(
    files: dict[str, Path], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long step has the bits that it has where the experts are on the device. There are two buffers, fewer
    than layers, and what is sent arrives at once: no weights are read before they came or after they went.
    """
    if device not in HAVE:
        pytest.skip(f"needs the backend {device}")
    ids = IDS[:LEAST]
    with Model.load(files["experts"], device=device, threads=1, gpu_layers="all") as model:
        assert len({s.device for s in model.engine.program(LEAST, 1).plan.segments}) == 1
        whole = model.logits(ids)
    monkeypatch.setattr(prefetch, "SLOTS", 2)
    fill = WeightPrefetcher._fill

    def filled(self: WeightPrefetcher, label: str, *what: int) -> None:
        fill(self, label, *what)
        if self._pinned:
            card = self._pinned[0].device
            self._unpin()  # waits for what is sent
            self._pin(card)

    monkeypatch.setattr(WeightPrefetcher, "_fill", filled)
    with Model.load(files["experts"], device=device, prefetch_weights="on", **EXPERTS) as model:
        prefetcher = model.engine.residency
        assert isinstance(prefetcher, WeightPrefetcher) and len(prefetcher.plan.layers) > len(
            prefetcher.buffers
        )
        assert prefetcher.plan.pinned == bool(prefetcher._pinned) == (device == "emulated")
        assert _products(model, 1) == {device, "cpu"} and _products(model, LEAST) == {device}
        for _ in range(2):
            assert model.logits(ids).tobytes() == whole.tobytes()


def test_pages_that_cannot_be_locked_are_copied(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if "emulated" not in HAVE:
        pytest.skip("needs the backend emulated")
    ids, pin = IDS[:LEAST], Device.pin
    with Model.load(files["experts"], device="emulated", prefetch_weights="off", **EXPERTS) as model:
        expected = model.logits(ids)

    def second_fails(
        self: Device, memory: Any, start: int, size: int, writable: bool = False
    ) -> PinnedMemory:
        if start:
            raise DeviceError("the driver has no pages left")
        return pin(self, memory, start, size, writable)

    monkeypatch.setattr(Device, "pin", second_fails)
    monkeypatch.setattr(
        WeightPrefetcher, "_ranges", lambda self: [(0, 0, PAGESIZE), (0, PAGESIZE, 2 * PAGESIZE)]
    )
    with Model.load(files["experts"], device="emulated", prefetch_weights="on", **EXPERTS) as model:
        assert isinstance(model.engine.residency, WeightPrefetcher) and not model.engine.residency._pinned
        error = np.square(model.logits(ids) - expected).sum() / np.square(expected).sum()
    assert error < 1e-3 and "the driver has no pages left" in caplog.text


def test_the_next_layer_is_queued_when_a_layer_has_begun(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host then waits for what the layer computes, and could not queue the next one's copies meanwhile;
    before that it would keep the device waiting.
    """
    if "emulated" not in HAVE:
        pytest.skip("needs the backend emulated")
    filled, begun = list[str](), list[str]()
    fill, send_next = WeightPrefetcher._fill, WeightPrefetcher.send_next

    def noted(self: WeightPrefetcher, label: str, *what: int) -> None:
        fill(self, label, *what)
        filled.append(label)

    def sent(self: WeightPrefetcher) -> None:
        layers, label = list(self.plan.layers), self._entered
        after = layers[: layers.index(label) + 2][-1] if label in layers else ""
        send_next(self)
        if after:
            begun.append(label)
            assert after in [label for label, _ in self._filled.values()]

    monkeypatch.setattr(WeightPrefetcher, "_fill", noted)
    monkeypatch.setattr(WeightPrefetcher, "send_next", sent)
    with Model.load(files["experts"], device="emulated", prefetch_weights="on", **EXPERTS) as model:
        prefetcher = model.engine.residency
        assert isinstance(prefetcher, WeightPrefetcher) and prefetcher._pinned
        model.logits(IDS[:LEAST])
        layers = list(prefetcher.plan.layers)
        assert list(dict.fromkeys(begun)) == layers and len(layers) == 3
        assert filled == [*layers, layers[0]]  # the next step's, in the buffer of the last
        begun.clear()
        filled.clear()
        model.logits(IDS[:LEAST])
        assert filled == [layers[2], layers[0]]  # the second layer stays where it is


@pytest.mark.parametrize("device", ["remote", "emulated"])
def test_the_cpu_keeps_some_experts_of_what_is_sent(
    files: dict[str, Path], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each layer the CPU computes with the share that a step of its size has, and no more is sent than the
    rest: after a step with fewer, what is missing.
    """
    if device not in HAVE:
        pytest.skip(f"needs the backend {device}")
    sizes = (LEAST, 2 * LEAST) if device == "remote" else (LEAST // 2, LEAST)
    file = files["exact" if device == "remote" else "experts"]
    how = Options(device=device, cache_type="f32")
    with Model.load(file, how, prefetch_weights="off", **EXPERTS) as model:
        wanted = [model.logits(IDS[:n]) for n in sizes]
    sent: list[tuple[str, int, int]] = []
    fill = WeightPrefetcher._fill

    def noted(self: WeightPrefetcher, label: str, first: int, end: int, states: bool) -> None:
        sent.append((label, first, end))
        fill(self, label, first, end, states)

    keep_experts(monkeypatch, (sizes[0], 0.6), (sizes[1], 0.3))
    monkeypatch.setattr(WeightPrefetcher, "_fill", noted)
    with Model.load(file, how, prefetch_weights="on", **EXPERTS) as model:
        prefetcher = model.engine.residency
        assert isinstance(prefetcher, WeightPrefetcher) and not prefetcher.plan.residents
        layers = list(prefetcher.plan.layers)
        assert [prefetcher.variant(n) for n in (1, sizes[0] - 1, *sizes)] == [1, 1, *sizes]
        assert [{p.count for p in found.values()} for found in prefetcher._parts.values()] == [{3}, {5}]
        run = dry_run(model.gguf, model.devices, model.options, measure=lambda d: FAST)
        for n in sizes:
            assert _products(model, n) == {device, "cpu"}
            foretold, plan_of = run.plan(n), model.engine.program(n, 1).plan
            assert [[*s.steps] for s in foretold.segments] == [[*s.steps] for s in plan_of.segments]
        for turn in (0, 0, 1, 1, 0):
            got = model.logits(IDS[: sizes[turn]])
            error = np.square(got - wanted[turn]).sum() / np.square(wanted[turn]).sum()
            assert error < (1e-9 if device == "remote" else 1e-3), turn
        assert {end for _, _, end in sent} == {3, 5} and (layers[1], 3, 5) in sent
        assert sent[:3] == [(label, -1, 3) for label in layers] and {first for _, first, _ in sent} == {-1, 3}


@pytest.mark.parametrize("lacking", ["", "remote"])
def test_no_experts_are_kept_where_a_device_cannot_compute_with_a_part(
    files: dict[str, Path], lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are sent then."""
    refusal = DeviceTarget.refusal

    def refused(self: DeviceTarget, node: Node, *bucket: Bucket) -> str:
        part = any(s.op == "weight" and ".sent" in s.name for s in node.src)
        return "it is broken" if part and self.name == lacking else refusal(self, node, *bucket)

    monkeypatch.setattr(DeviceTarget, "refusal", refused)
    keep_experts(monkeypatch, (LEAST, 0.5))
    with Model.load(files["exact"], device="remote", prefetch_weights="on", **EXPERTS) as model:
        prefetcher = model.engine.residency
        assert isinstance(prefetcher, WeightPrefetcher)
        assert bool(prefetcher.plan.host_shares) == (lacking != "remote")
        assert np.isfinite(model.logits(IDS)).all()
        assert _products(model, LEAST) == ({"remote"} if lacking == "remote" else {"remote", "cpu"})


def test_the_cpu_keeps_what_it_computes_while_the_rest_is_sent(files: dict[str, Path]) -> None:
    cpu, remote = (find_backend(name).open(threads=1) for name in ("cpu", "remote"))
    with cpu, remote, open_gguf(files["experts"]) as gguf:
        arch = dry_run(gguf, [cpu], measure=lambda d: FAST).arch
        sizes = sizes_of(arch.build(), arch.layers, [remote, cpu])
    budgets = [MemoryBudget("remote", 1 << 40, True), HOST]
    options = Options(device="remote", gpu_layers="all", override_tensor=["_exps=cpu"]).placement_options
    prefetching = Prefetching(sizes, budgets, options, True, 4096)
    placement = choose(sizes, budgets, options).placement
    plan = prefetching.candidate(placement)
    assert plan is not None and plan.pinned and plan.experts
    there = replace(FAST, direct=plan.sent / 0.1)  # sending takes 0.1 s

    def seconds(n: int, layer: float, plan: PrefetchPlan = plan) -> tuple[float, float]:
        here = replace(SLOW, layer=(1e-9, layer))
        found = prefetch_seconds(placement, sizes, plan, {"remote": there, "cpu": here}, n)
        return found.prefetched, found.share

    assert seconds(512, 10.0) == (pytest.approx(0.1, rel=0.01), 0.0)
    halved, share = seconds(512, 0.1 / sizes.layers)
    assert 0.3 < share < 0.6 and halved == pytest.approx(0.1 * (1 - share), rel=0.1)
    shares = [seconds(n, 0.1 / sizes.layers)[1] for n in (128, 256, 512, 1024, 4096)]
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]
    assert seconds(512, 0.1 / sizes.layers, replace(plan, pinned=False))[1] == 0.0
    speeds = {"remote": there, "cpu": replace(SLOW, layer=(1e-9, 0.1 / sizes.layers))}
    found = replace(prefetching, options=replace(options, prefetch="auto")).plan(placement, speeds)
    assert found is not None and found.host_shares[0].tokens == found.min_tokens
    assert all(a.share > b.share for a, b in pairwise(found.host_shares))
    whole = prefetching.predicted(placement, {**speeds, "cpu": replace(SLOW, layer=(1e-9, 10.0))})
    assert prefetching.predicted(placement, speeds).prompt < 0.8 * whole.prompt


def test_the_pages_of_all_prefetched_weights_are_locked_once(files: dict[str, Path]) -> None:
    if "emulated" not in HAVE:
        pytest.skip("needs the backend emulated")
    with Model.load(files["experts"], device="emulated", prefetch_weights="on", **EXPERTS) as model:
        prefetcher = model.engine.residency
        assert isinstance(prefetcher, WeightPrefetcher)
        ranges = prefetcher._ranges()
        size = model.gguf.parts[0].size
        assert all(start % PAGESIZE == 0 and start < end <= size for _, start, end in ranges)
        assert all(a[2] < b[1] for a, b in pairwise(ranges))
        for name in (n for names in prefetcher.plan.layers.values() for n in names):
            info = model.gguf.tensors[name]
            assert any(a <= info.offset and info.offset + info.nbytes <= b for _, a, b in ranges)


@pytest.mark.parametrize("word", ["", "ON", "maybe"])
def test_a_wrong_word_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match="prefetch_weights"):
        Model.load("no such file", prefetch_weights=word)


@pytest.mark.parametrize("given", [{"prefetch_weights": "on"}, {"expert_cache": 3}, {"expert_cache": "1GB"}])
def test_weights_stay_under_deterministic(given: LoadKwargs) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(given))}: not supported with deterministic"):
        Options(deterministic=True, **given)
    usual = Options(deterministic=True).placement_options
    assert (usual.prefetch, usual.expert_cache) == ("off", "off")


def test_weights_are_prefetched_from_where_it_is_quicker(sized: Sizes) -> None:
    budgets = [MemoryBudget("remote", 1 << 40, True), MemoryBudget("cpu", 1 << 40, False)]
    usual = Options(device="remote", gpu_layers=1).placement_options
    placement = choose(sized, budgets, usual).placement
    assert list(prefetch_layers(placement, sized, "remote")) == [f"blk.{i}" for i in range(sized.layers - 1)]
    prefetching = Prefetching(sized, budgets, usual)
    plan = prefetching.candidate(placement)
    assert plan is not None and not plan.pinned

    def least(there: Speed, here: Speed, plan: PrefetchPlan) -> int | None:
        return min_prefetch_tokens(placement, sized, plan, {"remote": there, "cpu": here}, 4096)

    sent = plan.sent / len(plan.layers)
    at = [least(replace(FAST, link=sent / seconds), SLOW, plan) for seconds in (1e-5, 1e-3, 1e-2, 10)]
    assert at[0] == LEAST and at == [*sorted(n or 0 for n in at[:3]), None] and at[2] is not None
    assert least(SLOW, FAST, plan) is None
    pinned = replace(plan, pinned=True)
    directly = [least(replace(FAST, direct=sent / seconds), SLOW, pinned) for seconds in (1e-5, 10)]
    assert directly == [LEAST, None]
    speeds = {"remote": FAST, "cpu": SLOW}
    assert prefetching.plan(placement, speeds) is not None
    assert prefetching.plan(placement, None) is None
    off = Options(device="remote", gpu_layers=1, prefetch_weights="off").placement_options
    assert Prefetching(sized, budgets, off).plan(placement, speeds) is None
    held = sized.on(placement)["remote"]
    on = Options(device="remote", gpu_layers=1, prefetch_weights="on").placement_options
    exact = Prefetching(sized, [MemoryBudget("remote", held, True), budgets[1]], on).plan(placement, None)
    assert exact is not None and exact.states.keys() == exact.layers.keys() and not exact.residents


def test_pages_are_locked_where_the_host_has_memory_to_spare(sized: Sizes) -> None:
    on = Options(device="remote", gpu_layers=1, prefetch_weights="on").placement_options
    far = MemoryBudget("remote", 1 << 40, True)
    for room, pinned in ((1 << 40, True), (LEFT, False)):
        prefetching = Prefetching(sized, [far, MemoryBudget("cpu", room, False)], on, can_pin=True)
        plan = prefetching.candidate(choose(sized, prefetching.budgets, on).placement)
        assert plan is not None and plan.pinned == pinned


def test_a_prompt_is_predicted_with_what_is_prefetched(sized: Sizes) -> None:
    usual = Options(device="remote", gpu_layers=1).placement_options
    budgets = [MemoryBudget("remote", 1 << 40, True), MemoryBudget("cpu", 1 << 40, False)]
    placement = choose(sized, budgets, usual).placement
    fast = replace(FAST, link=1e12, direct=1e12)
    prefetching, speeds = Prefetching(sized, budgets, usual, can_pin=True), {"remote": fast, "cpu": SLOW}
    without = predict(placement, sized, speeds)
    found = prefetching.predicted(placement, speeds)
    assert found.decode == without.decode and found.prompt < without.prompt / 2
    assert without.long == 4 * without.prompt and found.long < without.long / 2
    far = {"remote": replace(fast, direct=1e3), "cpu": SLOW}
    found, without = prefetching.predicted(placement, far), predict(placement, sized, far)
    assert (found.prompt, found.long, found.seconds) == (without.prompt, without.long, without.seconds)


def test_weights_are_sent_once_for_each_step_of_a_long_prompt(files: dict[str, Path]) -> None:
    cpu, remote = (find_backend(name).open(threads=1) for name in ("cpu", "remote"))
    with cpu, remote, open_gguf(files["experts"]) as gguf:
        arch = dry_run(gguf, [cpu], measure=lambda d: FAST).arch
        sizes = sizes_of(arch.build(), arch.layers, [remote, cpu])
    budgets = [MemoryBudget("remote", 1 << 40, True), MemoryBudget("cpu", 1 << 40, False)]
    long = []
    for rules, layers, batch in ((["_exps=cpu"], "all", 4096), ([], 0, 4096), ([], 0, 512)):
        options = Options(
            device="remote,cpu", gpu_layers=layers, override_tensor=[*rules, "token_embd=remote"]
        )
        prefetching = Prefetching(sizes, budgets, options.placement_options, True, batch)
        placement = choose(sizes, budgets, options.placement_options).placement
        plan = prefetching.candidate(placement)
        assert plan is not None
        slow = replace(FAST, direct=plan.sent / 0.1)  # sending takes 0.1 s
        host = replace(SLOW, layer=(1e-3, 10.0))  # it keeps no experts
        long.append(prefetching.predicted(placement, {"remote": slow, "cpu": host}).long)
    assert long == [pytest.approx(seconds, rel=0.2) for seconds in (0.1, 0.1, 0.4)]
