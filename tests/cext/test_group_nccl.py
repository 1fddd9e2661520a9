"""NCCL in the steps of a group (cext/gpu/group.c), on the test device `dry` with a libnccl that checks its
contract (fake_nccl.c): which sums go by it, how often it is called, and what ends when it does not.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from devices import needs
from group_steps import GroupStep, gather_cases, reduce_cases
from waiting import until

from satchel.errors import DeviceError
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.device.lost import DeviceLost

pytestmark = needs("dry")
ROOT = Path(__file__).parents[2]
LEAST = 64 << 10  # bytes from which these tests ask for NCCL
MEMBERS = 3
FAILS_LATER, FAILS_AT_ONCE, JOIN_HANGS = 3, 4, 1


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("the test's own NCCL needs gcc")
    out = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    source = ROOT / "tests/cext/fake_nccl.c"
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-shared", "-fPIC", source, "-o", out, "-lpthread"], check=True
    )
    return out


class Fake:
    """What the library noted."""

    def __init__(self, path: Path) -> None:
        self.handle = ctypes.CDLL(str(path))
        self.handle.fake_calls.restype = ctypes.c_uint64
        self.handle.fake_calls.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
        self.handle.fake_next.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint64]
        self.handle.fake_reset()
        self.handle.fake_any()

    def calls(self) -> list[tuple[int, int]]:
        """Of each rank: collectives so far, and the numbers of the last one."""
        count = ctypes.c_uint64()
        return [(self.handle.fake_calls(r, ctypes.byref(count)), count.value) for r in range(MEMBERS)]

    def breaches(self) -> str:
        text = ctypes.create_string_buffer(4096)
        self.handle.fake_faults(text, len(text))
        return text.value.decode()

    @property
    def open(self) -> int:
        return int(self.handle.fake_open())


@pytest.fixture
def nccl(library: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("SATCHEL_DRY_DEVICES", str(MEMBERS))
    monkeypatch.setenv("SATCHEL_NCCL", str(library))
    monkeypatch.setenv("SATCHEL_NCCL_LEAST", str(LEAST))
    return Fake(library)


@pytest.fixture
def joined(nccl: Fake) -> Iterator[Callable[[], GroupDevice]]:
    """Makes a group; at the end no communicator of it is open, and the contract was kept."""
    made: list[GroupDevice] = []

    def make(deterministic: bool = False) -> GroupDevice:
        backend = find_backend("dry")
        made.append(GroupDevice([backend.open(i, deterministic=deterministic) for i in range(MEMBERS)]))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert nccl.open == 0
    assert nccl.breaches() == ""


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_long_sums_go_by_nccl(
    joined: Callable[[], GroupDevice], nccl: Fake, rng: np.random.Generator
) -> None:
    group = joined()
    short = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 3, 4096))
    assert (group.group_info().library, nccl.open) == ("", 0)  # it is not opened before it is needed
    long = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 4, 4096, "rows"))
    gather = GroupStep(group, "gather_columns", gather_cases(rng, 64, (512, 400, 240)))
    assert (group.group_info().library, nccl.open) == ("NCCL 2.27.5", MEMBERS)
    for step in (short, long, gather, long, short):
        step.run()
    long.exec.wait()
    assert nccl.calls() == [(2, 4 * 4096)] * MEMBERS
    assert group.group_info().meetings == 5
    for step in (short, long, gather):
        step.close()


def test_as_many_rows_as_the_step_has(
    joined: Callable[[], GroupDevice], nccl: Fake, rng: np.random.Generator
) -> None:
    """Without rows it is called too: members hear each other at every collective."""
    step = GroupStep(joined(), "reduce_add", reduce_cases(rng, MEMBERS, 32, 4096), counted=True)
    for rows, numbers in ((32, 32 * 4096), (5, 5 * 4096), (0, 4096)):
        step.run(rows)
        assert {count for _, count in nccl.calls()} == {numbers}
    step.exec.wait()
    step.close()


def test_its_room_grows_with_later_plans(
    joined: Callable[[], GroupDevice], nccl: Fake, rng: np.random.Generator
) -> None:
    group = joined()
    steps = [GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, rows, 4096)) for rows in (8, 512, 16)]
    for step in steps:
        step.run()
        step.exec.wait()
    assert nccl.calls() == [(3, 16 * 4096)] * MEMBERS
    for step in steps:
        step.close()


@pytest.mark.parametrize("why", ["off", "missing", "deterministic", "small", "does not join"])
def test_without_nccl_the_groups_own_way_is_left(
    why: str,
    joined: Callable[..., GroupDevice],
    nccl: Fake,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if why == "does not join":
        monkeypatch.setenv("SATCHEL_GROUP_TIMEOUT_MS", "30")
        nccl.handle.fake_next(JOIN_HANGS, 1, 0)
    if why in ("off", "missing"):
        monkeypatch.setenv("SATCHEL_NCCL", "/no/such/libnccl.so.2" if why == "missing" else why)
    if why == "small":
        monkeypatch.delenv("SATCHEL_NCCL_LEAST")  # nothing below 4 MiB is even measured
    group = joined(deterministic=why == "deterministic")
    step = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 64, 4096))
    step.run()
    step.exec.wait()
    assert group.group_info().library == ""
    assert [calls for calls, _ in nccl.calls()] == [0] * MEMBERS
    step.close()


def test_both_ways_are_measured_once_for_a_size(
    joined: Callable[[], GroupDevice], nccl: Fake, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SATCHEL_NCCL_LEAST")
    group = joined()
    first = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 300, 4096))
    timed = nccl.calls()
    assert timed == [(32, 300 * 4096)] * MEMBERS
    second = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 310, 4096))  # of the same size
    assert nccl.calls() == timed
    first.run()
    first.exec.wait()
    by_library = group.group_info().library != ""
    assert [calls - 32 for calls, _ in nccl.calls()] == [int(by_library)] * MEMBERS
    first.close()
    second.close()


def test_a_sum_that_does_not_end_breaks_the_group(
    joined: Callable[[], GroupDevice], nccl: Fake, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_GROUP_TIMEOUT_MS", "40")
    group = joined()
    step = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 64, 4096))
    step.run()
    step.exec.wait()
    monkeypatch.setenv("SATCHEL_DRY_STALL", "1")
    step.run()
    until(lambda: group.group_info().missing, "the watch breaks the group")
    with pytest.raises(DeviceLost, match="member 1 did not come to reduce_add of step 0 within 40 ms"):
        step.exec.wait()
    until(lambda: nccl.open == 0, "its communicators are aborted")
    with pytest.raises(DeviceLost, match="member 1"):
        step.run()
    assert nccl.calls() == [(2, 64 * 4096)] * MEMBERS  # nothing reaches NCCL any more
    step.close()


def test_a_fault_of_nccl_breaks_the_group(
    joined: Callable[[], GroupDevice], nccl: Fake, rng: np.random.Generator
) -> None:
    group = joined()
    step = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 64, 4096))
    nccl.handle.fake_next(FAILS_LATER, 2, 1)
    step.run()
    with suppress(DeviceLost):  # the watch may see the fault before the step has ended
        step.run()
    until(lambda: group.group_info().missing, "the watch sees the fault")
    with pytest.raises(DeviceLost, match="member 2: a collective: remote process exited"):
        step.run()
    until(lambda: nccl.open == 0, "its communicators are aborted")
    step.close()


def test_a_call_that_fails_breaks_the_group(
    joined: Callable[[], GroupDevice], nccl: Fake, rng: np.random.Generator
) -> None:
    group = joined()
    step = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 64, 4096))
    nccl.handle.fake_next(FAILS_AT_ONCE, 1, 0)
    with pytest.raises(DeviceError, match="unhandled system error"):
        step.run()
    until(lambda: nccl.open == 0, "its communicators are aborted")
    step.close()


def test_a_lost_member_ends_the_sums_of_the_others(
    joined: Callable[[], GroupDevice], nccl: Fake, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = joined()
    step = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 64, 4096))
    short = GroupStep(group, "reduce_add", reduce_cases(rng, MEMBERS, 1, 64))
    monkeypatch.setenv("SATCHEL_DRY_LOSE", "1")
    with pytest.raises(DeviceLost, match="member 1: starting a kernel"):
        short.run()
    until(lambda: nccl.open == 0, "its communicators are aborted")
    monkeypatch.delenv("SATCHEL_DRY_LOSE")
    step.close()
    short.close()
