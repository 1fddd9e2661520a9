"""Simulated engines behind a router: an event loop over a simulated clock, in which members are lost, join
and leave.

Invariant: events are handled in order of their time, and a router sees of a member what its last report said
and what was routed to it since, as in a server.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import exp, inf, log
from time import thread_time
from typing import Protocol

from simulated_engine import BlockCache, EngineSpec, Report, SimulatedEngine, Work

from satchel.runtime.fleet.router import Ask, Route, RoutingPolicy, View
from satchel.runtime.scheduler.lengths import RATE, START


class Arriving(Protocol):
    """Requests in order of their time, and those that follow an answer."""

    def arrivals(self) -> Iterator[Work]: ...

    def next_after(self, work: Work, now: float) -> Work | None: ...


class Predicted:
    """Lengths of answers as runtime/scheduler/lengths.py predicts them: a running mean of logarithms."""

    def __init__(self) -> None:
        self._all, self._users = log(START), dict[str, float]()

    def learn(self, work: Work) -> None:
        seen = log(work.answer)
        self._all += RATE * (seen - self._all)
        before = self._users.get(work.user, self._all)
        self._users[work.user] = before + RATE * (seen - before)

    def answer(self, user: str) -> float:
        return exp(self._users.get(user, self._all))


@dataclass(slots=True, eq=False)
class Member:
    """An engine of the fleet, and what the router knows of it."""

    name: str
    engine: SimulatedEngine
    cache: BlockCache
    joined: float
    draining: bool = False
    reported: float = -inf  # time of the last report
    report: Report | None = None
    sent: list[int] = field(default_factory=list)  # prompt tokens to compute, of what was routed since
    reserved: float = 0.0  # tokens of KV cache that these will take
    routed: int = 0  # requests


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that is done to a member at a time: "lost" (at once, with all that it had), "leave" (it
    gets no more requests, and what waits goes to others), "join" (a new member, with an empty cache).
    """

    at: float
    what: str
    name: str
    spec: EngineSpec = EngineSpec()  # noqa: RUF009 - a named tuple is immutable


@dataclass(slots=True)
class Outcome:
    works: list[Work]  # in order of their end
    end: float  # time of the last event
    chosen: float  # seconds of this computer's clock that choices took
    member_seconds: float  # of members that were there
    busy: float  # seconds that members computed
    preempted: int


