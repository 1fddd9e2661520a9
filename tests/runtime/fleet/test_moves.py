"""Prompts that one member computes and another answers: the same tokens, whatever becomes of the blocks on
their way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fleet_requests import begun, fleet_of, made_up, read
from tiny_file import write_model
from waiting import SECONDS, until

from satchel import Model
from satchel.errors import RequestError
from satchel.runtime.engine import watchdog
from satchel.runtime.engine.stats import EngineStats
from satchel.runtime.fleet import move as moving
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.member import Member
from satchel.runtime.fleet.move import Move
from satchel.runtime.fleet.pools import PrefillPools
from satchel.runtime.fleet.router import Ask, LeastTime, Route, View

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are not sent there")
LENGTH = 150  # tokens of a prompt: four blocks, and a part of a fifth


class Always(LeastTime):
    """Member 0 computes every prompt, and the others answer."""

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        others = {name: view for name, view in views.items() if name != "0"}
        route = super().choose(ask, others or views)
        return route._replace(prefill="0") if "0" in views and others else route


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move has its time, and a member too, where this machine is busy."""
    monkeypatch.setattr(moving, "PATIENCE", SECONDS)
    monkeypatch.setattr(watchdog, "MISSED", 1 << 30)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("moves") / "tiny.gguf", qwen3__context_length=512)


@pytest.fixture(scope="module")
def here(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=8, threads=1, batch=64) as model:
        yield model


@pytest.fixture(scope="module")
def pools(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=8, threads=1, batch=64, replicas=2, pools="1+1") as model:
        fleet_of(model).policy = Always()
        yield model


def prompts(count: int, seed: int, length: int = LENGTH) -> list[list[int]]:
    return made_up(count, length, seed)


class Gate:
    """Stops moves before the first call of a method, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        ask = Move._ask

        def held(move: Move, member: Member, most: int, called: str, *args: Any) -> Any:
            if called == method:
                self.reached.set()
                self.open.wait()
            return ask(move, member, most, called, *args)

        monkeypatch.setattr(Move, "_ask", held)


def all_there(fleet: Fleet) -> None:
    until(lambda: all(m.usable for m in fleet.members.values()), "all are there")


def test_answers_are_those_of_one_engine_and_prompts_are_not_computed_twice(
    here: Model, pools: Model
) -> None:
    fleet, asked = fleet_of(pools), prompts(8, 1)
    wanted = read(begun(here, asked, 30))
    all_there(fleet)
    until(
        lambda: "satchel-move" not in [t.name for t in threading.enumerate()], "no other test's move goes on"
    )
    meter, before, all_before = fleet.meter, fleet.member_stats(), pools.stats()
    moves, given_up, tokens = meter.moves, meter.given_up, meter.tokens
    assert read(begun(pools, asked, 30)) == wanted
    until(lambda: meter.moves == moves + 8, "all moves have ended")
    assert meter.given_up == given_up and meter.tokens == tokens + 8 * 128
    stats = fleet.member_stats()
    assert stats["1"].cached_tokens == before["1"].cached_tokens + 8 * 128
    assert [ended(stats[name]) - ended(before[name]) for name in "01"] == [0, 8], "where its answer ended"
    assert ended(pools.stats()) == ended(all_before) + 8, "each is counted once"


def ended(stats: EngineStats) -> int:
    """Requests that ended because they were complete."""
    return stats.requests.get("length", 0)


def test_the_report_says_how_long_a_request_was_in_the_line(here: Model, pools: Model) -> None:
    replies = begun(pools, prompts(4, 70), 4)
    read([*replies, *(alone := begun(here, prompts(1, 70), 4))])
    assert all(0 < reply.report.line_seconds <= reply.report.queue_seconds for reply in replies)
    assert alone[0].report.line_seconds == 0


def test_what_a_conversation_has_there_is_not_moved_again(here: Model, pools: Model) -> None:
    """Each turn moves its new blocks alone."""
    fleet, (ids,) = fleet_of(pools), prompts(1, 2)
    (first,) = read(begun(pools, [ids], 20))
    more = [*ids, *first, *prompts(1, 3, 70)[0]]
    until(lambda: not fleet._moves, "the first has ended")
    before = fleet.meter.tokens
    assert read(begun(pools, [more], 20)) == read(begun(here, [more], 20))
    until(lambda: not fleet._moves, "the second has ended")
    assert fleet.meter.tokens - before == len(more) // 32 * 32 - (len(ids) + len(first) - 1) // 32 * 32


@pytest.mark.parametrize("held", ["export_kv", "import_kv"])
@pytest.mark.parametrize("lost", ["0", "1"])
def test_kill_9_of_either_side_loses_no_token(
    here: Model, pools: Model, monkeypatch: pytest.MonkeyPatch, held: str, lost: str
) -> None:
    """Of the one that computes prompts and of the one that answers, before and after blocks were sent."""
    fleet, asked = fleet_of(pools), prompts(4, 10 + int(lost) + 2 * (held == "import_kv"))
    all_there(fleet)
    gate, restarts, counted = Gate(monkeypatch, held), fleet.restarts, ended(pools.stats())
    replies = begun(pools, asked, 30)
    until(gate.reached.is_set, "a move is under way")
    os.kill(fleet.members[lost].service.pid, signal.SIGKILL)
    until(lambda: fleet.restarts > restarts, "it is lost")
    gate.open.set()
    assert read(replies) == read(begun(here, asked, 30))
    until(lambda: not (fleet._moves or fleet.members["1"].awaited), "nothing is left")
    all_there(fleet)
    assert ended(pools.stats()) == counted + 4, "a lost process takes no count with it, and each counts once"


def test_a_damaged_block_is_computed_again(
    here: Model, pools: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, asked = fleet_of(pools), prompts(3, 20)
    all_there(fleet)
    ask, damaged_before = Move._ask, fleet.meter.facts().outcomes["damaged"]

    def damaged(self: Move, member: Member, most: int, called: str, *args: Any) -> Any:
        if called == "import_kv":
            file = args[1].descriptor
            at = os.fstat(file).st_size // 2
            (byte,) = os.pread(file, 1, at)
            os.pwrite(file, bytes([byte ^ 64]), at)
        return ask(self, member, most, called, *args)

    monkeypatch.setattr(Move, "_ask", damaged)
    before = fleet.member_stats()["1"].cached_tokens
    assert read(begun(pools, asked, 30)) == read(begun(here, asked, 30))
    until(lambda: fleet.meter.facts().outcomes["damaged"] == damaged_before + 3, "all were refused")
    assert fleet.member_stats()["1"].cached_tokens == before, "nothing of them is in its cache"


def test_blocks_that_do_not_come_in_time_are_computed_again(
    here: Model, pools: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, asked = fleet_of(pools), prompts(2, 30)
    all_there(fleet)
    monkeypatch.setattr(moving, "PATIENCE", 0.0)
    gate = Gate(monkeypatch, "import_kv")
    assert read(begun(pools, asked, 30)) == read(begun(here, asked, 30)), "before the gate opens"
    gate.open.set()
    until(lambda: fleet.meter.facts().outcomes["late"] >= 2, "both have given up")
    until(lambda: not (fleet._moves or fleet.members["1"].awaited), "nothing is left")


def test_a_request_may_end_while_its_blocks_are_moved(pools: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled, and beyond its deadline."""
    fleet = fleet_of(pools)
    all_there(fleet)
    monkeypatch.setattr(moving, "PATIENCE", 1e6)
    gate = Gate(monkeypatch, "import_kv")
    (left,) = begun(pools, prompts(1, 40), 30)
    (late,) = begun(pools, prompts(1, 41), 30, timeout=1e6)
    until(lambda: sum(m.handed for m in fleet._moves.values()) == 2, "both have their first token")
    assert len(fleet.members["1"].awaited) == 2 and pools.stats().running == 2
    left.close()
    (move,) = fleet._moves.values()
    request = move.live.handle.seq.request
    object.__setattr__(request, "deadline", 0.0)
    assert len(late.read() and late.ids) == 1 and late.stats.finish == "deadline"
    assert not fleet._moves and not fleet.members["1"].awaited
    gate.open.set()
    until(lambda: pools.stats().running == 0, "none runs")


