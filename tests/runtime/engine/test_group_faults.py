"""Faults of a group: a member that is late, lost or refuses its plan is an error within the deadline, which
names it; nothing hangs, and the next load works.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs
from waiting import until

from satchel.errors import DeviceError
from satchel.runtime.api.model import Model
from satchel.runtime.device.group import TIMEOUT_NAME, GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.grammar import Regex
from satchel.runtime.layers.arch import Cache

pytestmark = needs("remote")
GROUP, NAME = "remote:0+remote:1", "remote+remote:1"


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "2")
    monkeypatch.setenv("SATCHEL_REMOTE_LATE_US", "0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_file.write_model(tmp_path / "m.gguf", "llama", "q8_0")


def tiny_engine() -> Engine:
    backend = find_backend("remote")
    group = GroupDevice([backend.open(i, threads=1) for i in range(2)])
    return tiny.engine("llama", tiny.weights("llama", "f32"), Cache(64, 2, block=16), group)


def step(engine: Engine) -> None:
    engine.step([BatchEntry(0, [5])])


def test_a_member_that_does_not_come_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = tmp_path / "hold"
    monkeypatch.setenv("SATCHEL_REMOTE_HOLD", str(hold))
    held = tmp_path / "hold.1"
    with monkeypatch.context() as short:  # for the one that is held from its first step on, on any machine
        short.setenv(TIMEOUT_NAME, "200")
        engine = tiny_engine()
    held.touch()
    try:
        with pytest.raises(DeviceLost, match="member 1 did not come to reduce_add of step") as caught:
            step(engine)
        assert caught.value.device == "remote:1"
        with pytest.raises(DeviceLost, match="member 1 did not come"):
            step(engine)  # the group stays broken, and no member waits again
    finally:
        held.unlink()
        engine.close()
    again = tiny_engine()
    step(again)
    again.close()


def test_a_member_that_is_lost_ends_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is far: the others leave because the member says that it is lost."""
    monkeypatch.setenv("SATCHEL_REMOTE_LOST", "1:3")
    engine = tiny_engine()
    step(engine)
    step(engine)
    try:
        with pytest.raises(DeviceLost, match="remote:1 was lost") as caught:
            step(engine)
        assert caught.value.device == "remote:1"
        assert engine.groups[NAME].group_info().missing == "remote:1"
    finally:
        engine.close()
    monkeypatch.delenv("SATCHEL_REMOTE_LOST")
    again = tiny_engine()
    for _ in range(4):
        step(again)
    again.close()


def test_an_answer_goes_on_without_a_member_that_is_late(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective that never completes: the others' deadline ends it, and the answer goes on without the
    member that did not come, with the same tokens.
    """
    monkeypatch.setenv("SATCHEL_REMOTE_HOLD", str(tmp_path / "hold"))
    monkeypatch.setenv(TIMEOUT_NAME, "300")
    held = tmp_path / "hold.1"
    with Model.load(path, device="remote", threads=1, worker="thread") as model:
        wanted = model.generate("a b", max_tokens=6, temperature=0.0).read()
    with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
        reply = model.generate("a b", max_tokens=6, temperature=0.0)
        held.touch()
        threading.Thread(
            target=lambda: (until(lambda: model.placement_options.lost, "it is missed"), held.unlink())
        ).start()
        assert reply.read() == wanted
        assert model.placement_options.lost == ("remote:1",)
        assert model.device.name == "remote"


def test_memory_that_other_members_cannot_write_is_not_written_to(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining finds it: a pattern does not read back. The answers are those of a group without the fault."""
    with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
        assert model.device.group_info().link == "PCIe"  # type: ignore[attr-defined]
        wanted = model.generate("a b", max_tokens=6, temperature=0.0).read()
        logits = model.logits([3, 1, 4])
    monkeypatch.setenv("SATCHEL_REMOTE_UNREAD", "1")
    with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
        found = model.device.group_info()  # type: ignore[attr-defined]
        assert (found.link, found.unread) == ("host", 1)
        assert any("in 1 of 2 pairs of members" in note for note in model.notes)
        assert model.generate("a b", max_tokens=6, temperature=0.0).read() == wanted
        assert model.logits([3, 1, 4]).tobytes() == logits.tobytes()
    monkeypatch.delenv("SATCHEL_REMOTE_UNREAD")
    monkeypatch.setenv("SATCHEL_GROUP_NO_PEER", "1")
    with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
        assert model.device.group_info().link == "host"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.0},
        {"temperature": 1.5, "seed": 3},
        {"temperature": 0.0, "grammar": Regex("(ab|ba)+"), "logit_bias": {5: 2.0}},
    ],
    ids=["greedy", "drawn", "grammar"],
)
def test_an_answer_goes_on_without_a_lost_member(
    path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """What it has is computed again on the other one, and the answer is that of a device without a fault."""
    with Model.load(path, device="remote", threads=1, worker="thread") as model:
        wanted = model.generate("a b", max_tokens=6, **how).read()
    monkeypatch.setenv("SATCHEL_REMOTE_LOST", "1:4")
    with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
        reply = model.generate("a b", max_tokens=6, **how)
        assert reply.read() == wanted
        assert reply.report.restarted == 1
        assert model.device.name == "remote"


def test_a_member_that_refuses_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_REFUSES", "1")
    engine = tiny_engine()
    with pytest.raises(DeviceError, match=r"the plan was refused: .*member 1: plans are refused"):
        step(engine)
    engine.close()
    monkeypatch.delenv("SATCHEL_REMOTE_REFUSES")
    again = tiny_engine()
    step(again)
    again.close()


def test_a_step_that_fails_on_every_member_leaves_the_group_whole() -> None:
    engine = tiny_engine()
    program = engine.fill([BatchEntry(0, [5])], 1, "tokens", every=False)
    program.fields["slot"][0] = 99
    program.run()
    with pytest.raises(DeviceError, match="out of range"):
        program.read(np.empty(1, np.int32))
    assert engine.groups[NAME].group_info().missing == ""
    step(engine)
    engine.close()


def test_threads_of_a_group_end_with_it() -> None:
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("the system does not list threads in /proc")
    before = len(list(tasks.iterdir()))
    engine = tiny_engine()
    step(engine)
    engine.close()
    until(lambda: len(list(tasks.iterdir())) <= before, "the members' threads have ended")
