"""Pipelines of groups on the test device: a stage may be a group of devices, which divides its layers. The
answers are those of one device, with several steps under way too; saved states do not depend on the stages;
the loss of a member leaves the others; and placement gives whole layers to groups, other devices and the CPU.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import extra_files
import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs

from satchel.cli.main import main
from satchel.errors import RequestError
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.compiler.joined import joined
from satchel.runtime.compiler.verify import PlanError
from satchel.runtime.device.device import Device
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.group_check import GroupCheck, _kept
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.sharded import CacheRoom
from satchel.runtime.grammar import Regex
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Cache
from satchel.runtime.placement.devices import ROOM, free_bytes
from satchel.runtime.placement.options import PlacementOptions
from satchel.runtime.plan import Bucket
from satchel.runtime.sampling import GREEDY, Sampling

pytestmark = needs("remote")
IDS = [3, 1, 4, 1, 5]
PROMPT = "Once upon a time"
FIRST, SECOND = "remote:0+remote:1", "remote:2+remote:3"
TWO = f"{FIRST},{SECOND}"
# Products of 8-bit activations round by blocks, which a division moves; 16 bits leave greedy text as it is.
EXACT = {"threads": 1, "context": 256, "activations": 16, "worker": "thread"}
HALF = {"tensor_split": "1,1"}


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "5")
    monkeypatch.setenv("SATCHEL_REMOTE_LATE_US", "0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")


def stages_of(*sizes: int) -> list[Device]:
    """A device for each number of members; 0 is the CPU."""
    found, at = list[Device](), 0
    for size in sizes:
        if not size:
            found.append(find_backend("cpu").open(threads=1))
            continue
        members = [find_backend("remote").open(at + i, threads=1) for i in range(size)]
        found.append(GroupDevice(members) if size > 1 else members[0])
        at += size
    return found


def engine_on(
    arch: str, format: str, *sizes: int, head: int = -1, begins: tuple[int, ...] = (), **options: Any
) -> Engine:
    """Layers in equal parts, or from the layers `begins` on the next stage; the embeddings on the first
    stage, the head on the last one or on `head`.
    """
    weights, devices = tiny.weights(arch, format), stages_of(*sizes)
    layers = 1 + max(int(n.split(".")[1]) for n in weights.tensors if n.startswith("blk."))
    names = [device.name for device in devices]
    begins = begins or tuple(-(-i * layers // len(names)) for i in range(1, len(names)))

    def wanted(node: Node) -> str:
        if node.name.startswith("blk."):
            return names[bisect_right(begins, int(node.name.split(".")[1]))]
        tokens = node.op in ("tokens_put", "tokens_get")  # the token table is where tokens are sampled
        return names[0] if node.name == "embed" and not tokens else names[head]

    cache = Cache(context=96, slots=6, block=16, batch=32)
    engine = tiny.engine(arch, weights, cache, *devices, wanted=wanted, batch=32, **options)
    assert engine.stages == (tuple(names) if len(names) > 1 else ())
    assert set(engine.devices) == set(names)
    return engine


def logits_on(arch: str, format: str, *sizes: int) -> np.ndarray:
    with closing(engine_on(arch, format, *sizes)) as engine:
        first = engine.logits([BatchEntry(1, IDS)])
        return np.concatenate((first, engine.logits([BatchEntry(1, [9])])))


@pytest.mark.parametrize(
    ("arch", "format", "sizes", "bound"),
    [
        ("llama", "f32", (2, 2), 1e-7),
        ("llama", "q8_0", (2, 0), 1e-3),
        ("llama", "f32", (3, 1), 1e-7),
        ("qwen3moe", "q4_k", (2, 2), 1e-2),  # divided by experts
        ("deepseek2", "f32", (0, 3), 1e-5),  # its cache has one head, which every member keeps
        ("gemma3", "f32", (1, 2), 1e-7),  # layers with a window
        ("qwen3next", "f32", (2, 3), 1e-5),  # recurrent states
    ],
)
def test_logits_are_those_of_one_device(arch: str, format: str, sizes: tuple[int, ...], bound: float) -> None:
    one, found = logits_on(arch, format, 1), logits_on(arch, format, *sizes)
    assert np.square(found - one).sum() / np.square(one).sum() <= bound


@pytest.mark.parametrize(
    ("arch", "sizes", "bound", "blocks"),
    [
        ("llama", (2, 2), 1e-7, (0, 0)),  # caches are divided by heads
        ("llama", (2, 3), 1e-7, (0, 4)),  # two KV heads for three members
        ("llama", (3, 0), 1e-7, (2,)),
        ("deepseek2", (2, 3), 1e-5, (1, 2)),  # one latent for all heads
    ],
)
def test_stages_divide_rows_of_prompts_and_blocks_of_caches(
    arch: str, sizes: tuple[int, ...], bound: float, blocks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequence and context parallelism in each group of a pipeline: all sums of a prompt but those of the
    last layer are divided. After each step the bits of the members of each group are compared.
    """
    monkeypatch.setenv("SATCHEL_GROUP_CHECK", "1")
    monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", "4")
    batches = [[BatchEntry(1, list(range(3, 33)))], [BatchEntry(1, IDS), BatchEntry(2, [7, 8])]]
    batches += [[BatchEntry(1, [9]), BatchEntry(2, [5])]]
    found = []
    for how in ((1,), sizes):
        begins = (1,) if len(how) > 1 else ()
        with closing(engine_on(arch, "f32", *how, begins=begins, room=CacheRoom("on"))) as engine:
            found.append(np.concatenate([engine.logits(batch) for batch in batches]))
            if engine.division is not None:
                divided = [len(own.blocks) for own in engine.division.shardings.values()]
                plan = engine.plan(Bucket(32, 1), "logits")
                groups = [s for s in plan.segments if s.members]
                scattered = [sum(step.op == "reduce_scatter" for step in s.steps) for s in groups]
    assert tuple(divided) == blocks
    assert scattered == [3, 2][: len(blocks)]  # the embeddings and a layer; a layer, and the last one
    assert np.square(found[1] - found[0]).sum() / np.square(found[0]).sum() <= bound


