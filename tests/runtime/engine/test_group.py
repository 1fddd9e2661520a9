"""Tensor parallelism end to end, on groups of the test device: the answers of one device, the same bits on
every member, one C call a step, and states that do not depend on the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import extra_files
import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs

from satchel.errors import DeviceError, RequestError
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.grammar import Regex
from satchel.runtime.layers.arch import Cache
from satchel.runtime.speculation import Speculation

pytestmark = needs("remote")
IDS = [3, 1, 4, 1, 5]
PROMPT = "Once upon a time"
GROUPS = {n: "+".join(f"remote:{i}" for i in range(n)) for n in (1, 2, 3, 4)}
# Products of 8-bit activations round by blocks, which a division moves; 16 bits leave greedy text as it is.
EXACT = {"threads": 1, "context": 256, "activations": 16, "worker": "thread"}


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "4")
    monkeypatch.setenv("SATCHEL_REMOTE_LATE_US", "0")


def group_of(n: int, shares: tuple[float, ...] = ()) -> GroupDevice:
    backend = find_backend("remote")
    return GroupDevice([backend.open(i, threads=1) for i in range(n)], shares)


def tiny_logits(arch: str, format: str, group: GroupDevice | None) -> np.ndarray:
    cache = Cache(64, 2, block=16)
    device = find_backend("remote").open(threads=1) if group is None else group
    engine = tiny.engine(arch, tiny.weights(arch, format), cache, device)
    try:
        first = engine.logits([BatchEntry(1, IDS)])
        return np.concatenate((first, engine.logits([BatchEntry(1, [9])])))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("arch", "format", "n", "bound"),
    [
        ("llama", "f32", 2, 1e-7),
        ("qwen3moe", "q4_k", 2, 1e-2),  # divided by experts
        ("deepseek2", "f32", 2, 1e-5),  # its cache has one head, which every member keeps
        ("command_r", "f32", 4, 1e-7),  # members share KV heads; a layer has one all-reduce
    ],
)
def test_logits_are_those_of_one_device(arch: str, format: str, n: int, bound: float) -> None:
    one, group = tiny_logits(arch, format, None), tiny_logits(arch, format, group_of(n))
    assert np.square(group - one).sum() / np.square(one).sum() <= bound


def test_every_member_has_the_same_bits_and_a_step_is_one_call() -> None:
    group = group_of(3)
    engine = tiny.engine("llama", tiny.weights("llama", "q8_0"), Cache(64, 2, block=16), group)
    try:
        for _ in range(3):
            engine.step([BatchEntry(0, [5])])
        program = engine.program(1, 1)
        plan, places = program.plan, program.inner
        meetings = sum("reduce_add" in s.op or "gather" in s.op for s in plan.segments[0].steps)
        meetings -= sum(s.op in ("gather_rows", "gather") for s in plan.segments[0].steps)
        assert len(plan.segments) == 1
        assert group.group_info().meetings == 3 * meetings
        size = program.inner[plan.output.device, plan.output.buffer].size
        found = [places[m.name, plan.output.buffer] for m in group.members]
        bits = {_read(buffer, size) for buffer in found}
        assert len(bits) == 1
    finally:
        engine.close()


def _read(buffer: object, size: int) -> bytes:
    out = np.empty(size, np.uint8)
    buffer.read_into(0, out)  # type: ignore[attr-defined]
    return out.tobytes()


def test_uneven_shares() -> None:
    one, group = tiny_logits("llama", "f32", None), tiny_logits("llama", "f32", group_of(2, (3, 1)))
    assert np.allclose(one, group, atol=1e-4)


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    with Model.load(device="cpu", **EXACT) as model:  # type: ignore[arg-type]
        yield model.generate(PROMPT, max_tokens=10, temperature=0.0).read()


@pytest.mark.model
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_greedy_text_is_that_of_one_device(alone: str, n: int) -> None:
    with Model.load(device=GROUPS[n], **EXACT) as model:  # type: ignore[arg-type]
        assert model.generate(PROMPT, max_tokens=10, temperature=0.0).read() == alone


LONG = "Once upon a time there was a little girl who lived in a house near the woods, and"


@pytest.mark.model
@pytest.mark.parametrize("n", [2, 3, 4])
def test_greedy_text_is_that_of_one_device_with_divided_rows(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of prompts are divided, from four tokens on; answers of one token a step are not."""
    with Model.load(device="cpu", **EXACT) as model:  # type: ignore[arg-type]
        alone = model.generate(LONG, max_tokens=10, temperature=0.0).read()
    monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", "4")
    with Model.load(device=GROUPS[n], **EXACT) as model:  # type: ignore[arg-type]
        assert model.generate(LONG, max_tokens=10, temperature=0.0).read() == alone
        steps = model.engine.program(16, 1).plan.segments[0].steps
        assert sum(step.op == "reduce_scatter" for step in steps) > 2


