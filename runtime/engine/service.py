"""Service: the thread that runs an engine for any number of threads and asyncio tasks.

Only this thread touches the engine. Other threads put requests, cancels and calls into its inbox, and read
tokens from their RequestHandle. It sleeps while it has nothing to do.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, abc, deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from satchel.errors import DeviceError, RequestError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.compiler.cost import CostModel
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.engine.cancel_scope import current_scope
from satchel.runtime.engine.engine import Engine, Launched
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled
from satchel.runtime.engine.request_handle import End, RequestHandle
from satchel.runtime.engine.stats import EngineStats, Part, StatsCollector, StepFacts
from satchel.runtime.engine.straggler import Straggler
from satchel.runtime.engine.tally import KVTraffic
from satchel.runtime.engine.watchdog import Beats, Pulse, Watchdog, ticking
from satchel.runtime.log import LOG
from satchel.runtime.scheduler import Batch, Scheduler, SchedulerLimits, Sequence
from satchel.runtime.scheduler.fair import KNOWN, Fair
from satchel.runtime.speculative import Speculator

T = TypeVar("T")
PATIENCE = 0.1  # seconds between checks that the engine thread, for which a caller waits, is alive


@dataclass(frozen=True, slots=True)
class Underway:
    """A step that was begun."""

    batch: Batch
    launched: Launched | None  # None: the engine runs the step when its tokens are read


@dataclass(slots=True, eq=False)
class SlotRequest:
    """A call of a client that waits for `count` free slots."""

    count: int
    client: str
    slots: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)


class Service:
    """Runs requests on an engine.

    engine, speculator: only this service's thread may use them from here on.
    clock: monotonic seconds.
    on_lost: called in the thread when a device of the engine is lost. It gives the error with which all
    calls fail; then the thread ends, and another Service must take over. Without it requests fail too.
    after: the service that this one replaces, whose counts, watchers and requests it takes: these go on with
    the tokens that they have.
    """

    def __init__(
        self,
        engine: Engine,
        limits: SchedulerLimits | None = None,
        clock: abc.Callable[[], float] = time.monotonic,
        speculator: Speculator | None = None,
        on_lost: abc.Callable[[DeviceLost], SatchelError] | None = None,
        after: Service | None = None,
    ) -> None:
        self.engine, self.clock, self.speculator = engine, clock, speculator
        self.scheduler = Scheduler(engine, engine.cache.slots, limits)
        # A draft model computes in the engine's thread, which a pipeline's devices do not share.
        self.scheduler.lanes = 1 if speculator is not None and speculator.draft_model else engine.lanes
        self.scheduler.weighs = engine.weighs_lanes
        if engine.tier is not None:
            engine.tier.recompute = self.scheduler.time.computing
        attention = CostModel(engine).attention.values()
        self.stats_collector: StatsCollector = (
            after.stats_collector
            if after
            else StatsCollector(KVTraffic((a.window, a.bytes) for a in attention))
        )
        # watch is called before each step, watch_scope before each piece of a call whose scope has a number.
        self.watch: abc.Callable[[abc.Collection[Sequence]], None] | None = after.watch if after else None
        self.watch_scope: abc.Callable[[int], None] | None = after.watch_scope if after else None
        self.gone: SatchelError | None = None  # the loss of a device, after which the service does nothing
        self._on_lost, self._lost = on_lost, list[DeviceLost]()
        self._stragglers = [Straggler(group, clock) for group in engine.groups.values()]
        self._handles: dict[Sequence, RequestHandle] = {}
        # Requests that wait for another service since a device was lost, and those that were cancelled since.
        self._orphans: list[RequestHandle] = []
        self._cancelled: list[RequestHandle] = []
        self._arrivals: deque[RequestHandle] = deque()  # they join the queue whatever is under way
        self._inbox: deque[abc.Callable[[], None]] = deque()
        # Waiting calls, each with its client: at most one runs between two steps.
        self._calls: list[tuple[str, abc.Callable[[], None]]] = []
        self._call_time = Fair()  # what each client had of calls
        self._leased_last = False  # the last free slots went to a call, although requests waited
        self._slot_requests: list[SlotRequest] = []
        self._under: deque[Underway] = deque()  # steps whose tokens are not read yet; one between two turns
        self._spare: deque[abc.Callable[[], None]] = deque()  # work for when there is nothing else to do
        self._wakeup = threading.Condition()
        self._closed, self._coming = False, Counter[str]()
        self._over, self._dog = threading.Event(), Watchdog(0, 0)
        if after is not None:
            self._adopt(after.orphans(self))
        self._thread = threading.Thread(target=self._live, name="satchel-engine", daemon=True)
        begin(self._thread)
        beats = Beats(lambda: self.pulse)
        ticking(lambda: self._dog.heard(beats.look()), self._over, "satchel-watch")

    def submit(self, request: GenerateRequest) -> RequestHandle:
        """Queues a request. Raises RequestError if the queue is full or the request can never run."""
        seq = Sequence(request, self.clock())
        if seq.host_sampling is not None:
            seq.host_sampling.check(self.engine.vocabulary)
        handle = RequestHandle(self, seq)
        with self._wakeup:
            if self._closed:
                raise RequestError("the model was closed: load it again")
            self._check_alive()
            self.scheduler.check(request, self._coming.total(), self._coming.elements())
            self._coming[seq.client] += 1
            self._arrivals.append(handle)
            self._wakeup.notify()
        return handle

    def cancel(self, handle: RequestHandle) -> None:
        with self._wakeup:
            if self.gone is None:
                self._post(lambda: self._end(handle.seq, End("cancelled")))
            elif handle.service is self:
                self._cancelled.append(handle)
        if handle.service is not self:
            handle.cancel()

    def call(self, function: abc.Callable[[], None]) -> None:
        """Runs a function on the engine thread between two steps, and waits for it. If the caller's thread is
        interrupted meanwhile, the exception is raised once the function has ended or will not run.
        """
        scope, done, dropped = current_scope(), threading.Event(), threading.Event()
        skipped = threading.Event()
        scope.check()
        self._check_alive()

        def run() -> None:
            began = self.clock()
            try:
                if self.gone:
                    skipped.set()
                elif not dropped.is_set():
                    if scope.number and self.watch_scope is not None:
                        self.watch_scope(scope.number)
                    function()
            finally:
                with self._wakeup:
                    self._call_time.charge(scope.client, self.clock() - began, scope.weight)
                done.set()

        with self._wakeup:
            if self._call_time.names >= KNOWN:
                self._call_time.forget({client for client, _ in self._calls})
            self._call_time.arrive(scope.client)
            self._calls.append((scope.client, run))
            self._wakeup.notify()
        try:
            self._wait(done)
        except BaseException:
            dropped.set()
            self._wait(done)
            raise
        if skipped.is_set():
            self._check_alive()

    def _next_call(self) -> abc.Callable[[], None]:
        """Takes the first waiting call of the client that had the least of calls. The lock is held."""
        call = min(self._calls, key=lambda call: self._call_time.virtual_time(call[0]))
        self._calls.remove(call)
        return call[1]

    def _wait(self, done: threading.Event) -> None:
        while not done.wait(PATIENCE):
            self._check_alive()

    def _check_alive(self) -> None:
        if self.gone:
            raise self.gone
        if not self._thread.is_alive():
            raise DeviceError("the engine thread has ended; load the model again")

    def with_slot(self, function: abc.Callable[[int], None]) -> None:
        """Leases a slot as soon as one is free, and runs a function on the engine thread with it. Raises what
        the function raises.
        """
        (slot,) = self.acquire_slots(1)
        try:
            self.ask(partial(function, slot))
        finally:
            self.release_slots([slot])

    def ask(self, function: abc.Callable[[], T]) -> T:
        """call() with the function's result: returns what it returns, raises what it raises."""
        found: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                found.append(function())
            except BaseException as error:
                failed.append(error)
                if isinstance(error, DeviceLost):
                    self._lost.append(error)

        self.call(run)
        if failed and isinstance(failed[0], DeviceLost):
            self.join()
            self._check_alive()  # raises the error that every caller gets
        if failed:
            raise failed[0]
        return found[0]

    def acquire_slots(self, count: int) -> list[int]:
        """Leases empty slots as soon as that many are free at once; release_slots() ends the lease."""
        scope = current_scope()
        lease = SlotRequest(count, scope.client)
        with self._wakeup:
            self._call_time.arrive(lease.client)
            self._post(partial(self._slot_requests.append, lease))
        try:
            while not lease.done.wait(PATIENCE):
                scope.check()
                self._check_alive()
        except BaseException:
            self._post(partial(self._withdraw, lease))
            raise
        return lease.slots

    def _withdraw(self, lease: SlotRequest) -> None:
        """Takes back a request for slots, and the slots that it was given."""
        if lease in self._slot_requests:
            self._slot_requests.remove(lease)
        for slot in lease.slots:
            self.scheduler.release_slot(slot)

    def release_slots(self, slots: abc.Sequence[int]) -> None:
        """Empties acquired slots and gives them back."""

        def give() -> None:
            for slot in slots:
                self.scheduler.release_slot(slot)

        self._post(give)

    def _grant_leases(self) -> None:
        """Gives free slots to the first call of the client that had the least of calls, if there are enough.
        While requests wait for slots too, calls and requests take turns.
        """
        while self._slot_requests:
            lease = min(self._slot_requests, key=lambda lease: self._call_time.virtual_time(lease.client))
            if lease.count > self.scheduler.free_slots:
                return
            waiting = bool(self.scheduler.waiting)
            if waiting and self._leased_last:
                self._leased_last = False
                return
            self._leased_last = waiting
            self._slot_requests.remove(lease)
            found = [self.scheduler.acquire_slot() for _ in range(lease.count)]
            lease.slots += [slot for slot in found if slot is not None]
            lease.done.set()

    def close(self) -> None:
        """Cancels all requests and ends the thread. The caller closes the engine."""
        with self._wakeup:
            self._closed = True
            self._wakeup.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self.abandon(End("cancelled"))

    def join(self) -> None:
        """Waits until the thread has ended."""
        self._thread.join()

    @property
    def pulse(self) -> Pulse:
        """The activity of the engine's thread."""
        return self.engine.pulse

    @property
    def trouble(self) -> str:
        """Why requests cannot be answered now; "" if they can."""
        if self.gone:
            return str(self.gone)
        if not self._thread.is_alive():
            return "the engine thread has ended"
        return self._dog.trouble

    def _post(self, task: abc.Callable[[], None]) -> None:
        with self._wakeup:
            self._inbox.append(task)
            self._wakeup.notify()

    def _add(self, handle: RequestHandle) -> None:
        self._handles[handle.seq] = handle
        with self._wakeup:  # at once: submit() must not count the request twice
            self.scheduler.add(handle.seq)
            self._coming[handle.seq.client] -= 1

    def _live(self) -> None:
        try:
            self._run()
        finally:
            self._over.set()

    def _run(self) -> None:
        while True:
            self.pulse.begin("step")
            with self._wakeup:
                while not (self._tasks or self._closed or self._busy or self._lost or self._spare):
                    self.pulse.end()
                    self._wakeup.wait()
                    self.pulse.begin("step")
                arrivals, tasks = list(self._arrivals), list(self._inbox)
                self._arrivals.clear()
                self._inbox.clear()
                closed = self._closed
                calls = len(self._calls) if closed else min(1, len(self._calls))
                tasks += [self._next_call() for _ in range(calls)]
            for handle in arrivals:
                self._add(handle)
            if tasks or closed:
                self._guarded(self._settle)  # no task may find a step under way
            for task in tasks:
                self.pulse.begin("step")
                task()
            if self._lost:
                self._leave()
                return
            self._grant_leases()  # a task may have released slots, or requested some
            if closed:
                self._end_all(End("cancelled"))
                return
            if self._busy:
                self._guarded(self._step)
                if not self._lost:
                    self._grant_leases()
            elif self._spare and not tasks:
                self._guarded(self._do_spare)

    def when_idle(self, works: abc.Iterable[abc.Callable[[], None]]) -> None:
        """Does each of these on the engine thread, where nothing else is to be done. At the first that fails
        for want of memory the others are left out.
        """
        with self._wakeup:
            self._spare.extend(works)
            self._wakeup.notify()

    def _do_spare(self) -> None:
        try:
            self._spare.popleft()()
        except DeviceLost:
            raise
        except DeviceError as error:
            self._spare.clear()
            LOG.warning("what was to be done ahead of requests is left: %s", error)

    def _guarded(self, function: abc.Callable[[], None]) -> None:
        """Calls the function; if it fails, every request fails."""
        try:
            function()
        except DeviceLost as error:
            self._lost.append(error)
        except SatchelError as error:
            LOG.error("a step failed: %s", error)
            self._fail(error)
        except Exception as error:  # a bug here: no caller may wait for ever
            LOG.exception("a step failed")
            self._fail(DeviceError(f"the engine failed: {error!r}"))

    def _leave(self) -> None:
        """A device is lost: every call fails, requests wait for another service, and this one takes no
        more.
        """
        error = self._lost[0]
        told = self._on_lost(error) if self._on_lost else error
        with self._wakeup:
            self.gone = told
            arrivals, tasks = list(self._arrivals), [*self._inbox, *(run for _, run in self._calls)]
            self._arrivals.clear()
            self._inbox.clear()
            self._calls.clear()
        for handle in arrivals:  # requests that came meanwhile move too
            self._add(handle)
        for task in tasks:  # calls do nothing
            task()
        if self._on_lost is None:
            self._fail(told)
            return
        self._drop_steps()
        with self._wakeup:
            self._orphans, self._handles = list(self._handles.values()), {}

    def orphans(self, service: Service) -> list[RequestHandle]:
        """Hands the requests that lost their device over to another service. The thread has ended."""
        with self._wakeup:
            found, cancelled, self._orphans, self._cancelled = self._orphans, self._cancelled, [], []
            for handle in found:
                handle.service = service
        for handle in cancelled:
            handle.put(End("cancelled"))
        return [handle for handle in found if handle not in cancelled]

    def abandon(self, end: End) -> None:
        """Ends the requests that lost their device, which no service takes over. The thread has ended."""
        for handle in self.orphans(self):
            handle.put(end)

    def _adopt(self, handles: abc.Sequence[RequestHandle]) -> None:
        """Queues requests of another service: their prompts and what they sampled are computed here."""
        for handle in handles:
            seq = handle.seq
            seq.displace()
            try:
                self.scheduler.check(seq.request)
            except RequestError as error:
                handle.put(End("error", error))
                continue
            self._handles[seq] = handle
            self.scheduler.add(seq)

    def _drop_steps(self) -> None:
        """Ends the steps under way, whose tokens nobody gets."""
        while self._under:
            step = self._under.popleft()
            if step.launched is not None:
                with suppress(Exception):  # callers get the first failure
                    self.engine.collect(step.launched)

    def _fail(self, error: SatchelError) -> None:
        self._drop_steps()
        self._end_all(End("error", error))

    @property
    def _tasks(self) -> bool:
        return bool(self._arrivals or self._inbox or self._calls)

    @property
    def _busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running or self._under)

    def _step(self) -> None:
        """Ends the oldest step under way; begins one if there is none. Before that it launches the next step,
        if that can be planned without this one's tokens: of other sequences, one in each lane.
        """
        while len(self._under) < self.scheduler.lanes and self._begin():
            pass
        if not self._under:
            return
        step = self._under[0]
        self._launch_sampling(step)
        if self.engine.overlaps and not self.speculator:
            batch = self.scheduler.ahead(step.batch, self.clock())
            rows = sum(len(entry.ids) for entry in step.batch.values())
            if batch and (len(batch) == rows or self.engine.has(tuple(batch.values()))):
                self._launch(batch)
        self._finish(self._under.popleft())

    def _settle(self) -> None:
        """Ends the steps under way."""
        while self._under:
            self._launch_sampling(self._under[0])
            self._finish(self._under.popleft())

    def _begin(self) -> bool:
        """Plans and launches a step; False if there is nothing to do."""
        now = self.clock()
        for seq in self.scheduler.expired(now):
            if seq.underway:
                self._settle()
            self._end(seq, End("deadline"))
        batch = self.scheduler.plan(now)
        if batch and self.speculator:
            batch = self.speculator.extend(batch, self.scheduler)
        if batch:
            self._launch(batch)
        return bool(batch)

    def _launch(self, batch: Batch) -> None:
        if self.watch is not None:
            self.watch(dict.fromkeys((*batch, *(seq for step in self._under for seq in step.batch))).keys())
        entries, lanes = tuple(batch.values()), self.scheduler.lanes > 1
        alone = bool(self.speculator) and not lanes  # drafts need the tokens before
        apart = self.engine.overlaps or lanes
        launched = self.engine.launch(entries, alone=alone) if apart else None
        if lanes:
            for seq, entry in batch.items():
                seq.underway += entry.num_tokens
        self._under.append(Underway(batch, launched))

    def _launch_sampling(self, step: Underway) -> None:
        """Launches the sampling of a step that waited for the tokens of the step before, which has ended."""
        if step.launched is not None:
            ended = [entry.slot for seq, entry in step.batch.items() if seq.finish]
            self.engine.launch_sampling(step.launched, ended)

    def _tokens(self, step: Underway) -> abc.Sequence[int | Sampled]:
        if step.launched is None:
            return self.engine.sample(tuple(step.batch.values()))
        return self.engine.collect(step.launched)

    def _finish(self, step: Underway) -> None:
        timing = self.engine.timing
        total, read = timing.total, timing.weight_bytes
        tokens, batch = self._tokens(step), step.batch
        # Seconds of the step alone: compiling the plan of a new bucket happens once and predicts nothing.
        now, seconds = self.clock(), timing.last
        for straggler in self._stragglers:
            straggler.step(seconds)
        # The step before may have ended a sequence after this step was launched: drop its rows.
        if any(seq.finish for seq in batch):
            tokens = [token for seq, token in zip(batch, tokens, strict=True) if not seq.finish]
            batch = {seq: entry for seq, entry in batch.items() if not seq.finish}
        if not batch:
            return
        decoding = [seq for seq, entry in batch.items() if entry.decodes]
        parts: list[Part] = []
        if len(decoding) < len(batch):
            parts = [
                (seq, len(entry.ids), seq.num_computed_tokens, seq.decoding)
                for seq, entry in batch.items()
                if not entry.decodes
            ]
        cached = [seq.num_computed_tokens for seq in decoding]
        facts = self._facts(seconds, timing.weight_bytes - read)
        self.stats_collector.step(decoding, cached, parts, facts)
        if self.speculator:
            alone = seconds if self.scheduler.lanes > 1 else timing.total - total
            self.speculator.timed(batch, alone, self.scheduler)
        known = [len(seq.ids) for seq in batch]
        ended = self.scheduler.done(batch, tokens, now, seconds)
        given, failed = self._give(batch, tokens, known)
        self.stats_collector.tokens(given, now)
        for seq, error in failed:
            if seq in ended:
                ended.remove(seq)
            self._end(seq, End("error", error))
        for seq in ended:
            self._close(seq, End(seq.finish))

    def _give(
        self, batch: Batch, tokens: abc.Sequence[int | Sampled], known: abc.Sequence[int]
    ) -> tuple[list[tuple[Sequence, int]], list[tuple[Sequence, SatchelError]]]:
        """Gives the sampled tokens to the handles. Returns how many tokens each sequence got, and those that
        must end: a request whose own code failed, or whose logits are lost. The others go on. known: tokens
        that each sequence had before.
        """
        given: list[tuple[Sequence, int]] = []
        failed: list[tuple[Sequence, SatchelError]] = []
        handles, items = self._handles, iter(tokens)
        for (seq, entry), n in zip(batch.items(), known, strict=True):
            if entry.decodes:
                item = next(items)
                if isinstance(item, int):
                    handles[seq].put(item)
                    given.append((seq, 1))
                    continue
                own: list[int | Sampled] = [item]
            else:
                own = [next(items) for _ in range(entry.rows)][: len(seq.ids) - n]
            error = next((i.error for i in own if isinstance(i, Sampled) and i.error is not None), None)
            if error is not None:
                failed.append((seq, error))
            elif own:
                given.append((seq, len(own)))
                for item in own:
                    handles[seq].put(item)
        return given, failed

    def _facts(self, seconds: float, weight_bytes: int) -> StepFacts:
        pool = self.engine.pages.pool
        return StepFacts(seconds, weight_bytes, self.engine.timing.devices, 1 - pool.free / pool.size)

    def stats(self) -> EngineStats:
        """Statistics so far; does not wait for the current step."""
        s, pages = self.scheduler, self.engine.pages
        blocks = (pages.pool.size, pages.pool.free, pages.tree.size)
        found, tier = self.stats_collector.snapshot(len(s.waiting), len(s.running), blocks), self.engine.tier
        found = replace(found, **self.engine.residency.counters())
        if tier is None:
            return found
        return replace(
            found,
            host_blocks=len(tier),
            host_bytes=tier.used,
            host_moved_out=tier.kept_out,
            host_moved_back=tier.brought_back,
        )

    def _end(self, seq: Sequence, end: End) -> None:
        """Ends a sequence early; does nothing if it has ended already."""
        if seq in self._handles:
            seq.finish = end.finish
            self.scheduler.remove(seq)
            self._close(seq, end)

    def _close(self, seq: Sequence, end: End) -> None:
        self.stats_collector.ended(seq, self.clock())
        if self.speculator:
            self.speculator.forget(seq)
        self._handles.pop(seq).put(end)

    def _end_all(self, end: End) -> None:
        for seq in list(self._handles):
            self._end(seq, end)
