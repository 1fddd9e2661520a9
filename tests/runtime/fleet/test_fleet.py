"""Replicas in worker processes: the answers of one engine, whatever happens to the members meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet_requests import begun, fleet_of, made_up, read
from tiny_file import write_model
from waiting import until

from satchel import Model
from satchel.errors import DeviceError, RequestError
from satchel.runtime.api.refusals import QueueFull
from satchel.runtime.api.reply import Reply
from satchel.runtime.engine import watchdog
from satchel.runtime.fleet import share
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.member import Member
from satchel.runtime.fleet.router import Ask, LeastTime, RoundRobin, Route, View
from satchel.runtime.sampling import GREEDY
from satchel.runtime.scheduler import SchedulerLimits
from satchel.runtime.worker import process
from satchel.runtime.worker import service as worker_service

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are not sent there")
POISON = 23  # no answer below has it twice in a row
CLIENTS = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("fleet") / "tiny.gguf")


@pytest.fixture(scope="module")
def here(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=8, threads=1) as model:
        yield model


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_service, "BEAT", 0.05)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No member is left out because a busy machine gives it no time."""
    monkeypatch.setattr(watchdog, "MISSED", 1 << 30)


@pytest.fixture(scope="module")
def three(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=8, threads=1, replicas=3) as model:
        yield model


