"""One engine thread for any number of threads and asyncio tasks: requests come in, steps run, tokens go out.

The thread sleeps while there is nothing to do. Only it touches the engine; others put requests and cancels
into its inbox, and read tokens from their RequestHandle.
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
from satchel.runtime.engine.engine import LAST, BatchEntry, Engine, Launched
from satchel.runtime.engine.host_sampling import Sampled
from satchel.runtime.engine.request_handle import End, RequestHandle
from satchel.runtime.engine.stats import EngineStats, KVTraffic, Part, StatsCollector, StepFacts
from satchel.runtime.engine.watchdog import Beats, Pulse, Watchdog, ticking
from satchel.runtime.log import LOG
from satchel.runtime.scheduler import Request, ScheduledSequence, Scheduler, SchedulerLimits, Sequence
from satchel.runtime.speculative import Speculator

T = TypeVar("T")
PATIENCE = 0.1  # seconds between looks whether something that is waited for will still come


@dataclass(frozen=True, slots=True)
class Underway:
    """A step that was begun, an entry for each scheduled sequence. launched: None where it runs when its
    tokens are asked for.
    """

    scheduled: list[ScheduledSequence]
    entries: abc.Sequence[BatchEntry]
    launched: Launched | None


@dataclass(slots=True, eq=False)
class SlotRequest:
    """A call that waits for `count` free slots."""

    count: int
    slots: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)


class Service:
    """engine: used by this object's thread alone from here on, as is the speculator's. clock: seconds,
    monotonic. on_lost: called in the thread when a device of the engine is lost, gives the error for all that
    is under way; then the thread ends, for another Service must go on. after: the one that this one goes on
    for, whose counts and watchers it takes.
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
        if engine.tier is not None:
            engine.tier.recompute = self.scheduler.time.computing
        attention = CostModel(engine).attention.values()
        self.stats_collector: StatsCollector = (
            after.stats_collector
            if after
            else StatsCollector(KVTraffic((a.window, a.bytes) for a in attention))
        )
        # Called before each step, and before each piece of a call whose cancel scope has a number.
        self.watch: abc.Callable[[abc.Sequence[ScheduledSequence]], None] | None = (
            after.watch if after else None
        )
        self.watch_scope: abc.Callable[[int], None] | None = after.watch_scope if after else None
        self.gone: SatchelError | None = None  # why it does nothing more: a device is lost
        self._on_lost, self._lost = on_lost, list[DeviceLost]()
        self._handles: dict[Sequence, RequestHandle] = {}
        self._inbox: deque[abc.Callable[[], None]] = deque()
        self._calls: deque[abc.Callable[[], None]] = deque()  # one between two steps, however many there are
        self._leased_last = False  # the last free slot went to a call while requests waited
        self._slot_requests: deque[SlotRequest] = deque()
        self._under: deque[Underway] = deque()  # steps whose tokens were not read yet: one between two turns
        self._wakeup = threading.Condition()
        self._closed, self._coming = False, Counter[str]()
        self._over, self._dog = threading.Event(), Watchdog(0, 0)
        self._thread = threading.Thread(target=self._live, name="satchel-engine", daemon=True)
        begin(self._thread)
        beats = Beats(lambda: self.pulse)
        ticking(lambda: self._dog.heard(beats.look()), self._over, "satchel-watch")

    def submit(self, request: Request) -> RequestHandle:
        """Queues a request. RequestError where the queue is full, or the request can never run."""
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
            self._post(lambda: self._add(handle))
        return handle

    def cancel(self, handle: RequestHandle) -> None:
        self._post(lambda: self._end(handle.seq, End("cancelled")))

    def call(self, function: abc.Callable[[], None]) -> None:
        """Runs a function on the engine thread between two steps, and waits for it. Where this thread is
        interrupted meanwhile, it does not run, or is over, when that is known.
        """
        scope, done, dropped = current_scope(), threading.Event(), threading.Event()
        skipped = threading.Event()
        scope.check()
        self._check_alive()

        def run() -> None:
            try:
                if self.gone:
                    skipped.set()
                elif not dropped.is_set():
                    if scope.number and self.watch_scope is not None:
                        self.watch_scope(scope.number)
                    function()
            finally:
                done.set()

        with self._wakeup:
            self._calls.append(run)
            self._wakeup.notify()
        try:
            self._wait(done)
        except BaseException:
            dropped.set()
            self._wait(done)
            raise
        if skipped.is_set():
            self._check_alive()

    def _wait(self, done: threading.Event) -> None:
        while not done.wait(PATIENCE):
            self._check_alive()

    def _check_alive(self) -> None:
        if self.gone:
            raise self.gone
        if not self._thread.is_alive():
            raise DeviceError("the engine thread has ended; load the model again")

    def with_slot(self, function: abc.Callable[[int], None]) -> None:
        """Runs a function on the engine thread with an empty slot that it leases, as soon as one is free, and
        waits for it; what it raises is raised here.
        """
        (slot,) = self.acquire_slots(1)
        try:
            self.ask(partial(function, slot))
        finally:
            self.release_slots([slot])

    def ask(self, function: abc.Callable[[], T]) -> T:
        """As call(); gives what the function gives, raises what it raises."""
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
            self._check_alive()  # tells it as everybody is told
        if failed:
            raise failed[0]
        return found[0]

    def acquire_slots(self, count: int) -> list[int]:
        """So many empty slots, as soon as they are free together; release_slots() ends it."""
        scope, lease = current_scope(), SlotRequest(count)
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
        """Takes the request back, with the slots that it was given."""
        if lease in self._slot_requests:
            self._slot_requests.remove(lease)
        for slot in lease.slots:
            self.scheduler.release_slot(slot)

    def release_slots(self, slots: abc.Sequence[int]) -> None:
        """Empties acquired slots; others may have them."""

        def give() -> None:
            for slot in slots:
                self.scheduler.release_slot(slot)

        self._post(give)

    def _grant_leases(self) -> None:
        """Gives slots to the call that has waited longest for them, where there are enough; where requests
        wait too, every other time.
        """
        while self._slot_requests and self._slot_requests[0].count <= self.scheduler.free_slots:
            waiting = bool(self.scheduler.waiting)
            if waiting and self._leased_last:
                self._leased_last = False
                return
            self._leased_last = waiting
            lease = self._slot_requests.popleft()
            found = [self.scheduler.acquire_slot() for _ in range(lease.count)]
            lease.slots += [slot for slot in found if slot is not None]
            lease.done.set()

    def close(self) -> None:
        """Cancels what is under way and ends the thread; the engine stays the caller's."""
        with self._wakeup:
            self._closed = True
            self._wakeup.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def join(self) -> None:
        """Waits until the thread has ended."""
        self._thread.join()

    @property
    def pulse(self) -> Pulse:
        """What the engine's thread is doing."""
        return self.engine.pulse

    @property
    def trouble(self) -> str:
        """Why no request can be answered now; "" where they are."""
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
        with self._wakeup:  # in one go, or submit() would count it twice meanwhile
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
                while not (self._inbox or self._calls or self._closed or self._busy or self._lost):
                    self.pulse.end()
                    self._wakeup.wait()
                    self.pulse.begin("step")
                tasks = list(self._inbox)
                self._inbox.clear()
                closed = self._closed
                calls = len(self._calls) if closed else min(1, len(self._calls))
                tasks += [self._calls.popleft() for _ in range(calls)]
            if tasks or closed:
                self._guarded(self._settle)  # they find nothing under way
            for task in tasks:
                self.pulse.begin("step")
                task()
            if self._lost:
                self._leave()
                return
            self._grant_leases()  # a task may have freed slots, or asked for them
            if closed:
                self._end_all(End("cancelled"))
                return
            if self._busy:
                self._guarded(self._step)
                if not self._lost:
                    self._grant_leases()

    def _guarded(self, function: abc.Callable[[], None]) -> None:
        """Calls it; where it fails, so does every request."""
        try:
            function()
        except DeviceLost as error:
            self._lost.append(error)
        except SatchelError as error:
            LOG.error("a step failed: %s", error)
            self._fail(error)
        except Exception as error:  # a bug of ours: no caller must wait for ever
            LOG.exception("a step failed")
            self._fail(DeviceError(f"the engine failed: {error!r}"))

    def _leave(self) -> None:
        """A device is lost: all that is under way fails, and nothing more is taken."""
        error = self._lost[0]
        told = self._on_lost(error) if self._on_lost else error
        with self._wakeup:
            self.gone = told
            tasks = [*self._inbox, *self._calls]
            self._inbox.clear()
            self._calls.clear()
        for task in tasks:  # requests that came meanwhile end below; calls do nothing
            task()
        self._fail(told)

    def _fail(self, error: SatchelError) -> None:
        while self._under:
            step = self._under.popleft()
            if step.launched is not None:
                with suppress(Exception):  # the first failure is the one to tell
                    self.engine.collect(step.launched)
        self._end_all(End("error", error))

    @property
    def _busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running or self._under)

    def _step(self) -> None:
        """Ends the step under way, or a new one, after launching the next where that need not wait for it."""
        if not (self._under or self._begin()):
            return
        step = self._under[0]
        self._launch_sampling(step)
        if self.engine.overlaps and not self.speculator:
            scheduled = self.scheduler.ahead(step.scheduled, self.clock())
            entries = [next_entry_of(s) for s in scheduled]
            if entries and (
                len(entries) == sum(s.num_tokens for s in step.scheduled) or self.engine.has(entries)
            ):
                self._launch(scheduled, entries)
        self._finish(self._under.popleft())

    def _settle(self) -> None:
        """Ends the step under way."""
        if self._under:
            self._launch_sampling(self._under[0])
            self._finish(self._under.popleft())

    def _begin(self) -> bool:
        """Launches a step of what there is to do, if there is anything."""
        now = self.clock()
        for seq in self.scheduler.expired(now):
            self._end(seq, End("deadline"))
        scheduled = self.scheduler.plan(now)
        if scheduled and self.speculator:
            scheduled = self.speculator.extend(scheduled, self.scheduler)
        if scheduled:
            self._launch(scheduled, [entry_of(s) for s in scheduled])
        return bool(scheduled)

    def _launch(self, scheduled: list[ScheduledSequence], entries: abc.Sequence[BatchEntry]) -> None:
        if self.watch is not None:
            self.watch(scheduled)
        launched = self.engine.launch(entries) if self.engine.overlaps else None
        self._under.append(Underway(scheduled, entries, launched))

    def _launch_sampling(self, step: Underway) -> None:
        """Launches the sampling where it waited for tokens of the step before; that step has ended."""
        if step.launched is not None:
            ended = [e.slot for e, s in zip(step.entries, step.scheduled, strict=True) if s.seq.finish]
            self.engine.launch_sampling(step.launched, ended)

    def _tokens(self, step: Underway) -> abc.Sequence[int | Sampled]:
        if step.launched is None:
            return self.engine.sample(step.entries)
        return self.engine.collect(step.launched)

    def _finish(self, step: Underway) -> None:
        timing = self.engine.timing
        total, read = timing.total, timing.weight_bytes
        tokens, scheduled = self._tokens(step), step.scheduled
        # Seconds of the step itself: the plan of a new bucket is made once, and says nothing about the
        # next step.
        now, seconds = self.clock(), timing.last
        # A sequence that the step before ended has no use for what was computed and sampled since.
        if any(s.seq.finish for s in scheduled):
            pairs = [(s, t) for s, t in zip(scheduled, tokens, strict=True) if not s.seq.finish]
            scheduled, tokens = [s for s, _ in pairs], [t for _, t in pairs]
        if not scheduled:
            return
        parts: list[Part] = [
            (s.seq, s.num_tokens + len(s.draft_tokens), s.seq.num_computed_tokens, s.seq.decoding)
            for s in scheduled
        ]
        self.stats_collector.step(parts, self._facts(seconds, timing.weight_bytes - read), now)
        if self.speculator:
            self.speculator.timed(scheduled, timing.total - total, self.scheduler)
        known = [len(s.seq.ids) for s in scheduled]
        ended = self.scheduler.done(scheduled, tokens, now, seconds)
        items = iter(tokens)
        for s, n in zip(scheduled, known, strict=True):
            if s.samples:
                own = [next(items) for _ in range(1 + len(s.draft_tokens))]
                self._give(s.seq, own[: len(s.seq.ids) - n], now, ended)
        for seq in ended:
            self._close(seq, End(seq.finish))

    def _give(
        self, seq: Sequence, items: abc.Sequence[int | Sampled], now: float, ended: list[Sequence]
    ) -> None:
        """Hands out what the sequence got. Where the request's own code failed, or its logits are lost, it
        alone ends; others go on.
        """
        failed = next((i.error for i in items if isinstance(i, Sampled) and i.error is not None), None)
        if failed is not None:
            if seq in ended:
                ended.remove(seq)
            self._end(seq, End("error", failed))
            return
        self.stats_collector.token(seq, now, len(items))
        for item in items:
            self._handles[seq].put(item)

    def _facts(self, seconds: float, weight_bytes: int) -> StepFacts:
        pool = self.engine.pages.pool
        return StepFacts(seconds, weight_bytes, self.engine.timing.devices, 1 - pool.free / pool.size)

    def stats(self) -> EngineStats:
        """What was counted so far, without waiting for the step at hand."""
        s, pages = self.scheduler, self.engine.pages
        blocks = (pages.pool.size, pages.pool.free, pages.tree.size)
        found, tier = self.stats_collector.snapshot(len(s.waiting), len(s.running), blocks), self.engine.tier
        if (cache := self.engine.expert_cache) is not None:
            lookups, hits = cache.counted
            found = replace(
                found,
                expert_cache_lookups=lookups,
                expert_cache_hits=hits,
                expert_cache_moved_bytes=cache.moved,
            )
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
        """Ends a sequence before its time; one that has ended already stays as it is."""
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


def entry_of(scheduled: ScheduledSequence) -> BatchEntry:
    """What a sequence brings to a step: tokens that are known, then drafted ones."""
    seq = scheduled.seq
    ids = (
        *seq.ids[seq.num_computed_tokens : seq.num_computed_tokens + scheduled.num_tokens],
        *scheduled.draft_tokens,
    )
    if not scheduled.samples:
        return BatchEntry(seq.slot, ids, adapter_scales=seq.request.adapter_scales)
    r = seq.request
    return BatchEntry(
        seq.slot,
        ids,
        r.sampling,
        1 + len(scheduled.draft_tokens),
        seq.host_sampling,
        seq.ids,
        r.adapter_scales,
        speculated=bool(scheduled.draft_tokens),
    )


def next_entry_of(scheduled: ScheduledSequence) -> BatchEntry:
    """What a sequence brings to the step after one that is under way: the token that it samples there."""
    seq = scheduled.seq
    r = seq.request
    return BatchEntry(
        seq.slot,
        (LAST,),
        r.sampling,
        host_sampling=seq.host_sampling,
        past=seq.ids,
        adapter_scales=r.adapter_scales,
    )
