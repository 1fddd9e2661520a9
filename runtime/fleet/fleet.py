"""Several engines of one model behind the interface of one: each member is a worker process of its own over
the same mapped file, and requests are divided among them.

Invariants:

- A request is in the line, at one member, or waits for its keys and values to be moved from one to another
  (move.py). Where a member's process is lost, its requests go to others at once with the tokens that they
  have, so that answers go on as they would have.
- Limits and fairness are the fleet's: how many requests wait, what each client gets for its weight.
- One lock guards the fleet and its members, so that no two wait for each other. No thread waits for a process
  while it holds it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, abc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from satchel.errors import DeviceError, RequestError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.api.options import Options
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import End, RequestHandle
from satchel.runtime.engine.stats import EngineStats, StatsCollector, summed
from satchel.runtime.engine.tally import KVTraffic
from satchel.runtime.engine.watchdog import BEAT, ticking
from satchel.runtime.fleet.known import Holders
from satchel.runtime.fleet.line import Line
from satchel.runtime.fleet.member import (
    FAILED,
    JOINING,
    READY,
    Member,
    MemberFacts,
    MemberLoad,
    Weights,
)
from satchel.runtime.fleet.move import Move, MoveMeter
from satchel.runtime.fleet.pools import PrefillPools, Role
from satchel.runtime.fleet.router import Ask, LeastTime, Route, RoutingPolicy, View
from satchel.runtime.fleet.scaler import FleetScaling
from satchel.runtime.fleet.share import share_of
from satchel.runtime.fleet.speeds import Speeds
from satchel.runtime.fleet.suspects import Suspects
from satchel.runtime.kv.digests import SHORT, BlockDigests
from satchel.runtime.layers.arch import Cache
from satchel.runtime.log import LOG
from satchel.runtime.net.remote_process import RemoteEngine
from satchel.runtime.placement.options import OFF, read_pools
from satchel.runtime.scheduler import Sequence
from satchel.runtime.scheduler.lengths import Lengths
from satchel.runtime.scheduler.scheduler import check
from satchel.runtime.worker.pending_call import PendingCall, call_of
from satchel.runtime.worker.replay import LiveRequest
from satchel.runtime.worker.service import LostWork, Membership, ProcessLost, WorkerService
from satchel.runtime.worker.wire import Message, encode

NO_LIMIT = 1 << 30  # requests in the line of a member: the fleet's line has the limit


class Views(abc.Mapping[str, View]):
    """What the router sees of members. A view is made when it is first read: of a large fleet few are."""

    def __init__(self, members: abc.Iterable[Member], lengths: Lengths, speeds: Speeds) -> None:
        self._members = {member.name: member for member in members}
        self._lengths, self._speeds = lengths, speeds
        self._made: dict[str, View] = {}

    def __getitem__(self, name: str) -> View:
        found = self._made.get(name)
        if found is None:
            member = self._members[name]
            found = self._made[name] = member.view(self._lengths, self._speeds.of(member))
        return found

    def __iter__(self) -> abc.Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class Fleet:
    """The members of one model. begin() starts them and waits until each has loaded it.

    options: those of the whole; each member gets its share (share.py).
    size: members at the start.
    files, stamps: as WorkerService takes them.
    policy: how a member is chosen for each request.
    engines: hosts of the members, in turn; (): they run here and share this machine.
    start: members that begin() starts; None: `size`, 0: it waits for the first that enter() brings.
    """

    def __init__(
        self,
        path: Path,
        options: Options,
        size: int,
        files: abc.Sequence[Path] = (),
        stamps: abc.Sequence[abc.Sequence[int]] = (),
        policy: RoutingPolicy | None = None,
        engines: abc.Sequence[RemoteEngine] = (),
        start: int | None = None,
    ) -> None:
        self.path, self.options, self.size, self.limits = path, options, size, options.limits
        self.cache, self.widths = Cache(context=0), (0, 0)
        self.notes: list[str] = []
        self.members: dict[str, Member] = {}
        self._files, self._stamps, self._engines = files, stamps, engines
        self._start, self._first = size if start is None else start, threading.Event()
        self._closers: list[abc.Callable[[], object]] = []
        self.scaling: FleetScaling | None = None  # how it is scaled; None: it is not
        self._lock, self._names = threading.RLock(), count()
        self._shared = Membership(self, self._lock, count(1), secrets.token_bytes(32))
        self._pools = read_pools(options.pools)
        self._check_pools()
        self._roles: dict[str, Role] = {}
        self.meter, self.holders = MoveMeter(), Holders()
        self.policy, self.lengths = policy or self._policy(), Lengths()
        self._moves: dict[RequestHandle, Move] = {}
        self._line = Line(self.limits, self.lengths)
        self._calls: list[PendingCall] = []  # that no member has yet
        self._of: dict[WorkerService, Member] = {}
        self._at: dict[RequestHandle, Member] = {}
        self._digests: dict[RequestHandle, list[bytes]] = {}  # of the prompts of requests, cut to SHORT
        self._hashes = BlockDigests(self.cache.block, self._shared.key)
        self._suspects: Suspects[LiveRequest, PendingCall] = Suspects()
        self._past: EngineStats | None = None  # what members counted that have left
        self._ended = Counter[str]()  # requests by how they ended, at members and in the line
        self.moved = 0  # requests that went on at another member
        self._broken: SatchelError | None = None
        self._closed, self._over = False, threading.Event()

    def _check_pools(self) -> None:
        """Raises RequestError where the pools are not the replicas."""
        if self._pools and any(self._pools) and sum(self._pools) != self.size:
            raise RequestError(
                f"pools is {self.options.pools}: expected as many as there are replicas, {self.size}, got"
                f" {sum(self._pools)}"
            )

    def _policy(self) -> RoutingPolicy:
        routing = LeastTime(holders=self.holders.of)
        return routing if self._pools is None else PrefillPools(self._roles, self.meter.link(1.0), routing)

    def _role(self, index: int) -> Role:
        """The role of the member with that share of the machine."""
        prompts, answers = self._pools or (0, 0)
        return "both" if not answers else "prefill" if index < prompts else "decode"

    # Members

    def begin(self, progress: abc.Callable[[int, int], object] | None) -> None:
        """Loads the model in every member; ends them all if one fails, other than by a host that cannot be
        reached while another can. The first settles the context, which the others get too. Those that share
        devices load one after another, since each looks at the memory that the others left.
        """
        done: dict[str, tuple[int, int]] = {}

        def load(member: Member) -> None:
            def tell(part: int, total: int) -> None:
                done[member.name] = part, total
                parts = list(done.values())
                if progress:
                    progress(sum(p for p, _ in parts), self._start * total)

            self._prepare(member, self.size)
            member.service.begin(tell)
            self._joined(member)

        ticking(self._tick, self._over, "satchel-fleet", BEAT)
        try:
            if not self._start:
                self._await_first()
                return
            members = [self._new(index) for index in range(self._start)]
            if self._engines:
                self._begin_at_hosts(members, load)
                return
            load(members[0])
            apart = share_of(self.options, 0, self.size).sharers == 1
            with ThreadPoolExecutor(max(1, len(members) - 1) if apart else 1, "satchel-load") as pool:
                list(pool.map(load, members[1:]))
        except BaseException:
            self.kill()
            raise

    def _begin_at_hosts(self, members: abc.Sequence[Member], load: abc.Callable[[Member], None]) -> None:
        """Loads the model at the first host that can be reached, then at the others. A host that cannot be
        reached is tried until it can be, and its member joins then. Raises the last error where none can be.
        """
        away: dict[Member, ProcessLost] = {}

        def reached(member: Member) -> bool:
            try:
                load(member)
            except ProcessLost as error:
                away[member] = error
                return False
            return True

        hosts = iter(members)
        if not any(map(reached, hosts)):  # up to the first
            raise away[members[-1]]
        others = list(hosts)
        with ThreadPoolExecutor(max(1, len(others)), "satchel-load") as pool:
            list(pool.map(reached, others))
        for member, error in away.items():
            LOG.error("%s: member %s joins when its host is there: %s", self.path.name, member.name, error)
            with self._lock:
                self._of.pop(member.service, None)
                again = self._new(member.index, name=member.name)
            member.service.close()
            again.service.patient = True
            self._join(again)

    def _await_first(self) -> None:
        """Waits for a member that has loaded the model. Raises the error of what can bring none."""
        self._first.wait()
        with self._lock:
            self._check_open()

    def give_up(self, error: SatchelError) -> None:
        """Ends everything, where begin() waits for a first member and none can come."""
        with self._lock:
            if self.cache.context:
                return
            self._broken = error
            self._end_line(End("error", error))
        self._first.set()

    def _new(
        self, index: int, device: str = "", engine: RemoteEngine | None = None, name: str = ""
    ) -> Member:
        """A member that has not begun, at that engine or with that share of the machine. device: in place of
        its share's. name: "" for a number.
        """
        if engine is None and self._engines:
            engine = self._engines[index % len(self._engines)]
        if engine is None:
            options = share_of(self.options, index % self.size, self.size)
            options = replace(options, device=device or options.device)
        else:  # devices and threads are the host's choice
            options = replace(self.options, worker="process", replicas=1, pools=OFF, engine_listen="", ray="")
        options = replace(options, limits=replace(options.limits, queue=NO_LIMIT))
        service = WorkerService(
            self.path, options, files=self._files, stamps=self._stamps, engine=engine, member=self._shared
        )
        service.widths = self.widths
        with self._lock:
            if self._closed:
                raise RequestError(f"{self.path}: the model was closed: load it again")
            name = name or str(next(self._names))
            role = self._roles[name] = self._role(index)
            member = self.members[name] = self._of[service] = Member(name, index, service, role, self.holders)
        return member

    def _prepare(self, member: Member, most: int) -> None:
        """Gives a member that is about to begin what the others have settled: the context, and how many
        engines are still to share the free memory.
        """
        with self._lock:
            options, loaded = member.service.options, sum(m.joined for m in self.members.values())
            sharers = max(1, most - loaded) if options.sharers > 1 else 1
            context = self.cache.context or options.context
            member.service.options = replace(options, sharers=sharers, context=context)

    def _joined(self, member: Member) -> None:
        with self._lock:
            member.joined, member.start_seconds = True, time.monotonic() - member.began
            # Its later processes find the memory of the others taken.
            member.service.options = replace(member.service.options, sharers=1)
            if not self.cache.context:
                self.cache, self.notes = member.service.cache, list(member.service.notes)
                self._hashes = BlockDigests(self.cache.block, self._shared.key)
                self._first.set()
            self._dispatch()

    def add(self, device: str = "") -> Member:
        """Begins another member, which joins once it has loaded the model. device: as of the load option; the
        share of a member that left, else of the first, is taken where none is given.
        """
        self._check_open()
        with self._lock:
            taken = {m.index for m in self.members.values()}
            index = next(i for i in range(len(taken) + 1) if i not in taken)
        return self._join(self._new(index, device))

    def enter(self, name: str, engine: RemoteEngine) -> Member:
        """Begins a member at an engine that has come, as add() does."""
        self._check_open()
        return self._join(self._new(0, engine=engine, name=name))

    def _join(self, member: Member) -> Member:
        def join() -> None:
            try:
                self._prepare(member, self.size)
                member.service.begin(None)
            except SatchelError as error:
                LOG.error("%s: member %s cannot join: %s", self.path.name, member.name, error)
                member.error = str(error)
            else:
                self._joined(member)
                LOG.info("%s: member %s has joined", self.path.name, member.name)

        threading.Thread(target=join, name="satchel-join", daemon=True).start()
        return member

    def member(self, name: str) -> Member:
        """The member of this name. Raises RequestError where there is none."""
        found = self.members.get(name)
        if found is None:
            there = ", ".join(self.members) or "none"
            raise RequestError(f"there is no member {name!r:.40} of {self.path.name}: there is {there}")
        return found

    def drain(self, name: str) -> Member:
        """Gives a member no more requests; it leaves when it has none. Raises RequestError for the last."""
        with self._lock:
            member = self._may_leave(name)
            member.draining = True
            self._leave_if_idle(member)
        return member

    def replace(self, name: str) -> Member:
        """drain(), after which another is begun under its name, with its share of the machine or at its
        engine, from the files of Satchel as they are then. Raises RequestError for the last one that answers,
        and for an engine that has joined by itself.
        """
        with self._lock:
            member = self._may_leave(name)
            if member.service.host and not self._engines:
                raise RequestError(
                    f"member {name} of {self.path.name} has joined from {member.service.host}: end it there,"
                    " and begin it anew"
                )
            member.draining = member.replaced = True
            self._leave_if_idle(member)
        return member

    def remove(self, name: str) -> Member:
        """Takes a member out at once: its requests go on at others. Raises RequestError for the last."""
        with self._lock:
            member = self._may_leave(name)
            self.dismiss(name)
        return member

    def dismiss(self, name: str) -> None:
        """remove() for a member that is lost: also the last one, where others may come."""
        with self._lock:
            member = self.members.get(name)
            if member is None:
                return
            member.draining = True
            requests, calls = member.service.release()
            self._take_back(member, requests, calls)
            self._leave_if_idle(member)
            self._dispatch()

    def retire(self, name: str) -> None:
        """drain() for a member that is to go in any case: also the last one, where others may come."""
        with self._lock:
            if member := self.members.get(name):
                member.draining = True
                self._leave_if_idle(member)

    def _may_leave(self, name: str) -> Member:
        member = self.member(name)
        others = [m for m in self.members.values() if m is not member and m.usable]
        if not others and member.usable:
            raise RequestError(
                f"member {name} is the only one of {self.path.name} that answers: add another first"
            )
        return member

    def _leave_if_idle(self, member: Member) -> None:
        if member.draining and not member.service.work and self.members.get(member.name) is member:
            del self.members[member.name]
            threading.Thread(target=self._leave, args=(member,), name="satchel-leave", daemon=True).start()

    def _leave(self, member: Member) -> None:
        """Keeps the member's counts, and ends its process."""
        counted: EngineStats | None = None
        with suppress(SatchelError):
            counted = member.service.stats().ended()
        with self._lock:
            if counted is not None:
                self._past = counted if self._past is None else summed([self._past, counted])
            self._of.pop(member.service, None)
            member.known.clear()
            self._roles.pop(member.name, None)
        member.service.close()
        LOG.info("%s: member %s has left", self.path.name, member.name)
        if member.replaced:
            device = "" if self._engines else member.service.options.device
            with suppress(RequestError):  # the fleet was closed meanwhile
                self._join(self._new(member.index, device, name=member.name))

    # The interface of a service

    @property
    def restarts(self) -> int:
        """Processes that members have lost."""
        return sum(member.service.restarts for member in list(self.members.values()))

    @property
    def sandbox(self) -> str:
        return next((m.service.sandbox for m in list(self.members.values()) if m.service.sandbox), "")

    @property
    def slots(self) -> int:
        """Sequences that run together, at all members."""
        members = [m for m in list(self.members.values()) if m.state != FAILED and not m.draining]
        return max(1, len(members)) * self.cache.slots

    @property
    def capacity(self) -> int:
        """Tokens of KV cache of all members."""
        return self.slots // self.cache.slots * self.cache.capacity

    @property
    def trouble(self) -> str:
        """Why no request can be served now; "" if some member can."""
        if self._broken:
            return str(self._broken)
        if self._closed:
            return f"{self.path}: the model was closed"
        members = list(self.members.values())
        if any(member.usable for member in members):
            return ""
        told = (f"member {m.name}: {m.service.trouble or m.state}" for m in members)
        return next(told, "there is no member")

    def submit(self, request: GenerateRequest) -> RequestHandle:
        """Queues a request. Raises RequestError if the fleet's queue is full, or if the request can never run
        or be sent to another process.
        """
        encode(request)
        handle = RequestHandle(self, Sequence(request, time.monotonic()))
        digests = self.digests(request.ids, handle.seq.salt)
        with self._lock:
            self._check_open()
            between = [handle for handle, move in self._moves.items() if move.handed]
            waiting = max(0, len(self._line) + len(self._at) + len(between) - self.slots)
            queued = (h.seq.client for h in (*self._at, *between, *(live.handle for live in self._line)))
            check(request, waiting, self.limits, self.cache.block, self.cache.pool, queued)
            self._digests[handle] = digests
            self._line.add(LiveRequest(handle))
            self._dispatch()
        return handle

    def digests(self, ids: abc.Sequence[int], salt: str) -> list[bytes]:
        """Of the full blocks of a prompt, as members tell them."""
        return [digest[:SHORT] for digest in self._hashes.chain(ids, salt)]

    def cancel(self, handle: RequestHandle) -> None:
        """Ends the request at once for its caller where it is in the line, else after the current step."""
        with self._lock:
            member = self._at.get(handle)
            if member is not None:
                member.service.cancel(handle)
            elif live := self._line.remove(handle) or self._drop_move(handle):
                self._end(live, End("cancelled"))

    def ask(self, method: str, *args: Any, **how: Any) -> Any:
        """Calls a method of the model at the member with the least to do, and at the next if its process is
        lost meanwhile. Cancelling the current CancelScope ends the call.
        """
        return self.ask_where(lambda members: min(members, key=_load), method, *args, **how)

    def ask_where(
        self, choose: abc.Callable[[list[Member]], Member], method: str, *args: Any, **how: Any
    ) -> Any:
        """ask() of the member that choose() takes of those that may be asked."""
        call = call_of(method, args, how, self.widths)
        with self._lock:
            self._check_open()
            usable = [m for m in self.members.values() if m.usable]
            if usable:
                choose(usable).service.adopt_call(call)
            else:
                self._calls.append(call)
        try:
            return call.wait(lambda: None)
        except BaseException:
            with self._lock:
                if call in self._calls:
                    self._calls.remove(call)
                for member in self.members.values():
                    member.service.forget(call)
                self._suspects.forget([call])
            raise

    def most_cached(self, ids: abc.Sequence[int], salt: str) -> abc.Callable[[list[Member]], Member]:
        """Chooses the member that has most of a prompt in its cache; of equals that with the least to do."""
        digests = self.digests(ids, salt)
        return lambda members: min(members, key=lambda m: (-m.known.cached(digests), *_load(m)))

    def stats(self) -> EngineStats:
        """Statistics since the load, over all members and those that have left."""
        self._check_open()
        parts = list(self.member_stats().values())
        with self._lock:
            past = self._past or StatsCollector(KVTraffic(())).snapshot(0, 0, (0, 0, 0))
            found = summed([past, *parts])
            waiting = found.waiting + len(self._line)
            running = found.running + sum(move.handed for move in self._moves.values())
            return replace(found, requests=dict(self._ended), waiting=waiting, running=running)

    def member_stats(self) -> dict[str, EngineStats]:
        """Those of each member, by name."""
        found: dict[str, EngineStats] = {}
        for name, member in list(self.members.items()):
            with suppress(SatchelError):
                found[name] = member.service.stats()
        return found

    def facts(self) -> list[MemberFacts]:
        """The members, as they are now. No process is asked."""
        with self._lock:
            return [member.facts(self.lengths) for member in self.members.values()]

    def loads(self) -> list[MemberLoad]:
        """The members as scaling sees them; each has an equal part of the line in its view."""
        with self._lock:
            members = list(self.members.values())
            usable = sum(member.usable for member in members)
            parts = max(1, usable)
            requests = -(-len(self._line) // parts)
            tokens = -(-sum(live.queued for live in self._line) // parts)
            speeds, found = Speeds(members), []
            for one in members:
                view = one.view(self.lengths, speeds.of(one))
                view = view._replace(waiting=view.waiting + requests, queued=view.queued + tokens)
                # One that stands still serves nobody now; whether it goes is its watchdog's decision.
                state = JOINING if one.state == READY and not one.usable else one.state
                work, known = one.service.work, len(one.known)
                found.append(MemberLoad(one.name, state, view, work, known, one.start_seconds))
            return found

    def attach(self, close: abc.Callable[[], object]) -> None:
        """close: called when the fleet has ended, and its processes with it."""
        self._closers.append(close)

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests and no more members."""
        return self._closed

    @property
    def waiting(self) -> int:
        """Requests in the line, which no member has yet."""
        return len(self._line)

    def close(self) -> None:
        """Cancels everything in flight and ends all processes."""
        services = self._end_all()
        for service in services:
            service.tell_to_close()
        for service in services:
            service.close()
        self._end_others()

    def kill(self) -> None:
        """Ends all processes at once, and begins no other."""
        services = self._end_all()
        for service in services:
            service.kill()
        self._end_others()

    def _end_all(self) -> list[WorkerService]:
        """Takes no more requests and ends those in the line; gives the services that are to end."""
        with self._lock:
            self._closed = True
            self._end_line(End("cancelled"))
            services = list(self._of)
        self._over.set()
        self._first.set()
        return services

    def _end_others(self) -> None:
        """Ends what the fleet was given: the last first."""
        while self._closers:
            self._closers.pop()()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError(f"{self.path}: the model was closed: load it again")
        if self._broken:
            raise self._broken

    # What members tell, with the lock held

    def opened(self, service: WorkerService) -> None:
        self._dispatch()

    def ended(self, service: WorkerService, work: LiveRequest | PendingCall) -> None:
        member = self._of[service]
        self._suspects.forget([work])
        if isinstance(work, LiveRequest):
            self._ended[work.handle.seq.finish] += 1
            self._left(member, work)
            self._digests.pop(work.handle, None)
            self.lengths.learn(work.handle.seq)
        self._leave_if_idle(member)
        self._dispatch()

    def told(self, service: WorkerService, message: Message) -> None:
        self._of[service].told(message)

    def passed_on(self, service: WorkerService, live: LiveRequest) -> None:
        """The prompt is computed, and its first token has come: the answer goes on at another member."""
        member, move = self._of[service], self._moves[live.handle]
        self._leave_member(member, live)
        move.hand_on()
        if move.done:
            self._arrive(move)
        self._leave_if_idle(member)
        self._dispatch()

    def lost(self, service: WorkerService, work: LostWork) -> None:
        """A member's process ended: its requests go on at others."""
        member = self._of[service]
        member.lost()
        stepped = [one for one in work.step if isinstance(one, LiveRequest)]
        called = [one for one in work.step if isinstance(one, PendingCall)]
        guilty = self._suspects.died(stepped, called, work.outside)
        requests, calls = list(work.requests), list(work.calls)
        if guilty is not None:
            refusal = DeviceError(
                f"request {guilty}: member {member.name} {work.how} while it alone ran, as one did before;"
                " it is refused, other requests go on"
            )
            if isinstance(guilty, PendingCall):
                calls.remove(guilty)
                guilty.fail(refusal)
            else:
                requests.remove(guilty)
                self._left(member, guilty)
                self._end(guilty, End("error", refusal))
        if not work.again:
            LOG.error(
                "%s: member %s: the process %s; %d of its requests go on elsewhere",
                self.path.name, member.name, work.how, len(requests),
            )  # fmt: skip
        self._take_back(member, requests, calls)
        self._check_members()
        self._leave_if_idle(member)
        self._dispatch()

    def _take_back(
        self, member: Member, requests: abc.Iterable[LiveRequest], calls: abc.Iterable[PendingCall]
    ) -> None:
        """Puts what a member had into the line again."""
        for live in requests:
            self._left(member, live)
            if finish := live.complete(self.cache):
                self._end(live, End(finish))
            else:
                live.trial = self._suspects.trial(live)
                live.begun = True  # the line's order: it has waited for its turn already
                self._line.add(live)
                self.moved += 1
        for call in calls:
            if call.tied:
                call.fail(DeviceError(f"member {member.name} was lost or left"))
            else:
                self._calls.append(call)

    def _check_members(self) -> None:
        """Ends everything where no member can ever answer again."""
        broken = [m.service.broken for m in self.members.values() if m.service.broken]
        if self._closed or len(broken) < len(self.members) or not broken:
            return
        self._broken = broken[0]
        self._end_line(End("error", self._broken))

    def _left(self, member: Member, live: LiveRequest) -> None:
        """A member has the request no longer, nor do its blocks go elsewhere."""
        self._drop_move(live.handle)
        self._leave_member(member, live)

    def _leave_member(self, member: Member, live: LiveRequest) -> None:
        if self._at.pop(live.handle, None) is not None:
            self._line.leave(live)
            member.known.ended(self._digests.get(live.handle, ()))

    def _end(self, live: LiveRequest, end: End) -> None:
        """Ends a request that no member has."""
        self._digests.pop(live.handle, None)
        self._suspects.forget([live])
        self._ended[end.finish] += 1
        live.end(end)

    def _end_line(self, end: End) -> None:
        for handle in [handle for handle, move in self._moves.items() if move.handed]:
            if live := self._drop_move(handle):
                self._end(live, end)
        for live in self._line:
            self._line.remove(live.handle)
            self._end(live, end)
        for call in self._calls:
            call.fail(end.error or RequestError(f"{self.path}: the model was closed: load it again"))
        self._calls.clear()

    # Routing

    def _tick(self) -> None:
        """Ends what waited beyond its deadline, lets drained members go, and routes what found no member that
        could take it.
        """
        with self._lock:
            now = time.monotonic()
            for live in self._line:
                deadline = live.handle.seq.request.deadline
                if deadline is not None and now > deadline:
                    self._line.remove(live.handle)
                    self._end(live, End("deadline"))
            self._end_late_moves(now)
            for member in list(self.members.values()):
                self._leave_if_idle(member)
            self._dispatch()

    def _end_late_moves(self, now: float) -> None:
        """Lets answers go on that have waited long enough for their keys and values, and ends those beyond
        their deadline.
        """
        if isinstance(self.policy, PrefillPools):
            sizes = [m.service.block_bytes for m in self.members.values() if m.service.block_bytes]
            if sizes:
                self.policy.link = self.meter.link(sizes[0] / self.cache.block)
        for move in [move for move in self._moves.values() if move.handed]:
            handle = move.live.handle
            deadline = handle.seq.request.deadline
            if deadline is not None and now > deadline and self._drop_move(handle):
                self._end(move.live, End("deadline"))
            elif now > move.until or not move.target.usable:
                self._arrive(move)

    def _dispatch(self) -> None:
        """Gives members what they have room for. The lock is held."""
        if self._closed or not self.cache.context:
            return
        while True:
            usable = [m for m in self.members.values() if m.usable]
            if not usable:
                return
            while self._calls:
                min(usable, key=_load).service.adopt_call(self._calls.pop(0))
            answering = [m for m in usable if m.role != "prefill"] or usable
            roomy = [m for m in usable if m.has_room]
            room = any(m.has_room for m in answering)
            live = self._line.next(room, sum(m.slots for m in answering), time.monotonic())
            if live is None:
                return
            self._place(live, roomy if room else usable)

    def _place(self, live: LiveRequest, members: abc.Sequence[Member]) -> None:
        """Gives a request to one of these members."""
        seq, digests = live.handle.seq, self._digests[live.handle]
        ask = Ask(len(seq.ids), max(1.0, self.lengths.answer(seq) - seq.generated), digests)
        speeds = Speeds(self.members.values())
        route = self.policy.choose(ask, Views(members, self.lengths, speeds))
        member = self.members[route.member]
        seconds = self._seconds(speeds.of(member), len(member.service.requests), ask, route)
        if route.prefill and not (live.begun or live.trial or seq.request.max_tokens < 2):
            member = self._begin_move(live, self.members[route.prefill], member)
        live.cached = route.cached
        if seq.placed < 0:
            seq.placed = time.monotonic()
        self._line.place(live, seconds)
        self._at[live.handle] = member
        member.known.expect(digests)
        member.service.adopt(live)

    @staticmethod
    def _seconds(step: Weights, others: int, ask: Ask, route: Route) -> float:
        """Of the time of a member with so many others, for what its client is charged."""
        a, b, c, _ = step
        return c * (ask.prompt - route.cached) + ask.answer * (b + a / (1 + others))

    # Prompts that one member computes and another answers

    def _begin_move(self, live: LiveRequest, source: Member, target: Member) -> Member:
        """One member is to compute the prompt, and another to answer; gives the first. Without a thread for
        the move, the other does both.
        """
        digests = self._digests[live.handle]
        start = min(target.known.cached(digests), len(digests))
        move = Move(live, source, target, start, self._lock, self.meter, self._moved)
        try:
            begin(threading.Thread(target=move.run, name="satchel-move", daemon=True))
        except SatchelError as error:
            LOG.error("%s: nothing is moved: %s", self.path.name, error)
            return target
        self._moves[live.handle] = move
        target.awaited.add(live)
        target.known.expect(digests)
        live.onward = move.note
        return source

    def _moved(self, move: Move) -> None:
        """Called in the move's thread: nothing more is moved."""
        with self._lock:
            move.done = True
            if move.handed:
                self._arrive(move)
                self._dispatch()

    def _arrive(self, move: Move) -> None:
        """The answer goes on where its blocks are, or anywhere if that member is gone."""
        live = self._drop_move(move.live.handle)
        if live is None:
            return
        member, digests = move.target, self._digests[live.handle]
        if not (member.usable and self.members.get(member.name) is member):
            self._line.add(live)
            return
        live.cached = member.known.cached(digests) * self.cache.block
        self._line.place(live, 0.0)
        self._at[live.handle] = member
        member.known.expect(digests)
        member.service.adopt(live)

    def _drop_move(self, handle: RequestHandle) -> LiveRequest | None:
        """Nothing waits for the move of a request any more; gives the request, None where there is none."""
        move = self._moves.pop(handle, None)
        if move is None:
            return None
        move.stop()
        move.live.onward = None
        move.target.awaited.discard(move.live)
        move.target.known.ended(self._digests.get(handle, ()))
        return move.live


def _load(member: Member) -> tuple[int, int]:
    """How much a member has to do, for calls."""
    return member.service.work, sum(live.queued for live in member.service.requests)
