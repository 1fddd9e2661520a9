"""Groups of GPUs: what collectives compute on every member, their faults, and models on one GPU and on more.
tests/cext/test_group_host.py tests the host's part without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import missing
from group_steps import (
    GroupStep,
    defined,
    defined_rows,
    gather_cases,
    own_cases,
    reduce_cases,
    run_on_all,
    scatter_cases,
)
from one_step import Case, define, plan_of

from satchel.formats.quantize import quantize_file
from satchel.quant.recipes import RECIPES
from satchel.runtime.api.model import Model
from satchel.runtime.device.device import Device
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.device.nccl import nccl_asked
from satchel.runtime.engine.batch_entry import LAST, BatchEntry
from satchel.runtime.engine.engine import Launched
from satchel.runtime.engine.host_sampling import drawn
from satchel.runtime.engine.sharded import CacheRoom
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY


def gpus() -> int:
    return 0 if missing("cuda") else find_backend("cuda").count()


COUNT = gpus()
needs_two = pytest.mark.skipif(COUNT < 2, reason=f"two GPUs that reach each other are needed, {COUNT} found")
MEMBERS = [pytest.param(n, marks=pytest.mark.skipif(n > COUNT, reason=f"{n} GPUs are needed, {COUNT} found"))
           for n in (2, 3, 4)]  # fmt: skip
pytestmark = needs_two
PROMPT = "Once upon a time"


def joined(n: int) -> GroupDevice:
    backend = find_backend("cuda")
    return GroupDevice([backend.open(i) for i in range(n)])


@pytest.fixture(scope="module", params=MEMBERS)
def group(request: pytest.FixtureRequest) -> Iterator[GroupDevice]:
    made = joined(request.param)
    yield made
    made.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# The first three are float32 on the wire of any group; from 512 KB on (of three and more 256) bfloat16. From
# 2 MB on they go by parts, of two GPUs in one shot, of more in two.
SIZES = [(1, 64), (1, 4096), (3, 1000), (33, 4096), (64, 4096), (100, 8192)]


@pytest.mark.parametrize("residual", ["", "rows", "row"])
@pytest.mark.parametrize(("rows", "columns"), [*SIZES, (700, 4096), (1100, 4096)])
def test_sums_have_the_same_bits_on_all(
    group: GroupDevice, rng: np.random.Generator, rows: int, columns: int, residual: str
) -> None:
    cases = reduce_cases(rng, len(group.members), rows, columns, residual)
    found, want = run_on_all(group, "reduce_add", cases), defined("reduce_add", cases)
    assert all(np.array_equal(found[0].view(np.uint32), other.view(np.uint32)) for other in found[1:])
    if (rows, columns) in SIZES[:3]:
        assert np.array_equal(found[0].view(np.uint32), want.view(np.uint32))
    assert np.square(found[0] - want).sum() / np.square(want).sum() <= 1e-5


@pytest.mark.parametrize("width", [64, 37, 32064])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_columns_are_gathered(group: GroupDevice, rng: np.random.Generator, rows: int, width: int) -> None:
    cases = gather_cases(rng, rows, [width + 8 * i for i in range(len(group.members))])
    want = defined("gather_columns", cases)
    assert all(np.array_equal(found, want) for found in run_on_all(group, "gather_columns", cases))


def test_many_steps_of_changing_sizes(group: GroupDevice, rng: np.random.Generator) -> None:
    """Steps of two plans are queued without waiting, down to steps of no row; each result is checked."""
    n = len(group.members)
    small = reduce_cases(rng, n, 40, 4096, "rows")
    wide = gather_cases(rng, 8, [512] * n)
    steps = [GroupStep(group, "reduce_add", small, True), GroupStep(group, "gather_columns", wide, True)]
    wants = [defined("reduce_add", small), defined("gather_columns", wide)]
    for i in range(300):
        for step in steps:
            step.run((i * 7) % 9)
        if i % 10 == 9:
            for step, want in zip(steps, wants, strict=True):
                rows = (i * 7) % 9
                assert all(np.array_equal(found[:rows], want[:rows]) for found in step.results())
    for step in steps:
        step.close()


# Rows that a member's own are not whole chunks of, and fewer rows than members; the widest has two kernels.
DIVIDED = [(9, 64), (700, 4096), (1100, 1000), (257, 8192), (130, 16384)]


@pytest.mark.parametrize("residual", ["", "all", "own"])
@pytest.mark.parametrize(("rows", "columns"), DIVIDED)
def test_sums_of_own_rows(
    group: GroupDevice, rng: np.random.Generator, rows: int, columns: int, residual: str
) -> None:
    cases, counts = scatter_cases(rng, len(group.members), rows, columns, residual)
    step = GroupStep(group, "reduce_scatter", cases, counts=counts)
    for size in (rows, 0, 1, rows - 1, 2, rows // 2):
        step.run(size)
        for found, want in zip(
            step.results(), defined_rows("reduce_scatter", cases, counts, size), strict=True
        ):
            assert np.square(found[: len(want)] - want).sum() <= 1e-5 * np.square(want).sum()
    step.close()


@pytest.mark.parametrize("op", ["all_gather", "norm_all_gather"])
@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize(("rows", "columns"), DIVIDED)
def test_own_rows_are_gathered(
    group: GroupDevice, rng: np.random.Generator, rows: int, columns: int, rounds: int, op: str
) -> None:
    """All members have the same bits; without rounding a gather's are those of the definition."""
    cases, counts = own_cases(rng, len(group.members), rows, columns, rounds, normed=op != "all_gather")
    step = GroupStep(group, op, cases, counts=counts)
    for size in (rows, 0, 1, rows - 1, 2, rows // 2):
        step.run(size)
        found, want = [x[:size] for x in step.results()], defined_rows(op, cases, counts, size)[0]
        assert all(np.array_equal(found[0].view(np.uint32), x.view(np.uint32)) for x in found[1:])
        if op == "all_gather" and not rounds:
            assert np.array_equal(found[0], want)
        bound = 1e-5 if rounds else 1e-11
        assert np.square(found[0] - want).sum() <= bound * np.square(want).sum()
    step.close()


def test_sums_and_gathers_of_own_rows_follow_each_other(group: GroupDevice, rng: np.random.Generator) -> None:
    """Queued without waiting, at changing sizes down to no row, in turn with sums that all members have."""
    n = len(group.members)
    scatter, gather = scatter_cases(rng, n, 600, 4096, "own"), own_cases(rng, n, 600, 4096, 1, normed=True)
    whole = reduce_cases(rng, n, 1100, 4096)
    steps = [
        GroupStep(group, "reduce_scatter", scatter[0], counts=scatter[1]),
        GroupStep(group, "norm_all_gather", gather[0], counts=gather[1]),
        GroupStep(group, "reduce_add", whole, True),
    ]
    for i in range(200):
        rows = (600, 0, 3, 130, 599, 1, 256)[i % 7]
        for step in steps:
            step.run(rows)
        if i % 9 == 8:
            sums = defined_rows("reduce_scatter", *scatter, rows)
            for found, want in zip(steps[0].results(), sums, strict=True):
                assert np.square(found[: len(want)] - want).sum() <= 1e-5 * np.square(want).sum()
            want = defined_rows("norm_all_gather", *gather, rows)[0]
            for found in steps[1].results():
                assert np.square(found[:rows] - want).sum() <= 1e-5 * np.square(want).sum()
    for step in steps:
        step.close()


def test_sums_of_own_rows_are_exact_where_it_is_asked_for(rng: np.random.Generator) -> None:
    backend = find_backend("cuda")
    group = GroupDevice([backend.open(i, deterministic=True) for i in range(2)])
    cases, counts = scatter_cases(rng, 2, 700, 4096, "own")
    step = GroupStep(group, "reduce_scatter", cases, counts=counts)
    step.run(700)
    for found, want in zip(step.results(), defined_rows("reduce_scatter", cases, counts, 700), strict=True):
        assert np.array_equal(found.view(np.uint32), want.view(np.uint32))
    step.close()
    group.close()


@pytest.fixture
def by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that join now add up everything by NCCL."""
    if not nccl_asked():
        pytest.skip("NCCL is not installed: pip install 'satchel[nccl]', or SATCHEL_NCCL=PATH")
    monkeypatch.setenv("SATCHEL_NCCL_LEAST", "1")
    monkeypatch.setenv("SATCHEL_GROUP_PUSH", "0")  # else products begin their sums, if the user asks for it


@pytest.mark.usefixtures("by_nccl")
@pytest.mark.parametrize("n", MEMBERS)
def test_sums_by_nccl(n: int, rng: np.random.Generator) -> None:
    group = joined(n)
    for rows, columns, residual in ((1, 64, ""), (3, 1000, "rows"), (700, 4096, "rows"), (64, 8192, "row")):
        cases = reduce_cases(rng, n, rows, columns, residual)
        found, want = run_on_all(group, "reduce_add", cases), defined("reduce_add", cases)
        assert all(np.array_equal(found[0].view(np.uint32), other.view(np.uint32)) for other in found[1:])
        assert np.square(found[0] - want).sum() / np.square(want).sum() <= 1e-4
    assert group.group_info().library.startswith("NCCL ")
    group.close()


@pytest.mark.usefixtures("by_nccl")
@pytest.mark.parametrize("n", MEMBERS)
def test_steps_with_and_without_nccl_follow_each_other(
    n: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_NCCL_LEAST", str(1 << 20))
    group = joined(n)
    small, large = reduce_cases(rng, n, 8, 4096, "rows"), reduce_cases(rng, n, 256, 4096, "rows")
    steps = [GroupStep(group, "reduce_add", cases, True) for cases in (small, large)]
    wants = [defined("reduce_add", cases) for cases in (small, large)]
    for i in range(300):
        rows = (i * 7) % 9
        for step, times in zip(steps, (1 + i % 3, 1), strict=True):
            for _ in range(times):
                step.run(rows)
        if i % 10 == 9:
            for step, want in zip(steps, wants, strict=True):
                for found in step.results():
                    assert np.square(found[:rows] - want[:rows]).sum() <= 1e-4 * np.square(want[:rows]).sum()
    for step in steps:
        step.close()
    group.close()


@pytest.mark.usefixtures("by_nccl")
def test_a_member_that_is_late_for_nccl_is_named(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setenv("SATCHEL_GROUP_TIMEOUT_MS", "4000")  # NCCL's own start takes a while
    group = joined(2)
    step = GroupStep(group, "reduce_add", reduce_cases(rng, 2, 1, 4096))
    step.run()
    step.exec.wait()
    held = busy(group.members[1], 16384, 160)  # some ten seconds
    with pytest.raises(DeviceLost, match="member 1 did not come to reduce_add of step 0") as caught:
        for _ in range(3):
            step.run()
        step.exec.wait()
    assert caught.value.device == group.members[1].name
    step.close()
    for one in held:
        one.close()  # type: ignore[attr-defined]
    group.close()
    joined(2).close()


def test_long_and_short_steps_follow_each_other(group: GroupDevice, rng: np.random.Generator) -> None:
    """Words and parts, in turn and at changing sizes, down to no row: they have inboxes of their own."""
    n = len(group.members)
    cases = reduce_cases(rng, n, 1100, 4096, "rows")
    step, want = GroupStep(group, "reduce_add", cases, True), defined("reduce_add", cases)
    sizes = (1100, 0, 3, 130, 1100, 1, 600, 127, 128, 1090)
    for i in range(200):
        rows = sizes[(i * 7) % len(sizes)]
        step.run(rows)
        if i % 9 == 8 and rows:
            found = step.results()
            assert all(
                np.array_equal(found[0][:rows].view(np.uint32), other[:rows].view(np.uint32))
                for other in found[1:]
            )
            assert np.square(found[0][:rows] - want[:rows]).sum() <= 1e-5 * np.square(want[:rows]).sum()
    step.close()


def busy(device: Device, size: int = 4096, execs: int = 40) -> list[object]:
    """Queues products of matrices of so many rows and columns on a device, four of each exec."""
    x = w = np.ones((size, size), np.float32)
    one = Case("", ((x, "f32"), (w, "f32")), (size, size))
    segment, data = plan_of("linear", one, 0)
    buffers = [device.alloc(b.size, b.usage) for b in segment.buffers]
    for buffer, raw in zip(buffers, data, strict=True):
        buffer.write(0, raw)
    made = [device.compile(segment, buffers) for _ in range(execs)]
    for exec in made:
        for _ in range(4):
            exec.run(b"\0" * 32, 32)
    return [*made, *buffers]


def test_a_late_member_is_named(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setenv("SATCHEL_GROUP_TIMEOUT_MS", "20")
    group = joined(2)
    step = GroupStep(group, "reduce_add", reduce_cases(rng, 2, 1, 4096))
    step.run()
    step.exec.wait()
    held = busy(group.members[1])
    with pytest.raises(
        DeviceLost, match="member 1 did not come to reduce_add of step 0 within 20 ms"
    ) as caught:
        for _ in range(3):
            step.run()
        step.exec.wait()
    assert caught.value.device == group.members[1].name
    with pytest.raises(DeviceLost, match="member 1"):
        step.run()
    step.close()
    for one in held:
        one.close()  # type: ignore[attr-defined]
    group.close()
    whole = joined(2)  # the GPUs are as before
    cases = reduce_cases(rng, 2, 1, 4096)
    assert np.array_equal(run_on_all(whole, "reduce_add", cases)[1], defined("reduce_add", cases))
    whole.close()


@pytest.mark.parametrize(
    ("arch", "format", "bound"),
    [
        ("llama", "f32", 1e-7),
        ("qwen3moe", "q4_k", 1e-2),
        ("deepseek2", "f32", 1e-5),
        ("command_r", "q8_0", 1e-3),
    ],
)
def test_logits_are_those_of_one_gpu(group: GroupDevice, arch: str, format: str, bound: float) -> None:
    found = []
    for device in (find_backend("cuda").open(), joined(len(group.members))):
        engine = tiny.engine(arch, tiny.weights(arch, format), Cache(64, 2, block=16), device)
        first = engine.logits([BatchEntry(1, [3, 1, 4, 1, 5])])
        found.append(np.concatenate((first, engine.logits([BatchEntry(1, [9])]))))
        engine.close()
    assert np.square(found[1] - found[0]).sum() / np.square(found[0]).sum() <= bound


@pytest.mark.parametrize(("arch", "caches"), [("deepseek2", 3), ("olmo2", 6), ("gpt_oss", 0)])
def test_caches_divided_by_blocks_give_the_logits_of_one_gpu(
    group: GroupDevice, arch: str, caches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Context parallelism: prompts over several blocks, then single tokens; after each step the members' bits
    are compared. gpt_oss has as many KV heads as two members, so only more of them divide its caches.
    """
    monkeypatch.setenv("SATCHEL_GROUP_CHECK", "1")
    found = []
    for device in (find_backend("cuda").open(), joined(len(group.members))):
        weights, cache = tiny.weights(arch, "f32"), Cache(96, 2, block=16)
        engine = tiny.engine(arch, weights, cache, device, room=CacheRoom("on"))
        divided = engine.division.shardings.values() if engine.division else ()
        assert all(len(own.blocks) >= caches for own in divided)
        first = engine.logits([BatchEntry(1, list(range(3, 50))), BatchEntry(0, [7, 8])])
        found.append(np.concatenate((first, engine.logits([BatchEntry(1, [9]), BatchEntry(0, [5])]))))
        engine.close()
    assert np.square(found[1] - found[0]).sum() / np.square(found[0]).sum() <= 1e-4


@pytest.mark.parametrize("way", ["push", "rows", "plain"])
@pytest.mark.parametrize("n", MEMBERS)
@pytest.mark.parametrize(("arch", "format"), [("llama", "q8_0"), ("qwen3moe", "q4_k"), ("command_r", "q8_0")])
def test_prompts_are_those_of_one_gpu(
    arch: str, format: str, n: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products begin the sums of their results, or rows are divided, or neither; after each step the members'
    bits are compared.
    """
    monkeypatch.setenv("SATCHEL_GROUP_PUSH", str(int(way == "push")))
    monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", "256" if way == "rows" else "0")
    monkeypatch.setenv("SATCHEL_GROUP_CHECK", "1")
    found = []
    for device in (find_backend("cuda").open(), joined(n)):
        weights = tiny.weights(arch, format)
        engine = tiny.engine(arch, weights, Cache(1024, 2, block=16), device, batch=512)
        rows = [
            engine.logits([BatchEntry(i % 2, [1 + t % 50 for t in range(size)])])
            for i, size in enumerate((512, 300))
        ]
        rows += [engine.logits([BatchEntry(i, [9])]) for i in range(2)]
        found.append(np.concatenate(rows))
        engine.close()
    assert np.square(found[1] - found[0]).sum() / np.square(found[0]).sum() <= 5e-3


@pytest.mark.model
def test_greedy_text_is_that_of_one_gpu(bundled_model: Path, tmp_path: Path) -> None:
    """Of float32 weights: where products round, two tokens of almost the same odds may change places."""
    whole = tmp_path / "f32.gguf"
    quantize_file(bundled_model, whole, RECIPES["F32"], requantize=True)
    texts = []
    for n in range(1, COUNT + 1):
        name = "+".join(f"cuda:{i}" for i in range(n))
        with Model.load(whole, device=name, context=256, worker="thread") as model:
            texts.append(model.generate(PROMPT, max_tokens=48, temperature=0.0).read())
    assert texts == texts[:1] * COUNT


PIPELINES = [
    pytest.param(devices, marks=pytest.mark.skipif(n > COUNT, reason=f"{n} GPUs are needed, {COUNT} found"))
    for devices, n in (
        ("cuda:0+cuda:1,cpu", 2),
        ("cuda:0+cuda:1,cuda:2", 3),
        ("cuda:0+cuda:1,cuda:2+cuda:3", 4),
        ("cuda:0+cuda:1+cuda:2,cuda:3", 4),
    )
]


@pytest.mark.model
@pytest.mark.parametrize("devices", PIPELINES)
def test_texts_of_a_pipeline_of_groups_are_those_of_one_gpu(
    bundled_model: Path, tmp_path: Path, devices: str
) -> None:
    """One answer, and six at once, for which the stages have several steps under way."""
    whole = tmp_path / "f32.gguf"
    quantize_file(bundled_model, whole, RECIPES["F32"], requantize=True)
    prompts = [PROMPT, *(f"{PROMPT} there were {n} cats" for n in range(2, 7))]
    found = []
    for name, shares in (("cuda:0", ""), (devices, "1,1")):
        with Model.load(
            whole, device=name, tensor_split=shares, context=256, slots=6, worker="thread"
        ) as model:
            assert len(model.engine.stages) == (2 if shares else 0)
            alone = model.generate(PROMPT, max_tokens=48, temperature=0.0).read()
            replies = [model.generate(text, max_tokens=32, temperature=0.0) for text in prompts]
            for reply in replies:
                reply.start()
            found.append([alone, *(reply.read() for reply in replies)])
    assert found[0] == found[1]


@pytest.mark.model
def test_ten_thousand_steps_ahead(group: GroupDevice) -> None:
    """Each step is launched before the last one's token is read. All members end with the same bits."""
    name = "+".join(f"cuda:{i}" for i in range(len(group.members)))
    with Model.load(device=name, context=256, worker="thread") as model:
        engine = model.engine
        assert engine.overlaps
        found = []
        for _ in range(50):
            engine.rewind(0, 0)
            tokens = drawn(engine.step([BatchEntry(0, [5, 9, 2], GREEDY)]))
            entries, under = [BatchEntry(0, (LAST,), GREEDY)], list[Launched]()
            for _ in range(200):
                under.append(engine.launch(entries))
                if len(under) > 1:
                    tokens += drawn(engine.collect(under.pop(0)))
            found.append((*tokens, *drawn(engine.collect(under.pop(0)))))
        assert len(set(found)) == 1
        program = engine.program(1, 1)
        out = program.plan.output
        (group,) = engine.groups.values()
        members, bits = group.members, set()
        for member in members:
            raw = np.empty(program.inner[member.name, out.buffer].size, np.uint8)
            program.inner[member.name, out.buffer].read_into(0, raw)
            bits.add(raw.tobytes())
        assert len(bits) == 1


def test_the_definition_of_one_member_is_a_sum_of_one(rng: np.random.Generator) -> None:
    alone = joined(1)
    (one,) = reduce_cases(rng, 1, 3, 64, "rows")
    assert np.array_equal(run_on_all(alone, "reduce_add", [one])[0], define("reduce_add", one))
    alone.close()
