"""One engine thread for any number of threads and asyncio tasks: requests come in, steps run, tokens go out.

The thread sleeps while there is nothing to do. Only it touches the engine; others put requests and cancels
into its inbox, and read tokens from their ticket.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from satchel.quant import DeviceError, RequestError, SatchelError
from satchel.quant.threads import begin
from satchel.runtime.detail import Sampled
from satchel.runtime.engine import LAST, Engine, Feed
from satchel.runtime.errand import current
from satchel.runtime.log import LOG
from satchel.runtime.lost import DeviceLost
from satchel.runtime.scheduler import Job, Limits, Request, Scheduler, Work
from satchel.runtime.speculative import Speculator
from satchel.runtime.stats import EngineStats, Meter, Part, StepFacts, Traffic
from satchel.runtime.ticket import End, Ticket
from satchel.runtime.watchdog import Beats, Pulse, Watchdog, ticking
from satchel.runtime.work import Ledger

T = TypeVar("T")
PATIENCE = 0.1  # seconds between looks whether something that is waited for will still come


@dataclass(frozen=True, slots=True)
class Underway:
    """A step that was begun, and how its tokens are had. launched: the device has it."""

    work: list[Work]
    tokens: Callable[[], Sequence[int | Sampled]]
    launched: bool


@dataclass(slots=True, eq=False)
class Wanted:
    """Slots that a request waits for."""

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
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        speculator: Speculator | None = None,
        on_lost: Callable[[DeviceLost], SatchelError] | None = None,
        after: Service | None = None,
    ) -> None:
        self.engine, self.clock, self.speculator = engine, clock, speculator
        self.scheduler = Scheduler(engine, engine.cache.slots, limits)
        if engine.tier is not None:
            engine.tier.recompute = self.scheduler.time.computing
        attention = Ledger(engine).attention.values()
        self.meter: Meter = after.meter if after else Meter(Traffic((a.window, a.bytes) for a in attention))
        # Called before each step, and before each piece of an errand that has a number.
        self.watch: Callable[[Sequence[Work]], None] | None = after.watch if after else None
        self.watch_errand: Callable[[int], None] | None = after.watch_errand if after else None
        self.gone: SatchelError | None = None  # why it does nothing more: a device is lost
        self._on_lost, self._lost = on_lost, list[DeviceLost]()
        self._tickets: dict[Job, Ticket] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._calls: deque[Callable[[], None]] = deque()  # one between two steps, however many there are
        self._lent = False  # the last free slot went to a call while requests waited
        self._wanted: deque[Wanted] = deque()
        self._under: deque[Underway] = deque()  # steps whose tokens were not read yet: one between two turns
        self._bell = threading.Condition()
        self._closed, self._coming = False, Counter[str]()
        self._over, self._dog = threading.Event(), Watchdog(0, 0)
        self._thread = threading.Thread(target=self._live, name="satchel-engine", daemon=True)
        begin(self._thread)
        beats = Beats(lambda: self.pulse)
        ticking(lambda: self._dog.heard(beats.look()), self._over, "satchel-watch")

    def submit(self, request: Request) -> Ticket:
        """Queues a request. RequestError where the queue is full, or the request can never run."""
        job = Job(request, self.clock())
        if job.detail is not None:
            job.detail.check(self.engine.vocabulary)
        ticket = Ticket(self, job)
        with self._bell:
            if self._closed:
                raise RequestError("the model was closed: load it again")
            self._check_alive()
            self.scheduler.check(request, self._coming.total(), self._coming.elements())
            self._coming[job.client] += 1
            self._post(lambda: self._add(ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        self._post(lambda: self._end(ticket.job, End("cancelled")))

    def call(self, function: Callable[[], None]) -> None:
        """Runs a function on the engine thread between two steps, and waits for it. Where this thread is
        interrupted meanwhile, it does not run, or is over, when that is known.
        """
        errand, done, dropped = current(), threading.Event(), threading.Event()
        skipped = threading.Event()
        errand.check()
        self._check_alive()

        def run() -> None:
            try:
                if self.gone:
                    skipped.set()
                elif not dropped.is_set():
                    if errand.number and self.watch_errand is not None:
                        self.watch_errand(errand.number)
                    function()
            finally:
                done.set()

        with self._bell:
            self._calls.append(run)
            self._bell.notify()
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

    def lend(self, function: Callable[[int], None]) -> None:
        """Runs a function on the engine thread with an empty slot of its own, as soon as one is free, and
        waits for it; what it raises is raised here.
        """
        (slot,) = self.borrow(1)
        try:
            self.ask(partial(function, slot))
        finally:
            self.give_back([slot])

    def ask(self, function: Callable[[], T]) -> T:
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

    def borrow(self, count: int) -> list[int]:
        """So many empty slots, as soon as they are free together; give_back() ends it."""
        errand, wanted = current(), Wanted(count)
        self._post(partial(self._wanted.append, wanted))
        try:
            while not wanted.done.wait(PATIENCE):
                errand.check()
                self._check_alive()
        except BaseException:
            self._post(partial(self._unwant, wanted))
            raise
        return wanted.slots

    def _unwant(self, wanted: Wanted) -> None:
        """Nobody waits for these slots any more."""
        if wanted in self._wanted:
            self._wanted.remove(wanted)
        for slot in wanted.slots:
            self.scheduler.give_back(slot)

    def give_back(self, slots: Sequence[int]) -> None:
        """Empties borrowed slots; others may have them."""

        def give() -> None:
            for slot in slots:
                self.scheduler.give_back(slot)

        self._post(give)

    def _serve_wanted(self) -> None:
        """Lends slots to the call that has waited longest for them, where there are enough; where requests
        wait too, every other time.
        """
        while self._wanted and self._wanted[0].count <= self.scheduler.free_slots:
            waiting = bool(self.scheduler.waiting)
            if waiting and self._lent:
                self._lent = False
                return
            self._lent = waiting
            wanted = self._wanted.popleft()
            found = [self.scheduler.lend() for _ in range(wanted.count)]
            wanted.slots += [slot for slot in found if slot is not None]
            wanted.done.set()

    def close(self) -> None:
        """Cancels what is under way and ends the thread; the engine stays the caller's."""
        with self._bell:
            self._closed = True
            self._bell.notify()
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

    def _post(self, task: Callable[[], None]) -> None:
        with self._bell:
            self._inbox.append(task)
            self._bell.notify()

    def _add(self, ticket: Ticket) -> None:
        self._tickets[ticket.job] = ticket
        with self._bell:  # in one go, or submit() would count it twice meanwhile
            self.scheduler.add(ticket.job)
            self._coming[ticket.job.client] -= 1

    def _live(self) -> None:
        try:
            self._run()
        finally:
            self._over.set()

    def _run(self) -> None:
        while True:
            self.pulse.begin("step")
            with self._bell:
                while not (self._inbox or self._calls or self._closed or self._busy or self._lost):
                    self.pulse.end()
                    self._bell.wait()
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
            self._serve_wanted()  # a task may have freed slots, or asked for them
            if closed:
                self._end_all(End("cancelled"))
                return
            if self._busy:
                self._guarded(self._step)
                if not self._lost:
                    self._serve_wanted()

    def _guarded(self, function: Callable[[], None]) -> None:
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
        with self._bell:
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
            if step.launched:
                with suppress(Exception):  # the first failure is the one to tell
                    step.tokens()
        self._end_all(End("error", error))

    @property
    def _busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running or self._under)

    def _step(self) -> None:
        """Ends the step under way, or a new one, after launching the next where that need not wait for it."""
        if not (self._under or self._begin()):
            return
        step = self._under[0]
        if self.engine.overlaps and not self.speculator:
            work = self.scheduler.ahead(step.work, self.clock())
            if work and (len(work) == sum(w.count for w in step.work) or self.engine.has(len(work))):
                self._launch(work, [next_feed_of(w) for w in work])
        self._finish(self._under.popleft())

    def _settle(self) -> None:
        """Ends the step under way."""
        if self._under:
            self._finish(self._under.popleft())

    def _begin(self) -> bool:
        """Launches a step of what there is to do, if there is anything."""
        now = self.clock()
        for job in self.scheduler.expired(now):
            self._end(job, End("deadline"))
        work = self.scheduler.plan(now)
        if work and self.speculator:
            work = self.speculator.extend(work, self.scheduler)
        if work:
            self._launch(work, [feed_of(w) for w in work])
        return bool(work)

    def _launch(self, work: list[Work], feeds: Sequence[Feed]) -> None:
        if self.watch is not None:
            self.watch(work)
        if not self.engine.overlaps or any(f.detail is not None for f in feeds):
            step = Underway(work, partial(self.engine.sample, feeds), launched=False)
        else:
            step = Underway(work, partial(self.engine.collect, self.engine.launch(feeds)), launched=True)
        self._under.append(step)

    def _finish(self, step: Underway) -> None:
        timing = self.engine.timing
        total, read = timing.total, timing.weight_bytes
        tokens, work = step.tokens(), step.work
        # Seconds of the step itself: the plan of a new bucket is made once, and says nothing about the
        # next step.
        now, seconds = self.clock(), timing.last
        if any(w.job.finish for w in work):  # by the step before: what was fed and sampled since is nobody's
            pairs = [(w, t) for w, t in zip(work, tokens, strict=True) if not w.job.finish]
            work, tokens = [w for w, _ in pairs], [t for _, t in pairs]
        if not work:
            return
        parts: list[Part] = [(w.job, w.count + len(w.drafts), w.job.fed, w.job.decoding) for w in work]
        self.meter.step(parts, self._facts(seconds, timing.weight_bytes - read), now)
        if self.speculator:
            self.speculator.timed(work, timing.total - total, self.scheduler)
        known = [len(w.job.ids) for w in work]
        ended = self.scheduler.done(work, tokens, now, seconds)
        items = iter(tokens)
        for w, n in zip(work, known, strict=True):
            if w.samples:
                own = [next(items) for _ in range(1 + len(w.drafts))]
                self._give(w.job, own[: len(w.job.ids) - n], now, ended)
        for job in ended:
            self._close(job, End(job.finish))

    def _give(self, job: Job, items: Sequence[int | Sampled], now: float, ended: list[Job]) -> None:
        """Hands out what the job got. Where the request's own code failed, or its logits are lost, it alone
        ends; others go on.
        """
        failed = next((i.error for i in items if isinstance(i, Sampled) and i.error is not None), None)
        if failed is not None:
            if job in ended:
                ended.remove(job)
            self._end(job, End("error", failed))
            return
        self.meter.token(job, now, len(items))
        for item in items:
            self._tickets[job].put(item)

    def _facts(self, seconds: float, weight_bytes: int) -> StepFacts:
        pool = self.engine.pages.pool
        return StepFacts(seconds, weight_bytes, self.engine.timing.devices, 1 - pool.free / pool.size)

    def stats(self) -> EngineStats:
        """What was counted so far, without waiting for the step at hand."""
        s, pages = self.scheduler, self.engine.pages
        blocks = (pages.pool.size, pages.pool.free, pages.tree.size)
        found, tier = self.meter.snapshot(len(s.waiting), len(s.running), blocks), self.engine.tier
        if (hot := self.engine.hot) is not None:
            picks, held = hot.counted
            found = replace(found, expert_picks=picks, hot_picks=held, hot_bytes=hot.moved)
        if tier is None:
            return found
        return replace(
            found,
            host_blocks=len(tier),
            host_bytes=tier.used,
            host_moved_out=tier.kept_out,
            host_moved_back=tier.brought_back,
        )

    def _end(self, job: Job, end: End) -> None:
        """Ends a job before its time; one that has ended already stays as it is."""
        if job in self._tickets:
            job.finish = end.finish
            self.scheduler.remove(job)
            self._close(job, end)

    def _close(self, job: Job, end: End) -> None:
        self.meter.ended(job, self.clock())
        if self.speculator:
            self.speculator.forget(job)
        self._tickets.pop(job).put(end)

    def _end_all(self, end: End) -> None:
        for job in list(self._tickets):
            self._end(job, end)


def feed_of(work: Work) -> Feed:
    """What a job brings to a step: tokens that are known, then drafted ones."""
    job = work.job
    ids = (*job.ids[job.fed : job.fed + work.count], *work.drafts)
    if not work.samples:
        return Feed(job.slot, ids, scales=job.request.scales)
    r = job.request
    return Feed(
        job.slot,
        ids,
        r.sampling,
        1 + len(work.drafts),
        job.detail,
        job.ids,
        r.scales,
        guessed=bool(work.drafts),
    )


def next_feed_of(work: Work) -> Feed:
    """What a job brings to the step after one that is under way: the token that it samples there."""
    r = work.job.request
    return Feed(work.job.slot, (LAST,), r.sampling, scales=r.scales)
