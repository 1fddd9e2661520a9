"""Collectives of sequence parallelism on the test device `remote`, against their definitions, bit for bit: a
step's rows are divided among members, also unevenly and where there are fewer rows than members.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from devices import needs
from group_steps import GroupStep, defined_rows, own_cases, scatter_cases
from hypothesis import given
from hypothesis import strategies as st
from one_step import Case, extremes

from satchel.errors import DeviceError
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import own_rows

pytestmark = needs("remote")
ROWS = 9


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "4")
    monkeypatch.setenv("SATCHEL_REMOTE_LATE_US", "0")


@pytest.fixture(params=[1, 2, 3, 4])
def group(request: pytest.FixtureRequest) -> Iterator[GroupDevice]:
    backend = find_backend("remote")
    made = GroupDevice([backend.open(i, threads=1) for i in range(request.param)])
    yield made
    made.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@given(st.integers(0, 1 << 20), st.integers(1, 16))
def test_each_row_is_one_ranks(tokens: int, ranks: int) -> None:
    found = [own_rows(tokens, rank, ranks) for rank in range(ranks)]
    assert [s.start for s in found] == [0, *(s.stop for s in found[:-1])]
    assert found[-1].stop == tokens
    sizes = [s.stop - s.start for s in found]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == -(-tokens // ranks)


def runs(group: GroupDevice, op: str, cases: list[Case], counts: tuple[int, ...]) -> None:
    """Steps of all numbers of rows: each member's result is the definition's."""
    step = GroupStep(group, op, cases, counts=counts)
    for rows in (ROWS, 0, 1, 2, 3, 5, 8):
        step.run(rows)
        for found, want in zip(step.results(), defined_rows(op, cases, counts, rows), strict=True):
            assert np.array_equal(found[: len(want)].view(np.uint32), want.view(np.uint32)), rows
    step.close()


@pytest.mark.parametrize("residual", ["", "all", "own"])
def test_sums_of_own_rows(group: GroupDevice, rng: np.random.Generator, residual: str) -> None:
    cases, counts = scatter_cases(rng, len(group.members), ROWS, 40, residual)
    for one in cases:
        one.inputs[0][0][:] = extremes(rng, ROWS, 40)
    runs(group, "reduce_scatter", cases, counts)


@pytest.mark.parametrize("rounds", [0, 1])
def test_rows_are_gathered(group: GroupDevice, rng: np.random.Generator, rounds: int) -> None:
    cases, counts = own_cases(rng, len(group.members), ROWS, 40, rounds)
    runs(group, "all_gather", cases, counts)


def test_a_plan_of_another_number_of_members_is_refused(group: GroupDevice, rng: np.random.Generator) -> None:
    n = len(group.members)
    cases, counts = own_cases(rng, n + 1, ROWS, 40, 0)
    with pytest.raises(DeviceError, match=f"all_gather of step 0 is of {n + 1} members, the group has {n}"):
        GroupStep(group, "all_gather", cases[:n], counts=counts)


def test_rows_that_are_not_a_members_own_are_refused(group: GroupDevice, rng: np.random.Generator) -> None:
    cases, counts = scatter_cases(rng, len(group.members), ROWS, 40)
    with pytest.raises(DeviceError, match="gives a member's own rows"):
        GroupStep(group, "reduce_scatter", cases, counts=(0, *counts[1:]))
