"""Plans steps: who decodes, whose prompt goes on, who is let in, and who must give way. It computes nothing
itself, so it runs the same on a device, on the null backend and on a simulated clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from satchel.runtime.host_sampling import Sampled, token_of
from satchel.runtime.kv import Miss, Pages
from satchel.runtime.refusals import PromptTooLong, QueueFull
from satchel.runtime.scheduler.job import Job, Request
from satchel.runtime.scheduler.lengths import Lengths
from satchel.runtime.scheduler.limits import SMALL, Limits
from satchel.runtime.scheduler.prefix_wait import waits_for_prefix
from satchel.runtime.scheduler.shares import (
    TWICE,
    Shares,
    crowd,
    ended_first,
    giver,
    held,
    interleaved,
    split,
)
from satchel.runtime.scheduler.steptime import Load, StepTime
from satchel.runtime.scheduler.urgency import Key, order

MARGIN = 0.8  # of the time that a step takes without prompts; what is left to 1 covers a wrong prediction
CROWD = 8.0  # how many times that much it may be where many begin beside few
NAMES = 1024  # clients and users that are always kept


class Slots(Protocol):
    """What the scheduler needs of an engine."""

    batch: int
    pages: Pages

    def begin(self, slot: int, ids: Sequence[int], salt: str = "") -> tuple[int, Miss]: ...

    def publish(self, slot: int, ids: Sequence[int], salt: str = "") -> None: ...

    def rewind(self, slot: int, length: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens of the job in the next step, and whether a token is sampled after them. drafts: tokens
    that are fed after those and verified: a token is sampled after each of them too.
    """

    job: Job
    count: int
    samples: bool
    drafts: tuple[int, ...] = ()


