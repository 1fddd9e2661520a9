"""Members that are replaced one after another while clients read: an upgrade in place. No answer changes, and
one that is of another version does not join.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fleet_requests import begun, fleet_of, made_up, read
from tiny_file import write_model
from waiting import until

from satchel import Model
from satchel.errors import RequestError
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.worker import service as worker_service

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are not sent there")


def replaced(fleet: Fleet, name: str) -> None:
    """Waits until another process has the member's name and gets requests."""
    before = fleet.replace(name)
    until(lambda: fleet.members.get(name) not in (None, before), f"another member {name} is begun")
    until(lambda: fleet.members[name].usable, f"member {name} is ready")


def test_members_are_replaced_in_turn_under_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    asked = made_up(6, 12, seed=9)
    with Model.load(path, slots=8, threads=1) as here:
        wanted = read(begun(here, asked, 40))
    with Model.load(path, slots=4, threads=2, replicas=2) as model:
        fleet = fleet_of(model)
        pids = {name: member.service.pid for name, member in fleet.members.items()}
        options = {name: member.service.options for name, member in fleet.members.items()}
        replies = begun(model, asked, 40)
        replaced(fleet, "0")
        # One that is begun now speaks another version: it may not join, and the rest goes on.
        with monkeypatch.context() as changed:
            changed.setattr(worker_service, "wire_version", lambda: "that of newer files")
            fleet.replace("1")
            until(lambda: "1" in fleet.members and fleet.members["1"].state == "failed", "it is refused")
            assert "another version" in fleet.facts()[-1].trouble
            assert read(begun(model, asked[:2], 40)) == wanted[:2], "the other answers"
            with pytest.raises(RequestError, match="member 0 is the only one"):
                fleet.replace("0")
        replaced(fleet, "1")
        assert read(replies) == wanted
        assert read(begun(model, asked, 40)) == wanted
        assert all(fleet.members[name].service.pid != pid for name, pid in pids.items())
        for name, member in fleet.members.items():
            now, was = member.service.options, options[name]
            assert (now.device, now.threads, now.slots) == (was.device, was.threads, was.slots)
        assert fleet.restarts == 0, "nothing was lost"
