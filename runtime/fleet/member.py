"""A member of a fleet: one engine in a worker process of its own, and what is known of its load and cache.

What it has to do is counted here, from what was routed to it and the tokens that came: that is exact, and
ahead of any report. Its reports give what only the engine knows: how long its steps take, and how much cache
is free.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from satchel.errors import DeviceError
from satchel.runtime.fleet.known import Holders, Known
from satchel.runtime.fleet.pools import Role
from satchel.runtime.fleet.router import View
from satchel.runtime.scheduler.lengths import Lengths
from satchel.runtime.scheduler.steptime import START
from satchel.runtime.worker.replay import LiveRequest
from satchel.runtime.worker.service import WorkerService
from satchel.runtime.worker.wire import Message

JOINING, READY, DRAINING, FAILED = "joining", "ready", "draining", "failed"
AHEAD = 2  # requests that a member has at most, for each of its slots
MOST = 1 << 40  # no report has a larger number
Weights = tuple[float, float, float, float]
START_STEP: Weights = (float(START[0]), float(START[1]), float(START[2]), float(START[3]))
SMALL_STEP = 512  # prompt tokens of a step where the options set no other number


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine tells of its load."""

    waiting: int = 0  # requests in its queue
    running: int = 0  # sequences with a slot
    queued: int = 0  # prompt tokens still to compute
    read: int = 0  # context tokens of those that decode
    free: int = -1  # tokens of KV cache that are free or can be evicted; -1: it told nothing yet
    batch: int = SMALL_STEP  # most tokens of a step
    steps: int = 0  # of which the times below were learned
    step: Weights = (
        START_STEP  # StepTime's weights: seconds of a step, of a decoded row, of a prompt token ...
    )

    @classmethod
    def read_from(cls, told: Any) -> LoadReport:
        """Of a message. Raises DeviceError for what no engine tells."""
        try:
            waiting, running, queued, read, free, batch, steps, step = told
            numbers = (waiting, running, queued, read, free, batch, steps)
            counts_fit = all(type(n) is int and 0 <= n <= MOST for n in numbers)
            if counts_fit and len(step) == 4 and all(type(w) is float and 0 <= w < math.inf for w in step):
                times = step[0], step[1], step[2], step[3]
                return cls(waiting, running, queued, read, free, batch, steps, times)
        except (TypeError, ValueError):
            pass
        raise DeviceError(
            f"the worker process sent a load of {told!a:.80}, expected seven counts and four times"
        )


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A member, for people and metrics."""

    member: str
    state: str
    role: str
    trouble: str  # why it gets no requests; "": it does
    host: str  # of its engine; "": this one
    device: str
    hardware: str  # that computes: names, kernels and threads of its devices; "": it has not loaded the model
    threads: int
    slots: int
    waiting: int  # requests whose first token has not come
    running: int  # requests that decode
    queued_tokens: int  # prompt tokens of those that wait
    kv_tokens_free: int
    known_blocks: int  # cached blocks that it told of
    processes_lost: int
    token_seconds: float  # of a step with one decoded row, as measured
    prompt_token_seconds: float
    start_seconds: float  # from its beginning until it had loaded the model; 0: it has not yet


class MemberLoad(NamedTuple):
    """A member, as scaling sees it."""

    name: str
    state: str
    view: View  # its part of the requests that no member has is in it
    work: int  # requests and calls that it has
    known: int  # cached blocks that it told of
    start: float  # seconds, see MemberFacts


class Member:
    """name: by which people and metrics know it. index: which share of the machine it has. role: whether it
    computes prompts, answers, or both. holders: the fleet's index of cached blocks.
    """

    def __init__(
        self,
        name: str,
        index: int,
        service: WorkerService,
        role: Role = "both",
        holders: Holders | None = None,
    ) -> None:
        self.name, self.index, self.service, self.role = name, index, service, role
        self.draining, self.joined = False, False
        self.replaced = False  # another is begun in its place once it has left
        self.error = ""  # why it could not join
        self.known, self.load = Known(holders, name), LoadReport()
        self.begun_anew = 0  # processes that it lost
        self.began, self.start_seconds = time.monotonic(), 0.0
        self.awaited: set[LiveRequest] = set()  # that go on here once another has computed their prompts

    @property
    def state(self) -> str:
        if self.error or self.service.broken:
            return FAILED
        if self.draining:
            return DRAINING
        return READY if self.service.ready else JOINING

    @property
    def usable(self) -> bool:
        """Whether it may get requests."""
        return self.state == READY and not self.service.trouble

    @property
    def slots(self) -> int:
        return self.service.options.slots

    @property
    def has_room(self) -> bool:
        return len(self.service.requests) + len(self.awaited) < AHEAD * self.slots

    def told(self, message: Message) -> None:
        """A report came. Raises DeviceError for one that no engine makes."""
        if "load" in message:
            self.load = LoadReport.read_from(message["load"])
        if "blocks" in message:
            self.known.told(message["blocks"])

    def lost(self) -> None:
        """Its process ended, and its cache with it."""
        self.known.clear()
        self.load = LoadReport(batch=self.load.batch, steps=self.load.steps, step=self.load.step)
        self.begun_anew += 1

    def view(self, lengths: Lengths, step: Weights | None = None) -> View:
        """What the router sees. step: times of a step; None: as this member has learned them."""
        decoding = [live for live in self.service.requests if live.decodes]
        waiting = [live for live in self.service.requests if not live.decodes]
        queued = sum(live.queued for live in waiting)
        decoding += self.awaited
        read = sum(len(live.handle.seq.ids) for live in decoding)
        cache = self.service.cache
        free = cache.capacity - read if self.load.free < 0 else self.load.free
        left = sum(_remaining(live, lengths) for live in decoding) / len(decoding) if decoding else 0.0
        return View(
            waiting=len(waiting),
            queued=queued,
            running=len(decoding),
            read=read,
            remaining=left,
            free=max(0, free - queued),
            block=cache.block,
            chunk=self.load.batch,
            step=self.load.step if step is None else step,
            cached=self.known.cached,
            slots=self.slots,
        )

    def facts(self, lengths: Lengths) -> MemberFacts:
        """What is known of it now; its process is not asked."""
        view = self.view(lengths)
        return MemberFacts(
            member=self.name,
            state=self.state,
            role=self.role,
            trouble=self.error or self.service.trouble,
            host=self.service.host,
            device=self.service.options.device,
            hardware=self.service.hardware,
            threads=self.service.options.threads,
            slots=self.slots,
            waiting=view.waiting,
            running=view.running,
            queued_tokens=view.queued,
            kv_tokens_free=max(0, self.load.free),
            known_blocks=len(self.known),
            processes_lost=self.service.restarts,
            token_seconds=self.load.step[0] + self.load.step[1],
            prompt_token_seconds=self.load.step[2],
            start_seconds=self.start_seconds,
        )


def _remaining(live: LiveRequest, lengths: Lengths) -> float:
    """Tokens of the answer that are predicted to come still."""
    seq = live.handle.seq
    return max(1.0, lengths.answer(seq) - seq.generated)
