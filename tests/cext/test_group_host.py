"""Groups of GPUs without a GPU (cext/gpu/group.c), on the test device `dry`: who may join, which plans are
taken, one call a step, and what a failing member does. What kernels compute needs GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs
from group_steps import GroupStep, gather_cases, own_cases, reduce_cases, scatter_cases
from one_step import run

from satchel.errors import DeviceError
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.layers.arch import Cache

pytestmark = needs("dry")


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_DRY_DEVICES", "4")


def joined(*devices: int) -> GroupDevice:
    backend = find_backend("dry")
    return GroupDevice([backend.open(i) for i in devices])


@pytest.fixture
def group() -> Iterator[GroupDevice]:
    made = joined(0, 1, 2)
    yield made
    made.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_steps_of_two_plans_are_counted(group: GroupDevice, rng: np.random.Generator) -> None:
    small = GroupStep(group, "reduce_add", reduce_cases(rng, 3, 4, 64, "rows"))
    large = GroupStep(group, "gather_columns", gather_cases(rng, 4, (64, 40, 24)))
    for step in (small, large, small, small, large):
        step.run()
    small.exec.wait()
    assert group.group_info().meetings == 5
    assert group.group_info().missing == ""
    small.close()
    large.close()


def test_a_later_plan_with_larger_messages_is_taken(group: GroupDevice, rng: np.random.Generator) -> None:
    steps = [GroupStep(group, "reduce_add", reduce_cases(rng, 3, rows, 4096)) for rows in (1, 512, 16)]
    for step in steps:
        step.run()
        step.exec.wait()
        step.close()


def test_members_are_different_devices() -> None:
    with pytest.raises(DeviceError, match="members 0 and 1 of the group are one device"):
        joined(1, 1)


@pytest.mark.parametrize(
    ("peer", "words"), [("none", "cannot write each other's memory"), ("lost", "does not arrive")]
)
def test_peer_access_is_proved(monkeypatch: pytest.MonkeyPatch, peer: str, words: str) -> None:
    monkeypatch.setenv("SATCHEL_DRY_PEER", peer)
    with pytest.raises(DeviceError, match=f"{words}.*-sm layer"):
        joined(0, 1)
    monkeypatch.delenv("SATCHEL_DRY_PEER")
    joined(0, 1).close()


def test_a_group_of_one_needs_no_peers(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setenv("SATCHEL_DRY_PEER", "none")
    alone = joined(2)
    step = GroupStep(alone, "reduce_add", reduce_cases(rng, 1, 1, 64))
    step.run()
    step.exec.wait()
    step.close()
    alone.close()


def test_a_collective_needs_a_group(rng: np.random.Generator) -> None:
    with find_backend("dry").open() as device, pytest.raises(DeviceError, match="needs a group of devices"):
        run(device, "reduce_add", reduce_cases(rng, 1, 1, 64)[0])


def test_members_with_other_collectives_are_refused(group: GroupDevice, rng: np.random.Generator) -> None:
    cases = reduce_cases(rng, 3, 4, 64)
    cases[1] = reduce_cases(rng, 1, 4, 128)[0]
    with pytest.raises(
        DeviceError, match="collective 0 differs: member 0 has reduce_add of step 0, member 1 has"
    ):
        GroupStep(group, "reduce_add", cases)
    gathers = gather_cases(rng, 4, (64, 40, 24))
    gathers[2] = replace(gathers[2], args={"start": 100, "total": 128})
    with pytest.raises(DeviceError, match="collective 0 differs"):
        GroupStep(group, "gather_columns", gathers)


def test_a_refused_plan_names_the_member(group: GroupDevice, rng: np.random.Generator) -> None:
    cases = reduce_cases(rng, 2, 4, 64) + reduce_cases(rng, 1, 4, 12)
    with pytest.raises(DeviceError, match=r"member 2: step 0 \(reduce_add\): rows must be whole groups of 8"):
        GroupStep(group, "reduce_add", cases)
    step = GroupStep(group, "reduce_add", reduce_cases(rng, 3, 4, 64))  # the group is whole
    step.run()
    step.exec.wait()
    step.close()


def test_a_failing_member_breaks_the_group(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    group = joined(0, 1, 2)
    step = GroupStep(group, "reduce_add", reduce_cases(rng, 3, 4, 64))
    monkeypatch.setenv("SATCHEL_DRY_LOSE", "1")
    with pytest.raises(DeviceLost, match="member 1: starting a kernel") as caught:
        step.run()
    assert caught.value.device == "dry:1"
    monkeypatch.delenv("SATCHEL_DRY_LOSE")
    with pytest.raises(DeviceLost, match="member 1"):
        step.run()  # it stays broken
    with pytest.raises(DeviceLost, match="member 1"):
        step.exec.wait()
    step.close()
    group.close()
    joined(0, 1, 2).close()


@pytest.mark.parametrize(
    ("arch", "reduces"), [("llama", 7), ("qwen3moe", 7), ("command_r", 4), ("deepseek2", 7)]
)
def test_divided_models_are_taken(arch: str, reduces: int) -> None:
    """CUDA's tables have kernels for all steps of these, with weights in its own layout, too."""
    group = joined(0, 1)
    engine = tiny.engine(arch, tiny.weights(arch, "q8_0"), Cache(64, 2, block=16), group)
    engine.step([BatchEntry(0, [5])])
    (segment,) = engine.program(1, 1).plan.segments
    assert sum(step.op == "reduce_add" for step in segment.steps) == reduces
    assert sum(step.op == "gather_columns" for step in segment.steps) == 1
    engine.close()