def test_the_policy_moves_a_prompt_only_where_that_pays(path: Path, here: Model) -> None:
    """Two replicas without work: nothing is gained. The link is what was measured."""
    with Model.load(path, slots=2, threads=1, replicas=2, pools="auto") as model:
        fleet, asked = fleet_of(model), prompts(2, 50)
        assert isinstance(fleet.policy, PrefillPools)
        assert [fact.role for fact in fleet.facts()] == ["both", "both"]
        assert read(begun(model, asked, 8)) == read(begun(here, asked, 8))
        assert fleet.meter.moves == 0
        fleet.meter.learn(1000, 10, 2.0)
        until(lambda: fleet.policy.link.rate == 500.0, "the link is as measured")
        assert fleet.policy.link.token == fleet.members["0"].service.block_bytes / 32


def test_a_member_that_only_computes_prompts_answers_where_no_other_is_left(path: Path, here: Model) -> None:
    with Model.load(path, slots=2, threads=1, replicas=2, pools="1+1") as model:
        fleet, asked = fleet_of(model), prompts(2, 60)
        assert [fact.role for fact in fleet.facts()] == ["prefill", "decode"]
        fleet.remove("1")
        assert read(begun(model, asked, 8)) == read(begun(here, asked, 8))


@pytest.mark.parametrize(
    ("replicas", "pools", "told"),
    [
        (2, "1+2", "expected as many as there are replicas, 2, got 3"),
        (1, "1+1", "pools: .*give replicas too"),
        (2, "some", "expected off, auto, or how many replicas compute prompts"),
        (2, "0+2", "expected off, auto, or how many replicas compute prompts"),
    ],
)
def test_pools_that_cannot_be(path: Path, replicas: int, pools: str, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        Model.load(path, replicas=replicas, pools=pools)
