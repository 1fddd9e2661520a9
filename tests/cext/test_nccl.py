"""NCCL in groups, against a libnccl that runs on the host and checks how it is used (fake_nccl.c): results,
the order of calls, and what happens when a member does not come, a collective fails, or none ends.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from satchel import cext
from satchel.runtime.device.nccl import nccl_library

ROOT = Path(__file__).parents[2]
F32, BF16 = 7, 9
LOST, UNSUPPORTED = -6, -1
JOIN_HANGS, COLLECTIVE_HANGS, FAILS_LATER, FAILS_AT_ONCE = range(1, 5)
LONG = 20_000  # milliseconds: no test waits so long
# nccl.c, and a way to shorten a group's patience once its members have joined.
OURS = """#include "nccl.c"
void set_timeout(nccl_group *group, uint32_t timeout_ms) { group->timeout_ms = timeout_ms; }
"""


class Built(NamedTuple):
    """nccl.c as a library, and the path of the NCCL that it opens."""

    ours: ctypes.CDLL
    path: Path
    fake: ctypes.CDLL


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if not shutil.which("gcc"):
        pytest.skip("the test's own NCCL needs gcc")
    made = tmp_path_factory.mktemp("nccl")
    flags = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(
        [*flags, ROOT / "tests/cext/fake_nccl.c", "-o", made / "libnccl.so.2", "-lpthread"], check=True
    )
    places = [f"-I{ROOT / 'cext' / folder}" for folder in ("gpu", "host")]
    (made / "ours.c").write_text(OURS)
    sources = [made / "ours.c", ROOT / "cext/host/error.c"]
    subprocess.run(
        [*flags, *places, f"-I{cext.include()}", *sources, "-o", made / "ours.so", "-lpthread"], check=True
    )
    ours, fake = ctypes.CDLL(str(made / "ours.so")), ctypes.CDLL(str(made / "libnccl.so.2"))
    ours.hal_last_error.restype = ours.nccl_name.restype = ctypes.c_char_p
    at, size = ctypes.c_uint64, ctypes.c_size_t
    for collective in (ours.nccl_all_reduce, ours.nccl_all_gather):
        collective.argtypes = [ctypes.c_void_p, ctypes.c_uint32, at, at, size, ctypes.c_int, ctypes.c_void_p]
    for name in ("nccl_join", "nccl_part", "nccl_fault", "nccl_abort", "nccl_name"):
        getattr(ours, name).argtypes = [ctypes.c_void_p, *{"nccl_join": [ctypes.c_uint32]}.get(name, [])]
    ours.set_timeout.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    ours.nccl_abort.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    fake.fake_buffer.argtypes = [ctypes.c_void_p, size]
    fake.fake_stream.argtypes = [ctypes.c_int, ctypes.c_void_p]
    fake.fake_captured.argtypes = [ctypes.c_void_p]
    fake.fake_next.argtypes = [ctypes.c_int, ctypes.c_int, at]
    return Built(ours, made / "libnccl.so.2", fake)


class Group:
    """A group over the fake NCCL, with one thread a member."""

    def __init__(self, built: Built, members: int, timeout_ms: int = LONG) -> None:
        self.ours, self.fake, self.members = built.ours, built.fake, members
        self.fake.fake_reset()
        self.handle = ctypes.c_void_p()
        code = self.ours.nccl_prepare(
            members, timeout_ms, str(built.path).encode(), ctypes.byref(self.handle)
        )
        assert code == 0, self.error()
        self.threads = [ThreadPoolExecutor(1) for _ in range(members)]
        self.rows = [np.zeros(64, np.float32) for _ in range(members)]
        for rank, row in enumerate(self.rows):
            self.fake.fake_buffer(row.ctypes.data, row.nbytes)
            self.fake.fake_stream(rank, self.stream(rank))

    def stream(self, rank: int) -> int:
        return 0x1000 + rank

    def each(self, call: Callable[[int], int], ranks: range | None = None) -> list[tuple[int, str]]:
        """The call for every rank on its thread, all at once: codes and errors."""

        def of(rank: int) -> tuple[int, str]:
            code = call(rank)
            return code, self.error() if code else ""

        ranks = range(self.members) if ranks is None else ranks
        begun = [self.threads[rank].submit(of, rank) for rank in ranks]
        return [one.result() for one in begun]

    def join(self, ranks: range | None = None) -> list[tuple[int, str]]:
        return self.each(lambda rank: int(self.ours.nccl_join(self.handle, rank)), ranks)

    def reduce(self, count: int = 4, type: int = F32) -> list[tuple[int, str]]:
        return self.each(lambda rank: self.reduce_of(rank, count, type))

    def reduce_of(self, rank: int, count: int = 4, type: int = F32, stream: int | None = None) -> int:
        row, on = self.rows[rank].ctypes.data, self.stream(rank) if stream is None else stream
        return int(self.ours.nccl_all_reduce(self.handle, rank, row, row, count, type, on))

    def gather_of(self, rank: int, count: int) -> int:
        row = self.rows[rank].ctypes.data
        return int(self.ours.nccl_all_gather(self.handle, rank, row, row, count, F32, self.stream(rank)))

    def fault(self) -> int:
        return int(self.ours.nccl_fault(self.handle))

    def error(self) -> str:
        return str(self.ours.hal_last_error().decode())

    def breaches(self) -> str:
        """What the fake noted."""
        text = ctypes.create_string_buffer(4096)
        self.fake.fake_faults(text, len(text))
        return text.value.decode()

    def part(self) -> None:
        for thread in self.threads:
            thread.shutdown()
        self.ours.nccl_part(self.handle)


@pytest.fixture
def group(libraries: Built) -> Iterator[Callable[..., Group]]:
    """Makes a group; at the end none of its communicators is open."""
    made: list[Group] = []

    def make(members: int, timeout_ms: int = LONG) -> Group:
        made.append(Group(libraries, members, timeout_ms))
        return made[-1]

    yield make
    for one in made:
        one.part()
        assert one.fake.fake_open() == 0


@pytest.mark.parametrize("members", [1, 2, 4])
def test_sums_and_columns_of_all_members(group: Callable[..., Group], members: int) -> None:
    found = group(members)
    assert found.ours.nccl_name(found.handle) == b"NCCL 2.27.5"
    assert found.join() == [(0, "")] * members
    for rank, row in enumerate(found.rows):
        row[:3] = 10**rank
    for _ in range(20):  # members run ahead of each other, as streams do
        assert found.reduce(3) == [(0, "")] * members
        for rank, row in enumerate(found.rows):
            assert row[:3].tolist() == [sum(10**r for r in range(members))] * 3
            row[:3] = 10**rank
    assert found.each(lambda rank: found.gather_of(rank, 3)) == [(0, "")] * members
    wanted = [10**rank for rank in range(members) for _ in range(3)]
    assert all(row[: 3 * members].tolist() == wanted for row in found.rows)
    assert found.fault() == 0
    assert found.breaches() == ""


def test_bfloat16(group: Callable[..., Group]) -> None:
    found = group(2)
    found.join()
    for rank, row in enumerate(found.rows):
        row.view(np.uint16)[:2] = (np.float32([1.5, -3]).view(np.uint32) >> 16) * (rank + 1 > 0)
    assert found.reduce(2, BF16) == [(0, "")] * 2
    assert found.rows[1].view(np.uint16)[:2].astype(np.uint32).__lshift__(16).view(np.float32).tolist() == [
        3,
        -6,
    ]


def test_calls_that_go_on_in_the_background_are_waited_for(group: Callable[..., Group]) -> None:
    found = group(3)
    found.fake.fake_slow(5)
    assert found.join() == [(0, "")] * 3
    assert found.reduce() == [(0, "")] * 3
    assert found.reduce() == [(0, "")] * 3
    assert found.breaches() == ""


def test_a_member_that_does_not_join(group: Callable[..., Group]) -> None:
    found = group(3, timeout_ms=50)
    for code, why in found.join(range(2)):
        assert code == LOST
        assert "NCCL 2.27.5: member" in why
    assert found.join(range(2, 3))[0][0] == LOST  # it comes too late, and does not wait
    assert found.reduce_of(0) == LOST
    assert found.breaches() == ""


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (COLLECTIVE_HANGS, "member 1: all-reduce did not end within 50 ms"),
        (FAILS_AT_ONCE, "member 1: all-reduce: unhandled system error"),
    ],
)
def test_a_collective_that_fails_ends_the_group(group: Callable[..., Group], fault: int, why: str) -> None:
    found = group(2)
    found.join()
    found.fake.fake_next(fault, 1, 2)
    assert found.reduce() == found.reduce() == [(0, "")] * 2
    if fault == COLLECTIVE_HANGS:
        found.ours.set_timeout(found.handle, 50)
    codes = found.reduce()
    assert codes[1][0] == LOST
    assert why in codes[1][1]
    assert found.fault() == LOST
    assert why in found.error()
    assert [code for code, _ in found.reduce()] == [LOST] * 2  # nothing reaches NCCL any more
    assert found.fake.fake_open() == 0
    assert found.breaches() == ""


def test_a_fault_behind_the_call_is_found_by_the_poll(group: Callable[..., Group]) -> None:
    found = group(2)
    found.join()
    found.fake.fake_next(FAILS_LATER, 0, 0)
    found.reduce()
    assert found.fault() == LOST
    assert "member 0: a collective: remote process exited" in found.error()
    assert found.fault() == LOST
    assert found.breaches() == ""


def test_an_abort_ends_a_wait(group: Callable[..., Group]) -> None:
    found = group(2)
    found.fake.fake_next(JOIN_HANGS, 1, 0)
    begun = [found.threads[r].submit(found.ours.nccl_join, found.handle, r) for r in range(2)]
    found.ours.nccl_abort(found.handle, b"cuda:1 was lost")
    assert [one.result() for one in begun] == [LOST] * 2
    found.ours.nccl_abort(found.handle, b"a second reason")
    assert found.fault() == LOST
    assert found.error() == "cuda:1 was lost"
    assert found.breaches() == ""


BREACHES: dict[str, Callable[[Group], object]] = {
    "another stream": lambda g: g.each(lambda r: g.reduce_of(r, stream=77), range(1)),
    "another thread": lambda g: g.reduce_of(0),
    "smaller than": lambda g: g.each(lambda r: g.reduce_of(r, 65), range(1)),
    "its collective differs": lambda g: g.each(lambda r: g.reduce_of(r, 3 + r)),
    "differs from that": lambda g: g.each(lambda r: g.gather_of(r, 4) if r else g.reduce_of(r, 4)),
    "is captured": lambda g: (g.fake.fake_captured(0x1000), g.each(lambda r: g.reduce_of(r), range(1))),
}


@pytest.mark.parametrize("text", BREACHES)
def test_the_fake_finds_what_breaks_the_contract(group: Callable[..., Group], text: str) -> None:
    """Otherwise the tests above could not fail."""
    found = group(2)
    found.join()
    assert found.breaches() == ""
    BREACHES[text](found)
    assert text in found.breaches()


@pytest.mark.parametrize(
    ("named", "why"), [("/no/such/libnccl.so.2", "SATCHEL_NCCL is /no/such"), ("off", "SATCHEL_NCCL is off")]
)
def test_a_library_that_is_not_there(
    libraries: Built, monkeypatch: pytest.MonkeyPatch, named: str, why: str
) -> None:
    monkeypatch.setenv("SATCHEL_NCCL", named)
    out = ctypes.c_void_p()
    assert (
        libraries.ours.nccl_prepare(2, LONG, str(libraries.path).encode(), ctypes.byref(out)) == UNSUPPORTED
    )
    assert why in libraries.ours.hal_last_error().decode()


def test_a_library_without_the_functions_is_too_old(
    libraries: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_NCCL", "libm.so.6")
    assert libraries.ours.nccl_prepare(2, LONG, None, ctypes.byref(ctypes.c_void_p())) == UNSUPPORTED
    assert "too old, it has no ncclGetVersion" in libraries.ours.hal_last_error().decode()


def test_the_wheels_library_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    place.parent.mkdir(parents=True)
    place.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert nccl_library() == place