@pytest.fixture
def fragile(path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """Three replicas whose processes die of the token POISON."""
    monkeypatch.setattr(process, "MODULE", "crashing_child")
    monkeypatch.setenv("SATCHEL_TEST_POISON", str(POISON))
    with Model.load(path, slots=8, threads=1, replicas=3) as model:
        yield model


def prompts(count: int, length: int = 20) -> list[list[int]]:
    return made_up(count, length, seed=5)


def stopped_at_work(model: Model, asked: list[list[int]], most: int) -> tuple[list[Reply], str]:
    """Requests under way, and the member whose process was stopped (SIGSTOP) with some of them begun and not
    done. They are begun again where all were done before one could be stopped.
    """
    fleet = fleet_of(model)

    def begun_at(member: Member) -> bool:
        with fleet._lock:
            return any(live.decodes for live in member.service.requests)

    def stopped(replies: list[Reply]) -> str | None:
        for member in list(fleet.members.values()):
            pid, process = member.service.pid, member.service._process
            if not begun_at(member) or process is None:
                continue
            os.kill(pid, signal.SIGSTOP)
            until(lambda process=process: not process.unread, "what it sent is read")  # type: ignore[misc]
            if begun_at(member):
                return member.name
            os.kill(pid, signal.SIGCONT)
        return "" if all(reply.handle and reply.handle.seq.finish for reply in replies) else None

    while True:
        replies = begun(model, asked, most)
        found: list[str] = []

        def look(replies: list[Reply] = replies, found: list[str] = found) -> bool:
            name = stopped(replies)
            found += [] if name is None else [name]
            return bool(found)

        until(look, "a member is stopped at work, or all is done")
        if found[0]:
            return replies, found[0]
        read(replies)


def kill(fleet: Fleet, name: str) -> int:
    pid = fleet.members[name].service.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def test_kill_9_of_a_member_under_64_clients_loses_no_token(here: Model, three: Model) -> None:
    """Its answers go on at the others at once, and it joins again."""
    fleet, asked = fleet_of(three), prompts(CLIENTS)
    wanted = read(begun(here, asked, 40))
    before, moved = fleet.restarts, fleet.moved
    replies, name = stopped_at_work(three, asked, 40)
    killed = kill(fleet, name)
    assert read(replies) == wanted
    assert fleet.restarts == before + 1 and fleet.moved > moved
    assert sum(reply.report.restarted for reply in replies) > 0
    until(lambda: fleet.members[name].usable, "the member joins again")
    assert fleet.members[name].service.pid != killed
    assert read(begun(three, asked[:6], 40)) == wanted[:6]
    stats = three.stats()
    assert stats.worker_restarts == fleet.restarts and not stats.running and not stats.waiting


def test_all_members_killed_at_once_lose_no_token(here: Model, three: Model) -> None:
    fleet, asked = fleet_of(three), prompts(24)
    wanted = read(begun(here, asked, 60))
    replies, _ = stopped_at_work(three, asked, 60)
    for name in list(fleet.members):
        kill(fleet, name)
    assert read(replies) == wanted
    until(lambda: all(m.usable for m in fleet.members.values()), "all are there again")


def test_a_request_that_ends_two_members_is_refused_by_name_and_the_others_go_on(
    here: Model, fragile: Model
) -> None:
    fleet, asked = fleet_of(fragile), prompts(CLIENTS)
    wanted = read(begun(here, asked, 40))
    replies = begun(fragile, asked, 40)
    bad = fragile.generate([1, POISON, POISON, 2], max_tokens=5, sampling=GREEDY, user="mallory")
    with pytest.raises(DeviceError, match=r"request \d+ of user 'mallory' .*member \d .*SIGSEGV .*refused"):
        bad.read()
    assert read(replies) == wanted
    assert fleet.restarts == 2
    assert read(begun(fragile, asked[:1], 40)) == wanted[:1], "and they answer on"


def test_a_stalled_member_is_left_out_then_ended_and_its_answers_go_on(
    here: Model, path: Path, quick: None
) -> None:
    """Half alive: its process is stopped, and beats no more."""
    asked = prompts(6)
    wanted = read(begun(here, asked, 60))
    with Model.load(path, slots=2, threads=1, replicas=2, worker_timeout=0) as model:
        fleet = fleet_of(model)
        replies, name = stopped_at_work(model, asked, 60)
        stalled = fleet.members[name]
        (other,) = (member for member in fleet.members.values() if member is not stalled)
        pid = stalled.service.pid
        until(lambda: not stalled.usable, "the trouble is seen")
        assert "no sign of life" in stalled.service.trouble
        until(lambda: not model.trouble, "the other answers")
        more = begun(model, asked[:2], 60)
        assert read(more) == wanted[:2], "requests go to the other"
        assert not any(reply.handle and fleet._at.get(reply.handle) is stalled for reply in more)
        stalled.service._dog.worker_timeout = 0.2  # of this process; the next one has the option's
        assert read(replies) == wanted
        until(lambda: stalled.usable and stalled.service.pid != pid, "it joins again")
        assert stalled.service.restarts == 1 and other.service.restarts == 0


def test_a_member_of_another_version_may_not_join(
    path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model.load(path, slots=1, threads=1, replicas=2) as model:
        fleet = fleet_of(model)
        monkeypatch.setattr(worker_service, "wire_version", lambda: "that of newer files")
        kill(fleet, "0")
        until(lambda: fleet.members["0"].state == "failed", "it is refused")
        assert "another version" in fleet.members["0"].service.trouble
        until(lambda: not model.trouble, "the other is well")
        assert read(begun(model, prompts(1), 4)), "and answers"
        kill(fleet, "1")
        until(lambda: bool(model.trouble), "nobody is left")
        with pytest.raises(DeviceError, match="another version"):
            model.generate(prompts(1)[0], max_tokens=2).read()


def test_limits_are_those_of_the_fleet(path: Path) -> None:
    limits = SchedulerLimits(queue=3)
    with Model.load(path, slots=1, threads=1, replicas=2, limits=limits) as model:
        fleet = fleet_of(model)
        pids = [member.service.pid for member in fleet.members.values()]
        for pid in pids:  # none of the requests can end by itself
            os.kill(pid, signal.SIGSTOP)
        replies = begun(model, prompts(5), 2000)  # two have slots, three wait
        with pytest.raises(QueueFull):
            begun(model, prompts(1), 4)
        placed = [reply.handle is not None and reply.handle.seq.placed >= 0 for reply in replies]
        assert placed == [True] * 4 + [False], "the last is in the line: members have two a slot at most"
        replies.pop().close()
        until(lambda: len(fleet._at) + fleet.waiting == 4, "one has left")
        replies += begun(model, prompts(1), 4)
        for reply in replies:
            reply.close()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        # A member counts a request when it reads that it was cancelled: all may have left before that.
        until(lambda: model.stats().requests == {"cancelled": 6}, "all have left")
        assert not (model.stats().running or model.stats().waiting)


def test_verbs_go_to_the_member_with_the_least_to_do(here: Model, three: Model) -> None:
    fleet, ids = fleet_of(three), prompts(1)[0]
    np.testing.assert_array_equal(three.logits(ids), here.logits(ids))
    replies, busy = stopped_at_work(three, prompts(1), 70)
    asked: list[str] = []
    for member in fleet.members.values():
        adopt = member.service.adopt_call

        def seen(call: Any, name: str = member.name, adopt: Callable[[Any], None] = adopt) -> None:
            if call.method == "logits":
                asked.append(name)
            adopt(call)

        member.service.adopt_call = seen  # type: ignore[method-assign]
    three.logits(ids)
    os.kill(fleet.members[busy].service.pid, signal.SIGCONT)
    read(replies)
    assert len(asked) == 1 and asked != [busy]


def test_a_call_goes_on_at_another_member(
    here: Model, path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first processes take a minute for a step, so that the call is killed in the middle."""
    monkeypatch.setattr(process, "MODULE", "crashing_child")
    monkeypatch.setenv("SATCHEL_TEST_SLOW", "60")
    ids = prompts(1)[0]
    with Model.load(path, slots=1, threads=1, replicas=2) as model, ThreadPoolExecutor(1) as pool:
        monkeypatch.delenv("SATCHEL_TEST_SLOW")
        fleet = fleet_of(model)
        answer = pool.submit(model.logits, ids)

        def asked() -> list[Any]:
            with fleet._lock:
                members = fleet.members.values()
                return [m for m in members if any(call.turns for call in m.service._calls.values())]

        (busy,) = until(asked, "the call is under way")
        (other,) = (m for m in fleet.members.values() if m is not busy)
        kill(fleet, other.name)
        until(lambda: other.service.restarts == 1 and other.usable, "the other is quick")
        kill(fleet, busy.name)
        np.testing.assert_array_equal(answer.result(), here.logits(ids))
        assert fleet.restarts == 2


def test_members_join_drain_and_leave_while_requests_run(here: Model, path: Path, patient: None) -> None:
    asked = prompts(12)
    wanted = read(begun(here, asked, 80))
    with Model.load(path, slots=4, threads=1, replicas=2) as model:
        fleet = fleet_of(model)
        replies = begun(model, asked, 80)
        added = fleet.add()
        until(lambda: added.usable, "a third joins")
        fleet.drain("0")
        fleet.remove("1")
        assert read(replies) == wanted
        until(lambda: list(fleet.members) == [added.name], "two have left")
        with pytest.raises(RequestError, match=r"is the only one .*add another first"):
            fleet.drain(added.name)
        with pytest.raises(RequestError, match=r"no member 'x' of tiny.gguf: there is 2"):
            fleet.remove("x")
        assert read(begun(model, asked[:2], 80)) == wanted[:2]
        until(lambda: model.stats().requests.get("length", 0) >= 14, "what left is counted still")


class EvenTimes(LeastTime):
    """Routing by the times of one machine, so that what the tests measure decides nothing."""

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        return super().choose(ask, {n: v._replace(step=(1e-3, 1e-4, 1e-3, 0.0)) for n, v in views.items()})


def test_prefixes_are_found_at_the_member_that_has_them(three: Model, tmp_path: Path, patient: None) -> None:
    """A conversation goes on where its blocks are, and a saved state is taken from there."""
    fleet, talks = fleet_of(three), prompts(5, 70)
    fleet.policy = EvenTimes()
    for ids in talks:
        read(begun(three, [ids], 4))
    for ids in talks:
        digests = fleet.digests(ids, "")
        (holder,) = [m for m in fleet.members.values() if m.known.cached(digests) == len(digests) == 2]
        (reply,) = begun(three, [[*ids, 7, 8, 9]], 4)
        read([reply])
        assert reply.report.cached_tokens == 64, "it went to the one that has it"
        assert three.save_state(tmp_path / "state", ids) == 64
        assert fleet.holders.of(digests) == (holder.name,)
        assert holder.known.cached(fleet.digests(ids, "other salt")) == 0
    assert three.restore_state(tmp_path / "state").tokens == 64


def test_what_a_member_gave_up_is_known_no_more(path: Path) -> None:
    with Model.load(path, slots=1, threads=1, replicas=2) as model:
        fleet, (first, *others) = fleet_of(model), prompts(9, 70)
        fleet.policy = RoundRobin()
        read(begun(model, [first], 4))
        digests = fleet.digests(first, "")
        assert any(m.known.cached(digests) == 2 for m in fleet.members.values()), "it is told before the end"
        for ids in others:
            read(begun(model, [ids], 4))
        until(lambda: all(m.known.cached(digests) < 2 for m in fleet.members.values()), "it was given up")
        assert all(len(m.known) <= model.cache.pool for m in fleet.members.values())


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no process can be pinned here")
def test_a_member_stays_on_its_processors(path: Path, here: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its sandbox, and so does the process after it. Two nodes of one processor are made up."""
    one = min(os.sched_getaffinity(0))
    monkeypatch.setattr(share, "numa_cpus", lambda nodes: [(one,), (one,)])
    with Model.load(path, slots=2, replicas=2) as model:
        fleet = fleet_of(model)

        def pinned(pid: int) -> bool:
            found = []
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(ProcessLookupError):  # a thread that has ended since
                    found.append(os.sched_getaffinity(int(task.name)))
            return bool(found) and all(cores == {one} for cores in found)

        assert all(pinned(member.service.pid) for member in fleet.members.values())
        assert {member.threads for member in fleet.facts()} == {1}
        (hardware,) = {member.hardware for member in fleet.facts()}
        assert "1)" in hardware, "one thread each: they count as equally fast"
        kill(fleet, "1")
        until(lambda: fleet.restarts == 1 and fleet.members["1"].usable, "it is there again")
        assert pinned(fleet.members["1"].service.pid)
        assert read(begun(model, prompts(2), 8)) == read(begun(here, prompts(2), 8))