def test_each_group_divides_caches_for_which_its_members_lack_room() -> None:
    free = {f"remote:{i}" if i else "remote": 1 if i == 3 else 1 << 30 for i in range(5)}
    with closing(engine_on("deepseek2", "f32", 2, 3, room=CacheRoom("auto", free))) as engine:
        assert engine.division is not None
        blocks = {name: len(own.blocks) for name, own in engine.division.shardings.items()}
        assert blocks == {"remote+remote:1": 0, "remote:2+remote:3+remote:4": 1}


def test_blocks_of_a_pipeline_are_those_of_one_device() -> None:
    """Context parallelism: each stage deals the blocks of its layers among its own members."""
    rng = np.random.default_rng(0)
    with (
        closing(engine_on("deepseek2", "f32", 1)) as alone,
        closing(engine_on("deepseek2", "f32", 2, 3, room=CacheRoom("on"))) as engine,
    ):
        (size,) = alone.states.block_bytes
        assert engine.states.block_bytes == (size,)
        data = [rng.integers(0, 256, size).astype(np.uint8) for _ in range(engine.cache.pool)]
        for block, bits in enumerate(data):
            engine.states.write_block(block, bits)
        for old, new in ((0, 1), (2, 4), (5, 11), (1, 0)):
            engine.states.copy_block(old, new)
            data[new] = data[old]
        out = np.empty(size, np.uint8)
        for block, bits in enumerate(data):
            engine.states.read_block(block, out)
            assert np.array_equal(out, bits), block


def test_a_stage_is_one_segment_and_what_crosses_is_read_once() -> None:
    """A member of each stage computes a part of each of its layers, in as many segments as the stages have
    turns; the value that crosses is read from one member and written to all of the next stage.
    """
    with closing(engine_on("llama", "f32", 3, 2)) as engine:
        plan = engine.program(1, 1).plan
        assert [s.device for s in plan.segments] == ["remote+remote:1+remote:2", "remote:3+remote:4"]
        assert [[m.device for m in s.members] for s in plan.segments] == [
            ["remote", "remote:1", "remote:2"],
            ["remote:3", "remote:4"],
        ]
        assert not plan.segments[0].transfers
        (hidden,) = plan.segments[1].transfers
        assert hidden.source == "remote"
        assert [device for device, _ in hidden.targets] == ["remote:3", "remote:4"]
        assert "copy remote -> remote:3, remote:4" in "\n".join(plan.listing())