class Views(Mapping[str, View]):
    """What is known of the members that take requests; a view is made when it is read."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._fleet = fleet

    def __getitem__(self, name: str) -> View:
        return self._fleet.view(self._fleet.open[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._fleet.open)

    def __len__(self) -> int:
        return len(self._fleet.open)


class SimulatedFleet:
    """every: seconds between reports. policy: made with the fleet, so that an oracle can look into it. move:
    seconds until a prompt of so many tokens, which took so long to compute, has come to another member.
    """

    def __init__(
        self,
        specs: Mapping[str, EngineSpec],
        policy: Callable[[SimulatedFleet], RoutingPolicy],
        traffic: Arriving,
        every: float = 0.0,
        happenings: Sequence[Happening] = (),
        move: Callable[[int, float], float] = lambda tokens, since: 0.0,
    ) -> None:
        self.every, self.traffic, self.move = every, traffic, move
        self.now = 0.0
        self.members: dict[str, Member] = {}
        self.open: dict[str, Member] = {}  # that take requests
        self.holders: dict[bytes, set[str]] = {}  # members that have a block
        self.views = Views(self)
        self.lengths = Predicted()
        self.ended: list[Work] = []
        self.lost: list[tuple[Work, int]] = []  # requests without a member
        self._seconds = self._busy = 0.0
        self._preempted = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._stages: dict[int, tuple[Work, str, Work]] = {}  # prompts that are computed for another member
        self.chosen = 0.0
        self.moved = 0  # requests whose prompt another member computed
        self.work = Work(-1, 0.0, 1, 1, ())  # the request that is being routed
        for name, spec in specs.items():
            self.join(name, spec)
        self.policy = policy(self)
        for happening in happenings:
            self.at(happening.at, lambda h=happening: self._happen(h))

    # ------------------------------------------------------------------ members

    def join(self, name: str, spec: EngineSpec) -> None:
        cache = BlockCache(spec, lambda digest, came: self._held(name, digest, came))
        engine = SimulatedEngine(spec, cache, self.now, self._told)
        self.members[name] = self.open[name] = Member(name, engine, cache, self.now)
        waiting, self.lost = self.lost, []
        for work, generated in waiting:
            self._route(work, generated)

    def leave(self, name: str) -> None:
        """Takes the member out as soon as what it computes has ended; what waits goes to others."""
        member = self.open.pop(name, None)
        if member is None:
            return
        member.draining = True
        for prompt in member.engine.take_waiting(self.now):
            self._route(prompt.work, prompt.generated)
        self._wake(member)

    def lose(self, name: str) -> None:
        """The member is lost: all its requests begin anew elsewhere, with the tokens that they have."""
        self.open.pop(name, None)
        member = self.members.get(name)
        if member is None:
            return
        member.engine.stop(self.now)
        self._remove(member)
        for work, generated in member.engine.works():
            work.lost += 1
            if work.number in self._stages:
                work, generated = self._stages.pop(work.number)[0], 0
            self._route(work, generated)

    def _remove(self, member: Member) -> None:
        del self.members[member.name]
        for digest in member.cache.present():
            self._held(member.name, digest, False)
        self._seconds += self.now - member.joined
        self._busy += member.engine.busy
        self._preempted += member.engine.preempted

    def _held(self, name: str, digest: bytes, came: bool) -> None:
        if came:
            self.holders.setdefault(digest, set()).add(name)
        elif names := self.holders.get(digest):
            names.discard(name)
            if not names:
                del self.holders[digest]

    def _happen(self, happening: Happening) -> None:
        if happening.what == "join":
            self.join(happening.name, happening.spec)
        else:
            {"lost": self.lose, "leave": self.leave}[happening.what](happening.name)

    # ------------------------------------------------------------------ what the router sees

    def view(self, member: Member) -> View:
        report = member.report
        if report is None or self.now - member.reported >= self.every:
            report = member.report = member.engine.report(self.now)
            member.reported, member.sent, member.reserved = self.now, [], 0.0
        spec = member.engine.spec
        return View(
            report.waiting + len(member.sent),
            report.queued + sum(member.sent),
            report.running,
            report.read,
            report.remaining,
            int(report.free - member.reserved),
            spec.block,
            spec.chunk,
            spec.step,
            member.cache.find,
            spec.slots,
        )

    def holding(self, digests: Sequence[bytes]) -> set[str]:
        """Members that have the longest prefix that any member has."""
        low, high = 0, len(digests)
        while low < high:
            mid = (low + high + 1) // 2
            if digests[mid - 1] in self.holders:
                low = mid
            else:
                high = mid - 1
        return self.holders[digests[low - 1]] if low else set()

    # ------------------------------------------------------------------ the loop

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), act))

    def run(self) -> Outcome:
        """Runs until the last request has ended."""
        arriving = self.traffic.arrivals()
        self._next_arrival(arriving)
        while self._events:
            time, _, act = heapq.heappop(self._events)
            self.now = max(self.now, time)
            act()
        if self.lost:
            raise ValueError(f"{len(self.lost)} requests never found a member")
        for member in list(self.members.values()):
            self._remove(member)
        return Outcome(self.ended, self.now, self.chosen, self._seconds, self._busy, self._preempted)

    def _next_arrival(self, arriving: Iterator[Work]) -> None:
        work = next(arriving, None)
        if work is not None:
            self.at(work.arrived, lambda: self._arrive(work, arriving))

    def _arrive(self, work: Work, arriving: Iterator[Work] | None = None) -> None:
        if arriving is not None:
            self._next_arrival(arriving)
        work.predicted = self.lengths.answer(work.user)
        self._route(work, 0)

    def _route(self, work: Work, generated: int) -> None:
        if not self.open:
            self.lost.append((work, generated))
            return
        self.work = work
        block = self.members[next(iter(self.open))].engine.spec.block
        prompt = work.prompt + generated
        ask = Ask(prompt, max(1.0, work.predicted - generated), work.digests[: prompt // block])
        before = thread_time()
        route = self.policy.choose(ask, self.views)
        self.chosen += thread_time() - before
        if route.prefill:
            self.moved += 1
            self._route_prompt(work, route, ask)
        else:
            self._send(self.open[route.member], work, generated, ask)

    def _send(self, member: Member, work: Work, generated: int, ask: Ask) -> None:
        member.routed += 1
        if self.every:
            found = member.cache.cached(ask.digests, len(ask.digests)) * member.engine.spec.block
            own = ask.prompt - min(found, ask.prompt - 1)
            member.sent.append(own)
            member.reserved += own + ask.answer
        member.engine.add(work, self.now, generated)
        self._wake(member)

    def _route_prompt(self, work: Work, route: Route, ask: Ask) -> None:
        """The prompt is computed at one member, and answered at another."""
        stage = Work(-1 - work.number, self.now, work.prompt, 1, ask.digests)
        self._stages[stage.number] = (work, route.member, stage)
        self._send(self.open[route.prefill], stage, 0, ask._replace(answer=1.0))

    def _moved(self, work: Work, name: str, digests: Sequence[bytes]) -> None:
        """A prompt's blocks have come to a member, where its answer goes on."""
        member = self.open.get(name)
        if member is None:
            self._route(work, 1)
            return
        member.cache.put(digests)
        self.work = work
        self._send(member, work, 1, Ask(work.prompt + 1, max(1.0, work.predicted - 1), digests))

    def _wake(self, member: Member) -> None:
        """Comes back when the member's present run of steps ends."""
        ends = member.engine.ends
        if ends < inf:
            self.at(ends, lambda: self._advance(member, ends))
        elif member.draining and not member.engine.works() and member.name in self.members:
            self._remove(member)

    def _advance(self, member: Member, ends: float) -> None:
        if member.engine.ends == ends and self.members.get(member.name) is member:
            member.engine.advance()
            self._wake(member)

    def _told(self, work: Work, time: float, last: bool) -> None:
        if work.number in self._stages:
            if last:
                whole, name, stage = self._stages.pop(work.number)
                self._first_of_stage(whole, name, stage, time)
        elif not last:
            if work.first < 0:
                work.first = time
        else:
            self._end(work, time)

    def _first_of_stage(self, work: Work, name: str, stage: Work, time: float) -> None:
        work.computed += stage.computed
        work.first = time
        if work.answer == 1:
            self._end(work, time)
            return
        self.at(
            time + self.move(work.prompt, time - stage.arrived),
            lambda: self._moved(work, name, stage.digests),
        )

    def _end(self, work: Work, time: float) -> None:
        work.ended = time
        self.ended.append(work)
        self.lengths.learn(work)
        following = self.traffic.next_after(work, time)
        if following is not None:
            self.at(following.arrived, lambda: self._arrive(following))
        work.digests = ()  # nobody asks for them again