def prompt_bits(arch: str, format: str, n: int, sizes: tuple[int, ...]) -> tuple[bytes, int]:
    """Bits of the logits behind prompts of these sizes, and the number of sums of own rows in their plans."""
    engine = tiny.engine(arch, tiny.weights(arch, format), Cache(64, 2, block=16), group_of(n), batch=16)
    try:
        found = [engine.logits([BatchEntry(1, [1 + t for t in range(size)])]) for size in sizes]
        found.append(engine.logits([BatchEntry(1, [9])]))
        plans = (program.plan for program in engine._programs.values())
        steps = (step for plan in plans for segment in plan.segments for step in segment.steps)
        return np.concatenate(found).tobytes(), sum(step.op == "reduce_scatter" for step in steps)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("arch", "format", "n"),
    [
        ("llama", "q8_0", 2),
        ("llama", "f32", 3),
        ("gemma2", "q8_0", 4),
        ("qwen3moe", "q4_k", 3),
        ("gpt2", "f32", 2),
    ],
)
def test_divided_rows_change_no_bit(arch: str, format: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that do not divide evenly, of buckets that they do not fill; after each step the members' whole
    values are compared.
    """
    monkeypatch.setenv("SATCHEL_GROUP_CHECK", "1")
    found = []
    for tokens in ("0", "4"):
        monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", tokens)
        found.append(prompt_bits(arch, format, n, (13, 5, 3)))
    (whole, none), (divided, some) = found
    assert whole == divided
    assert none == 0 < some


def test_drafts_grammars_and_biases_are_those_of_one_device(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "qwen3", "f32")
    texts = []
    for device in ("remote", GROUPS[2]):
        drafts = Speculation(lookup=True)
        with Model.load(path, device=device, threads=1, speculation=drafts, worker="thread") as model:
            for how in ({}, {"grammar": Regex("(ab|ba)+"), "logit_bias": {5: 2.0}}):
                asked = {"max_tokens": 8, "temperature": 0.0, **how}
                texts.append(model.generate("a b a b a", **asked).read())  # type: ignore[arg-type]
    assert texts[:2] == texts[2:]


@pytest.mark.parametrize(("saved", "restored"), [(2, 1), (1, 2), (3, 2)])
def test_a_saved_state_does_not_depend_on_the_group(tmp_path: Path, saved: int, restored: int) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    state, prompt = tmp_path / "state", "the cat sat on the mat and " * 3
    with Model.load(path, device=GROUPS[saved], threads=1, worker="thread") as model:
        text = model.generate(prompt, max_tokens=8, temperature=0.0).read()
        kept = model.save_state(state, prompt)
    with Model.load(path, device=GROUPS[restored], threads=1, worker="thread") as model:
        assert model.restore_state(state).tokens == kept
        reply = model.generate(prompt, max_tokens=8, temperature=0.0)
        assert reply.read() == text
        assert reply.report.cached_tokens > 0


@pytest.mark.parametrize("type", ["q8_0", "q4_0"])
def test_types_of_cache(tmp_path: Path, type: str) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    found = []
    for device in ("remote", GROUPS[2]):
        with Model.load(path, device=device, cache_type=type, threads=1) as model:
            found.append(model.logits(IDS))
    assert np.square(found[1] - found[0]).sum() / np.square(found[0]).sum() <= 1e-5


def test_adapters_and_control_vectors_are_those_of_one_device(tmp_path: Path) -> None:
    """LoRA on products that are divided by rows and by columns, mixed with a control vector and a second
    adapter, in prompts and answers.
    """
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    adapters = [
        AdapterFile(extra_files.write_adapter(tmp_path / f"{name}.gguf", tensors, 8.0), 0.0)
        for name, tensors in (
            ("a", extra_files.factors(1)),
            ("b", extra_files.factors(2, 3, ("attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down"))),
        )
    ]
    vector = AdapterFile(extra_files.write_vector(tmp_path / "v.gguf", extra_files.directions(3)), 0.0)
    found = []
    for device in ("remote", GROUPS[2], GROUPS[3]):
        with Model.load(path, device=device, adapters=adapters, control_vectors=[vector], **EXACT) as model:  # type: ignore[arg-type]
            mixes = (
                {"adapters": {"a": 1.0}},
                {"adapters": {"a": 0.5, "b": 1.0}},
                {"control_vectors": {"v": 2.0}},
            )
            found.append([model.logits(IDS), *(model.logits(IDS, **mix) for mix in mixes)])  # type: ignore[arg-type]
    for one in found[1:]:
        for mine, wanted in zip(one, found[0], strict=True):
            assert np.square(mine - wanted).sum() / np.square(wanted).sum() <= 1e-7
    plain, *adapted = found[0]
    assert all(np.abs(with_it - plain).max() > 0.01 for with_it in adapted)


def test_a_profile_has_the_steps_of_a_member(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "q8_0")
    with Model.load(path, device=GROUPS[2], profile=True, threads=1, worker="thread") as model:
        model.generate(PROMPT, max_tokens=4, temperature=0.0).read()
        program = model.engine.program(1, 1)
        (times,) = program.times()
        steps = program.plan.segments[0].steps
        assert len(times) == len(steps)
        assert all(t > 0 for t, step in zip(times, steps, strict=True) if step.op in ("reduce_add", "linear"))
        assert any(step.op == "reduce_add" for step in steps)


def test_split_mode_makes_a_group_of_the_devices(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "q8_0")
    with Model.load(path, device="remote:0,remote:1", split_mode="tensor", threads=1) as model:
        assert model.device.name == "remote+remote:1"
        assert isinstance(model.engine.device_of("remote+remote:1"), GroupDevice)
    assert Options(device="remote:0,remote:1", split_mode="none").placement_options.devices == ("remote",)
    assert Options(device="cuda:0,cuda:1").placement_options.devices == ("cuda", "cuda:1")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "cuda:0", "split_mode": "tensor"}, "name the devices of the group, at least two"),
        ({"device": "cuda:0,cpu", "split_mode": "tensor"}, "at least two and not the CPU"),
        ({"device": "cuda:0+cuda:0"}, "different names"),
        ({"device": "cuda:0+none"}, "none cannot be in a group"),
        ({"device": "cuda:0+cuda:1", "tensor_split": "1"}, "1 numbers for 2 devices"),
        ({"device": "cuda:0+cuda:1,cpu", "tensor_split": "1,1,1"}, "3 numbers for 2 devices"),
        ({"device": "cuda:0+cuda:1", "prefetch_weights": "on"}, "prefetch_weights: not supported"),
        ({"device": "cuda:0+cuda:1,cpu", "expert_cache": "4"}, "expert_cache: not supported"),
        ({"split_mode": "column"}, "split_mode"),
    ],
)
def test_what_a_group_cannot_have_is_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        Options(**options)  # type: ignore[arg-type]


def test_a_backend_without_groups_is_refused() -> None:
    with pytest.raises(DeviceError, match="cpu has no groups of devices"):
        GroupDevice([find_backend("cpu").open(threads=1)])


def test_members_are_of_one_backend() -> None:
    members = [find_backend(name).open(threads=1) for name in ("remote", "cpu")]
    try:
        with pytest.raises(RequestError, match="devices of one backend"):
            GroupDevice(members)
    finally:
        for member in members:
            member.close()


def test_a_collective_outside_of_a_group_is_refused() -> None:
    """A member's plan cannot be compiled for the member alone."""
    group = group_of(2)
    engine: Engine = tiny.engine("llama", tiny.weights("llama", "f32"), Cache(64, 2, block=16), group)
    try:
        engine.step([BatchEntry(0, [5])])
        program = engine.program(1, 1)
        segment = program.plan.segments[0].members[0]
        known = {**{n: b for (d, n), b in program.inner.items() if d == segment.device}}
        weights = engine.residency.steps(1, engine._weights).devices[segment.device].buffers
        buffers = [
            {**known, **weights, "state": engine.states.buffers[segment.device]}[b.name]
            for b in segment.buffers
        ]  # type: ignore[attr-defined]
        with pytest.raises(DeviceError, match="a collective needs a group of devices"):
            group.members[0].compile(segment, buffers)
    finally:
        engine.close()