def test_every_member_of_the_last_stage_has_the_same_bits() -> None:
    with closing(engine_on("llama", "q8_0", 2, 3)) as engine:
        for _ in range(3):
            engine.step([BatchEntry(0, [5])])
        program = engine.program(1, 1)
        bits = set()
        for member in program.plan.segments[-1].members:
            buffer = program.inner[member.device, program.plan.output.buffer]
            out = np.empty(buffer.size, np.uint8)
            buffer.read_into(0, out)
            bits.add(out.tobytes())
        assert len(bits) == 1


def test_the_check_of_groups_compares_the_members_of_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_GROUP_CHECK", "1")
    with closing(engine_on("llama", "q8_0", 2, 0, 2)) as engine:
        checked, check = list[int](), GroupCheck.check

        def noted(self: GroupCheck, numbers: Iterable[int], counts: np.ndarray) -> None:
            checked.extend(numbers := list(numbers))
            check(self, numbers, counts)

        monkeypatch.setattr(GroupCheck, "check", noted)
        engine.logits([BatchEntry(0, IDS)])
        assert checked == [0, 1, 2]
        second = engine.program(5, 5, "logits").plan.segments[2]
        keys = [set(dict(_kept(member))) for member in second.members]
        assert keys[0] == keys[1] and len(keys[0]) > 5  # whole values that are compared


def test_ranks_that_could_not_run_in_step_are_refused() -> None:
    with closing(engine_on("llama", "f32", 2, 1)) as engine:
        plan = engine.program(1, 1).plan
    groups = {"remote+remote:1": ("remote", "remote:1")}
    with pytest.raises(PlanError, match=r"remote:1 has no part of a segment, remote\+remote:1 has one"):
        joined({"remote+remote:1": ("remote+remote:1", "remote:1")}, [plan, plan])
    with pytest.raises(PlanError, match="member 1 has 1 segments"):
        joined(groups, [plan, _with(plan, segments=plan.segments[:1])])


def _with(plan: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(plan, **changes)


def requests(count: int) -> list[GenerateRequest]:
    """Greedy and seeded ones, some whose prompts take several steps."""
    rng, found = np.random.default_rng(count), []
    for i in range(count):
        ids = [int(t) for t in rng.integers(0, tiny.VOCAB, rng.integers(1, 70 if i % 3 == 2 else 20))]
        kinds = (GREEDY, Sampling(temperature=1.3, top_k=0, seed=i), Sampling(repeat_penalty=1.4, seed=i))
        found.append(GenerateRequest(ids, int(rng.integers(4, 12)), kinds[i % 3]))
    return found


def answers(engine: Engine, asked: list[GenerateRequest]) -> list[tuple[list[int], str]]:
    """All at once, through a service of their own."""
    with closing(Service(engine)) as service:
        return [(list(handle), handle.finish) for handle in [service.submit(r) for r in asked]]


def test_lanes_of_groups_give_the_answers_of_one_lane() -> None:
    """Two steps are under way, each on another group, and each request has the tokens that it has alone."""
    with closing(engine_on("llama", "f32", 1)) as engine:
        wanted = answers(engine, requests(6))
    for sizes, head in (((2, 2), -1), ((2, 0), 0)):
        with closing(engine_on("llama", "f32", *sizes, head=head)) as engine:
            assert engine.lanes == 2
            assert answers(engine, requests(6)) == wanted
            engine.pages.check()
            assert engine.idle()


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    with Model.load(device="cpu", **EXACT) as model:  # type: ignore[arg-type]
        yield model.generate(PROMPT, max_tokens=10, temperature=0.0).read()


@pytest.mark.model
@pytest.mark.parametrize("devices", [TWO, f"{FIRST},cpu", "remote:0+remote:1+remote:2,remote:3"])
def test_greedy_text_is_that_of_one_device(alone: str, devices: str) -> None:
    with Model.load(device=devices, **EXACT, **HALF) as model:  # type: ignore[arg-type]
        assert len(model.engine.stages) == 2
        assert model.generate(PROMPT, max_tokens=10, temperature=0.0).read() == alone


def test_drafts_grammars_and_biases_are_those_of_one_device(path: Path) -> None:
    texts = []
    for device, more in (("remote", {}), (TWO, HALF)):
        with Model.load(path, device=device, **EXACT, **more) as model:  # type: ignore[arg-type]
            for how in ({}, {"grammar": Regex("(ab|ba)+"), "logit_bias": {5: 2.0}}):
                asked: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, **how}
                texts.append(model.generate("a b a b a", **asked).read())
    assert texts[:2] == texts[2:]