def kernels_of(log: Path, group: GroupDevice, tokens: int, arch: str = "llama") -> Counter[str]:
    """The kernels of a prompt of so many tokens, of all members."""
    engine = tiny.engine(arch, tiny.weights(arch, "q8_0"), Cache(1024, 2, block=16), group, batch=512)
    log.unlink(missing_ok=True)
    engine.step([BatchEntry(0, [5] * tokens)])
    engine.close()
    return Counter(log.read_text().split())


@pytest.mark.parametrize("push", ["1", "0"])
def test_products_of_prompts_begin_their_sums(
    push: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_DRY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("SATCHEL_GROUP_PUSH", push)
    prompt = kernels_of(tmp_path / "log", joined(0, 1), 512)
    pushes = sum(n for name, n in prompt.items() if name.endswith("_push"))
    sums = sum(n for name, n in prompt.items() if name.startswith("sum_tiles"))
    # Of both members, two for each of two layers: the last one has one row, and embeddings are no product.
    assert (pushes, sums, prompt["reduce_rows"]) == ((8, 8, 6) if push == "1" else (0, 0, 14))
    answer = kernels_of(tmp_path / "log", joined(0, 1), 5)
    assert not any("push" in name or "sum_tiles" in name for name in answer)
    assert answer["reduce_rows"] == 14


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen3moe", "command_r"])
def test_rows_of_prompts_are_divided(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm and the gather of its rows are one kernel; layer_norm has none of its own."""
    monkeypatch.setenv("SATCHEL_DRY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", "256")
    prompt = kernels_of(tmp_path / "log", joined(0, 1, 2), 500, arch)
    scatters, normed = (
        prompt["scatter_rows"],
        sum(n for k, n in prompt.items() if k.startswith("gather_normed")),
    )
    assert scatters > 0
    assert prompt["gather_own"] > 0  # of the residual, once
    assert (normed > 0) == (arch != "command_r")
    answer = kernels_of(tmp_path / "log", joined(0, 1, 2), 5, arch)
    assert not any(name in answer for name in ("scatter_rows", "gather_own"))
    monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", "0")
    before = kernels_of(tmp_path / "log", joined(0, 1, 2), 500, arch)
    assert before["reduce_rows"] == prompt["reduce_rows"] + scatters


def test_a_batch_invariant_norm_stands_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So its sum has one order in steps that divide rows and in others."""
    monkeypatch.setenv("SATCHEL_DRY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", "256")
    backend = find_backend("dry")
    group = GroupDevice([backend.open(i, deterministic=True) for i in range(2)])
    prompt = kernels_of(tmp_path / "log", group, 500)
    assert prompt["scatter_rows"] > 0
    assert prompt["gather_own"] > prompt["scatter_rows"] / 2
    assert not any(name.startswith("gather_normed") for name in prompt)


def test_a_plan_for_other_members_is_refused(group: GroupDevice, rng: np.random.Generator) -> None:
    cases, counts = scatter_cases(rng, 4, 9, 64, "own")
    with pytest.raises(DeviceError, match="reduce_scatter is of 4 members, the group has 3"):
        GroupStep(group, "reduce_scatter", cases[:3], counts=counts)
    cases, counts = own_cases(rng, 4, 9, 64, 1, normed=True)
    with pytest.raises(DeviceError, match="norm_all_gather is of 4 members, the group has 3"):
        GroupStep(group, "norm_all_gather", cases[:3], counts=counts)
    for op, (cases, counts) in (
        ("all_gather", own_cases(rng, 3, 900, 4096, 0)),
        ("norm_all_gather", own_cases(rng, 3, 900, 16384, 1, normed=True)),
    ):
        step = GroupStep(group, op, cases, counts=counts)
        step.run(5)
        step.exec.wait()
        step.close()