class Scheduler:
    """waiting and running hold every job that has not ended, each once."""

    def __init__(self, engine: Slots, slots: int, limits: Limits | None = None) -> None:
        self.engine, self.limits = engine, limits or Limits()
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.shares, self.time, self.lengths = Shares(), StepTime(), Lengths()
        self._free = list(range(slots - 1, -1, -1))
        pages = engine.pages
        self._longest = min(pages.cache.context, pages.most * pages.cache.block)  # tokens of a job
        self._names = NAMES  # clients and users that are kept before the list is looked through again
        self._turn = 0  # decoded tokens, by which those take turns that do not fit into one step

    def check(self, request: Request, coming: int = 0, clients: Iterable[str] = ()) -> None:
        """RequestError where the queue is full, with `coming` others of these clients on their way into it,
        or the request could never run. Reads nothing that a step changes but the queue, so any thread may
        ask.
        """
        pages, waiting = self.engine.pages, len(self.waiting) + coming
        queued = () if waiting < self.limits.queue else (*(j.client for j in list(self.waiting)), *clients)
        check(request, waiting, self.limits, pages.cache.block, pages.most, queued)

    def add(self, job: Job) -> None:
        """Puts a job into the queue; check() comes first."""
        if self.shares.names >= self._names:
            self.shares.forget((*self.waiting, *self.running))
            self._names = max(NAMES, 2 * self.shares.names)
        self.shares.arrive(job)
        self.waiting.append(job)

    def expired(self, now: float) -> list[Job]:
        """Jobs whose deadline has passed."""
        return [
            j
            for j in (*self.waiting, *self.running)
            if j.request.deadline is not None and now > j.request.deadline
        ]

    def plan(self, now: float) -> list[Work]:
        """The next step: a token of everybody who decodes, then prompts, the most urgent first."""
        self._make_way(now)
        every = [j for j in self.running if j.decoding]
        decoding = self._in_turn(every)
        for job in decoding:
            if job.slot >= 0:  # it may have given way to an earlier one
                self._make_room(job, now)
        work = self._decoded(decoding)
        prompts = len(self.running) > len(every)
        if not (prompts or (self.waiting and self._free)):
            return work
        beginning = [j for j in self.running if not j.decoding] + self.waiting[: len(self._free)]
        room = self._prompt_room([w.job for w in work], beginning)
        begun = self._let_in(room, now)
        self._feed_prompts([j for j in self.running if not j.decoding or j in begun], room, work)
        return work

    def ahead(self, work: Sequence[Work], now: float) -> list[Work]:
        """The step that follows `work`, planned before its tokens are known: one more of each. Empty where it
        must wait for them: somebody ends, may begin or give way, or the host has a say in the next token.
        """
        if len(work) != len(self.running) or (self.waiting and self._free) or self.limits.step_seconds:
            return []
        if self._giver(now) is not None:
            return []
        if any(not w.samples or w.drafts or w.job.host_sampling is not None or w.job.finish for w in work):
            return []
        if any(self._ends(w.job, 1) for w in work) or self.expired(now):
            return []
        pages = self.engine.pages
        missing = sum(pages.missing(w.job.slot, w.job.fed + w.count + 1) for w in work)
        if missing and missing > pages.free_blocks:
            return []
        return [Work(job, 1, True) for job in self.running]

    def _order(self, job: Job, now: float) -> Key:
        left = self.lengths.left(job) if self.limits.shortest else 0.0
        return order(job, now, self.shares, self._slots, self.limits.ageing, left)

    @property
    def _slots(self) -> Counter[str]:
        """How many each client has."""
        return held(self.running)

    @property
    def _clients(self) -> set[str]:
        return {j.client for j in self.waiting} | {j.client for j in self.running}

    def _giver(self, now: float) -> str | None:
        """The client that gives a slot back for the first of those who wait; None where none must."""
        if self._free or not self.waiting or self.limits.shortest or len(self._clients) < 2:
            return None
        slots = self._slots
        first = min({j.client for j in self.waiting}, key=lambda c: (slots[c], self.shares.had(c)))
        begun = all(j.started >= 0 for j in self.waiting if j.client == first)
        return giver(first, slots, self.shares.had, begun)

    def _make_way(self, now: float) -> None:
        """Before a step: clients that have more than their share give slots and blocks back, as far as the
        first request of another needs them.
        """
        while (most := self._giver(now) or self._block_giver(now)) is not None:
            self._preempt(self._last_of(most, now))

    def _block_giver(self, now: float) -> str | None:
        """The client that gives blocks back for the first of those who wait, which has less than an even
        part; None where there are enough, or it would have more than that.
        """
        clients = self._clients
        if not self._free or not self.waiting or self.limits.shortest or len(clients) < 2:
            return None
        first, pages = min(self.waiting, key=lambda j: self._order(j, now)), self.engine.pages
        need, blocks = pages.missing(self._free[-1], len(first.ids)), self._blocks()
        even = pages.pool.size // len(clients)
        if need <= pages.free_blocks or blocks[first.client] + need > even:
            return None
        most = max(clients - {first.client}, key=lambda c: blocks[c])
        return most if blocks[most] > even else None

    def _blocks(self) -> Counter[str]:
        """Blocks of the cache that each client's requests hold."""
        found = Counter[str]()
        for job in self.running:
            found[job.client] += len(self.engine.pages.held(job.slot))
        return found

    def _last_of(self, client: str, now: float) -> Job:
        """Of the client's jobs that run, the one that it needs least."""
        return max((j for j in self.running if j.client == client), key=lambda j: self._order(j, now))

    def _aim(self, decoding: Sequence[Job]) -> float:
        """Seconds that the decoded rows of a step may take; 0: no aim. Beside another client's requests it is
        not much more than one row of each client takes, with room for prompts.
        """
        aim = self.limits.step_seconds
        if len(decoding) < 2 or len(self._clients) < 2:
            return aim
        least = self._one_each(decoding)
        prompts = self.waiting or len(self.running) > len(decoding)
        kept = (self.time.computing(self.limits.least) or 0.0) if prompts else 0.0
        even = max(least, TWICE * least - kept)
        return min(aim, even) if aim else even

    def _one_each(self, decoding: Sequence[Job]) -> float:
        """Seconds of a step with one row of each client."""
        return self._decode_seconds(interleaved(decoding)[: len(held(decoding))])

    def _in_turn(self, decoding: list[Job]) -> list[Job]:
        """Those who get a token in this step: all, or as many as the aim for a step allows."""
        aim, count = self._aim(decoding), len(decoding)
        if not aim or count < 2 or self._decode_seconds(decoding) <= aim:
            return decoding
        turned = interleaved([decoding[(self._turn + i) % count] for i in range(count)])
        while count > 1 and self._decode_seconds(turned[:count]) > aim:
            count -= 1
        self._turn += count
        return turned[:count]

    def _decoded(self, jobs: Sequence[Job]) -> list[Work]:
        """A token of each job that has a slot, as many as fit into one step."""
        work, room = [], self.engine.batch
        for job in jobs:
            if job.slot >= 0 and job.left <= room:
                work.append(Work(job, job.left, True))
                room -= job.left
        return work

    def _decode_seconds(self, decoding: Sequence[Job]) -> float:
        return self.time.seconds(Load(len(decoding), 0, sum(j.fed for j in decoding)))

    def _let_in(self, room: int, now: float) -> list[Job]:
        """Begins those who wait, in their order, while there are slots and blocks, and their client has less
        to be read than there is room for. Where one finds no blocks, its client waits; others do so once they
        had as much since as it needs.
        """
        begun: list[Job] = []
        prefix_waiting, stuck, bar = set[Job](), set[str](), float("inf")
        pending = Counter[str]()
        for job in self.running:
            pending[job.client] += 0 if job.decoding else job.left
        several = len(self._clients) > 1
        self.waiting.sort(key=lambda j: self._order(j, now))
        while self._free:
            found = None
            for job in self.waiting:
                if job in prefix_waiting or job.client in stuck or pending[job.client] >= room:
                    continue
                if self.shares.had(job.client) >= bar:
                    continue
                if not waits_for_prefix(job, self.running, self.engine.pages.cache.block):
                    found = job
                    break
                prefix_waiting.add(job)
            if found is None:
                break
            if self._admit(found, now):
                begun.append(found)
                pending[found.client] += found.left
                if several:
                    self.waiting.sort(key=lambda j: self._order(j, now))
            else:
                stuck.add(found.client)
                bar = min(bar, self.shares.had(found.client) + len(found.ids) * self._token_seconds)
        return begun

    @property
    def _token_seconds(self) -> float:
        """Of a prompt's token."""
        return max(1e-9, float(self.time.weights[2]))

    def _feed_prompts(self, prompts: Sequence[Job], room: int, work: list[Work]) -> None:
        """Gives the prompts what the step has room for: of each client in their order, of several evenly."""
        wanted = Counter[str]()
        for job in prompts:
            wanted[job.client] += job.left
        parts = dict.fromkeys(wanted, room)
        if len(wanted) > 1:
            parts = split(room, wanted, self.shares.had, self._token_seconds)
            parts = parts if work else ended_first(parts, wanted)
        for job in prompts:
            parts[job.client] -= self._feed(job, parts[job.client], work)

    def done(
        self, work: Sequence[Work], tokens: Sequence[int | Sampled], now: float, seconds: float
    ) -> list[Job]:
        """Notes what a step did; `tokens` are those sampled, in the order of `work`: one for each that
        samples, and one more for each of its drafts. Gives the jobs that ended.
        """
        self.time.learn(load(work), seconds)
        costs = self.time.parts([load([w]) for w in work], seconds)
        sampled, ended = iter(tokens), []
        for w, cost in zip(work, costs, strict=True):
            job = w.job
            job.fed, job.again = job.fed + w.count, 0
            if not w.samples:
                self.engine.publish(job.slot, job.ids, job.salt)
            self.shares.charge(job, cost)
            if w.samples:
                self._take(w, [token_of(next(sampled)) for _ in range(1 + len(w.drafts))])
                if job.first < 0:
                    job.first = now
                    self.engine.publish(job.slot, job.request.ids, job.salt)
            if job.finish:
                self.lengths.learn(job)
                ended.append(job)
        for job in ended:
            self.remove(job)
        return ended

    def _take(self, work: Work, sampled: Sequence[int]) -> None:
        """Gives the job its sampled tokens: each was drawn as if the drafts before it were the answer, so
        they hold up to the first draft that is not what was sampled in its place.
        """
        job, drafts = work.job, work.drafts
        for right, token in enumerate(sampled):
            job.ids.append(token)
            job.finish = self._finish(job)
            if job.finish or right == len(drafts) or token != drafts[right]:
                break
        job.fed += right
        job.used.drafted += len(drafts)
        job.used.accepted += right
        if right < len(drafts):
            wanted, job.fed = job.fed, self.engine.rewind(job.slot, job.fed)
            short = wanted - job.fed
            job.again = short if short < work.count + len(drafts) else 0  # more is fed as a prompt is

    def remove(self, job: Job) -> None:
        """Takes a job out, wherever it is; what it computed stays for others to find."""
        if job in self.waiting:
            self.waiting.remove(job)
        if job in self.running:
            self.running.remove(job)
            self._leave(job)
        if not (self.waiting or self.running):
            self.shares.forget()

    @property
    def held_up(self) -> bool:
        """Whether a request waits for room in steps or in memory; slots there are."""
        return bool(self.waiting and self._free)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def lend(self) -> int | None:
        """A free slot for a use of its own, None where there is none; give_back() ends it."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        self.engine.rewind(slot, 0)
        self._free.append(slot)

    def _finish(self, job: Job) -> str:
        if job.ids[-1] in job.request.ends or (job.host_sampling is not None and job.host_sampling.finished):
            return "stop"
        return "length" if self._ends(job) else ""

    def _ends(self, job: Job, more: int = 0) -> bool:
        """Whether no token may follow once the job has so many more."""
        length = len(job.ids) + more
        return length > self._longest or length - len(job.request.ids) >= job.request.most

    def _prompt_room(self, decoding: Sequence[Job], beginning: Sequence[Job]) -> int:
        """Prompt tokens for which the step has room, all that fit while nobody waits for the next token.
        Where more wait for their first one, by so much longer may the others wait for theirs.
        """
        most = self.engine.batch - sum(j.left for j in decoding)
        if not decoding:
            return self._room_alone(most)
        read = sum(j.fed for j in decoding)
        alone = self._decode_seconds(decoding)
        more = min(max(1.0, crowd(decoding, beginning)), CROWD)
        budget = alone + (self.limits.prefill_seconds or MARGIN * more * alone)
        if len(held(decoding)) > 1:
            budget = min(budget, max(alone, TWICE * self._one_each(decoding)))
        budget = self.limits.step_seconds or budget
        fitting = self.time.prompt_tokens(len(decoding), read, budget, most)
        return min(most, max(fitting, self.limits.least))

    def _room_alone(self, most: int) -> int:
        """Of `most` prompt tokens, those that may go into a step in which nobody decodes."""
        if most <= SMALL or not self.limits.alone_seconds or self.time.computing(1) is None:
            return most
        return max(SMALL, self.time.prompt_tokens(0, 0, self.limits.alone_seconds, most))

    def _feed(self, job: Job, room: int, work: list[Work]) -> int:
        """Adds up to `room` tokens of the job's prompt; gives their number."""
        count = min(room, job.left)
        if count > 0:
            work.append(Work(job, count, count == job.left))
        return max(0, count)

    def _admit(self, job: Job, now: float) -> bool:
        """Gives the job a slot and all blocks of its prompt; False where there are not enough of them."""
        pages, slot = self.engine.pages, self._free[-1]
        cached, miss = self.engine.begin(slot, job.ids, job.salt)
        if pages.missing(slot, len(job.ids)) > pages.free_blocks:
            self.engine.rewind(slot, 0)
            return False
        pages.reserve(slot, len(job.ids))
        self._free.pop()
        self.waiting.remove(job)
        self.running.append(job)
        job.slot, job.fed = slot, cached
        if job.started < 0:
            job.started, job.cached, job.miss = now, cached, miss
        return True

    def _make_room(self, job: Job, now: float) -> None:
        """Makes sure that the job can take the positions that it lacks, sending away the least urgent job if
        need be, which may be itself.
        """
        pages, length = self.engine.pages, len(job.ids)
        if not pages.missing(job.slot, length):
            return
        while pages.missing(job.slot, length) > pages.free_blocks:
            blocks = self._blocks()
            last = self._last_of(max(blocks, key=lambda c: blocks[c]), now)
            self._preempt(last)
            if last is job:
                return
        pages.reserve(job.slot, length)

    def _preempt(self, job: Job) -> None:
        """Back to the queue: what is left of its blocks when it returns is found again, the rest computed
        anew.
        """
        self.running.remove(job)
        self._leave(job)
        job.preempted += 1
        self.waiting.insert(0, job)

    def _leave(self, job: Job) -> None:
        # The slot may hold a token more, of a step that was launched before the job was known to end.
        self.engine.publish(job.slot, job.ids[: job.fed], job.salt)
        self.engine.rewind(job.slot, 0)
        self._free.append(job.slot)
        job.slot, job.fed, job.again = -1, 0, 0


def check(
    request: Request, waiting: int, limits: Limits, block: int, have: int, queued: Iterable[str] = ()
) -> None:
    """RequestError where so many wait that no other may, or where the `have` blocks of the cache never hold
    the request. queued: the clients of those who wait; one that has less than its part of the queue may still
    come where others have filled it.
    """
    if waiting >= limits.queue:
        own, clients = request.client or request.user, Counter(queued)
        if len({*clients, own}) < 2 or clients[own] >= limits.queue // len({*clients, own}):
            raise QueueFull(waiting)
    need = -(-(len(request.ids) + 1) // block)
    if need > have:
        line = (
            f"the prompt has {len(request.ids)} tokens, which is {need} blocks of KV cache; there are "
            f"{have}: shorten it or give the cache more memory"
        )
        raise PromptTooLong(len(request.ids), have * block - 1, line)


def load(work: Sequence[Work]) -> Load:
    """What a step of this work computes."""
    decoded = sum(1 for w in work if w.job.decoding)
    again = sum(w.job.again for w in work)
    prompt = sum(w.count for w in work) - decoded - again
    drafted = again + sum(len(w.drafts) for w in work)
    return Load(decoded, prompt, sum(w.job.fed for w in work), drafted)