@pytest.mark.parametrize(("saved", "restored"), [((TWO, HALF), ("remote", {})), ((FIRST, {}), (TWO, HALF))])
def test_a_saved_state_does_not_depend_on_the_stages(
    path: Path, tmp_path: Path, saved: tuple[str, Any], restored: tuple[str, Any]
) -> None:
    state, prompt = tmp_path / "state", "the cat sat on the mat and " * 3
    with Model.load(path, device=saved[0], threads=1, worker="thread", **saved[1]) as model:
        text = model.generate(prompt, max_tokens=8, temperature=0.0).read()
        kept = model.save_state(state, prompt)
    with Model.load(path, device=restored[0], threads=1, worker="thread", **restored[1]) as model:
        assert model.restore_state(state).tokens == kept
        reply = model.generate(prompt, max_tokens=8, temperature=0.0)
        assert reply.read() == text
        assert reply.report.cached_tokens > 0


def test_adapters_are_those_of_one_device(path: Path, tmp_path: Path) -> None:
    adapter = AdapterFile(extra_files.write_adapter(tmp_path / "a.gguf", extra_files.factors(1), 8.0), 1.0)
    vector = AdapterFile(extra_files.write_vector(tmp_path / "v.gguf", extra_files.directions(3)), 1.0)
    found = []
    for device, more in (("remote", {}), (TWO, HALF), (f"{FIRST},cpu", HALF)):
        how = {**EXACT, **more, "adapters": [adapter], "control_vectors": [vector]}
        with Model.load(path, device=device, **how) as model:  # type: ignore[arg-type]
            found.append(model.logits(IDS))
    for other in found[1:]:
        assert np.square(other - found[0]).sum() / np.square(found[0]).sum() <= 1e-7


@pytest.mark.parametrize("stage", [0, 1])
def test_an_answer_goes_on_without_a_lost_member(
    path: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    """A member of either stage is lost. The model is placed anew on what is left, with the same tokens."""
    with Model.load(path, device="remote", threads=1, worker="thread") as model:
        wanted = model.generate("a b", max_tokens=6, temperature=0.0).read()
    monkeypatch.setenv("SATCHEL_REMOTE_LOST", f"{2 * stage + 1}:4")
    with Model.load(path, device=TWO, threads=1, worker="thread", tensor_split="1,1") as model:
        reply = model.generate("a b", max_tokens=6, temperature=0.0)
        assert reply.read() == wanted
        assert reply.report.restarted == 1
        assert model.placement_options.lost == (f"remote:{2 * stage + 1}",)
        left = ("remote", "remote:2+remote:3") if stage == 0 else ("remote+remote:1", "remote:2")
        assert model.placement_options.devices == left


def test_layers_that_a_group_is_not_to_have_are_on_the_cpu(path: Path) -> None:
    with Model.load(path, device="remote", **EXACT) as model:  # type: ignore[arg-type]
        wanted = model.logits(IDS)
    with Model.load(path, device=FIRST, gpu_layers=1, **EXACT) as model:  # type: ignore[arg-type]
        assert [d.name for d in model.devices] == ["remote+remote:1", "cpu"]
        assert model.engine.stages == ("cpu", "remote+remote:1")
        found = model.logits(IDS)
    assert np.square(found - wanted).sum() / np.square(wanted).sum() <= 1e-7


@pytest.mark.parametrize(
    "how",
    [
        {"override_tensor": [r"\.ffn_\w*_exps\.=cpu"]},  # as --cpu-moe
        {"kv_offload": False},
        {"stream_weights": "on", "gpu_layers": 1},
    ],
    ids=["experts", "cache", "streamed"],
)
def test_parts_of_layers_may_be_on_the_cpu(tmp_path: Path, how: dict[str, Any]) -> None:
    """A step comes back to the group for each layer; what crosses is whole."""
    path = tiny_file.write_model(tmp_path / "m.gguf", "qwen3moe", "f32")
    with Model.load(path, device="remote", **EXACT) as model:  # type: ignore[arg-type]
        wanted = model.logits(IDS)
    with Model.load(path, device=FIRST, **EXACT, **how) as model:  # type: ignore[arg-type]
        turns = [segment.device for segment in model.engine.program(1, 1).plan.segments]
        assert turns.count("cpu") >= 2
        assert "remote+remote:1" in turns
        found = model.logits(IDS)
    assert np.square(found - wanted).sum() / np.square(wanted).sum() <= 1e-7


def test_layers_that_do_not_fit_a_group_are_on_the_cpu(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*more: str) -> dict[str, Any]:
        assert main(["plan", str(path), "-dev", FIRST, "-c", "96", "-b", "32", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    whole = plan()
    assert whole["placement"]["layers"] == ["remote+remote:1"] * 3
    room = max(d["total_bytes"] for d in whole["devices"])
    part = plan("--gpu-memory", str(int(0.75 * room)))
    assert set(part["placement"]["layers"]) == {"remote+remote:1", "cpu"}
    assert part["fits"]
    held = {d["device"]: d["total_bytes"] for d in part["devices"]}
    assert max(held["remote"], held["remote:1"]) <= 0.75 * room


def test_a_plan_tells_stages_and_members(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = ["plan", str(path), "-dev", f"{TWO},cpu", "-ts", "1,1,1"]
    assert main([*how, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    names = ["remote+remote:1", "remote:2+remote:3", "cpu"]
    assert sorted(facts["stages"]) == sorted(names)
    assert sorted(facts["placement"]["layers"]) == sorted(names)  # one each
    assert [(g["name"], g["members"]) for g in facts["groups"]] == [(name, 2) for name in names[:2]]
    assert all(g["reduces"] > 0 and g["divided"] > 90 for g in facts["groups"])
    assert {d["device"] for d in facts["devices"]} == {"remote", "remote:1", "remote:2", "remote:3", "cpu"}
    assert main(how) == 0
    told = capsys.readouterr().out
    assert "remote:2+remote:3: 2 members divide each layer" in told
    assert "remote+remote:1: layers 2, the head" in told
    assert "lanes: up to 3 steps are under way" in told


def test_shares_are_of_stages_or_of_the_members_of_the_one_group() -> None:
    options = Options(device=f"{FIRST},cpu", tensor_split="3,1").placement_options
    assert (options.split, options.member_split) == ((3, 1), ())
    options = Options(device=FIRST, tensor_split="3,1").placement_options
    assert (options.split, options.member_split) == ((), (3, 1))
    with pytest.raises(RequestError, match="3 numbers for 2 devices"):
        Options(device=f"{FIRST},cpu", tensor_split="1,1,1")


@pytest.mark.parametrize(("shares", "members"), [((), 2), ((3.0, 1.0), 4 / 3)])
def test_a_group_has_room_for_each_members_share(shares: tuple[float, ...], members: float) -> None:
    made = [find_backend("remote").open(i, threads=1) for i in range(2)]
    with GroupDevice(made, shares) as group:
        options = PlacementOptions(gpu_memory=1 << 20)
        assert free_bytes(group, options) == int((1 << 20) * members / ROOM)


def test_a_group_without_a_part_of_the_model_is_left_out(path: Path) -> None:
    """All of a model that fits the first group is there."""
    with Model.load(path, device=TWO, **EXACT) as model:  # type: ignore[arg-type]
        assert [d.name for d in model.devices] == ["remote+remote:1"]
        assert model.engine.stages == ()
