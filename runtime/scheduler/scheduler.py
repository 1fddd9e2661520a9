"""Plans steps: which sequences decode, which prompts continue, which requests begin, and which are preempted.
The scheduler computes nothing itself: it runs the same on a device, on the null backend and on a simulated
clock.
"""

from __future__ import annotations

from collections import Counter, abc
from typing import Protocol

from satchel.runtime.api.refusals import PromptTooLong, QueueFull
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled, token_of
from satchel.runtime.kv import Miss, Pages
from satchel.runtime.scheduler.lane_count import LaneCount
from satchel.runtime.scheduler.lengths import Lengths
from satchel.runtime.scheduler.prefix_wait import waits_for_prefix
from satchel.runtime.scheduler.sequence import Batch, Sequence
from satchel.runtime.scheduler.shares import (
    TWICE,
    Shares,
    crowd,
    ended_first,
    giver,
    interleaved,
    slots_of,
    split,
)
from satchel.runtime.scheduler.steptime import Load, StepTime
from satchel.runtime.scheduler.urgency import Key, order
from satchel.runtime.scheduler_limits import SMALL, SchedulerLimits

MARGIN = 0.8  # part of a step's time without prompts that prompts may add; the rest covers a wrong prediction
CROWD = 8.0  # prompts may add up to this many times as much where many requests begin beside few
NAMES = 1024  # clients and users that are kept without a check whether they have requests


class Slots(Protocol):
    """What the scheduler needs of an engine. batch: the most tokens of a step."""

    batch: int
    pages: Pages

    def begin(self, slot: int, ids: abc.Sequence[int], salt: str = "") -> tuple[int, Miss]: ...

    def publish(self, slot: int, ids: abc.Sequence[int], salt: str = "") -> None: ...

    def rewind(self, slot: int, length: int) -> int: ...


class Scheduler:
    """Every sequence that has not ended is in `waiting` or in `running`, once.

    lanes: the most steps that may be under way, each planned before those before it have ended.
    weighs: of these, as many are used as pay by what was measured; else all that have a sequence.
    """

    def __init__(self, engine: Slots, slots: int, limits: SchedulerLimits | None = None) -> None:
        self.engine, self.limits = engine, limits or SchedulerLimits()
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.shares, self.time, self.lengths = Shares(), StepTime(), Lengths()
        self._free = list(range(slots - 1, -1, -1))
        pages = engine.pages
        self._longest = min(pages.cache.context, pages.max_blocks * pages.cache.block)  # tokens of a sequence
        self._names = NAMES  # number of known clients and users at which unused ones are dropped
        self._others_next = False  # the last step was one of the sequences that need not run alone
        self._turn = 0  # decoded tokens so far: sequences that do not fit into one step take turns by it
        self.lanes, self.weighs, self._lane_count = 1, True, LaneCount()

    def check(self, request: GenerateRequest, coming: int = 0, clients: abc.Iterable[str] = ()) -> None:
        """Raises RequestError if the queue is full or the request can never run. Thread-safe: of what steps
        change, it reads the queue alone.

        coming: number of requests on their way into the queue; clients: theirs.
        """
        pages, waiting = self.engine.pages, len(self.waiting) + coming
        queued = () if waiting < self.limits.queue else (*(s.client for s in list(self.waiting)), *clients)
        check(request, waiting, self.limits, pages.cache.block, pages.max_blocks, queued)

    def add(self, seq: Sequence) -> None:
        """Puts a sequence into the queue. The caller has called check()."""
        if self.shares.names >= self._names:
            self.shares.forget((*self.waiting, *self.running))
            self._names = max(NAMES, 2 * self.shares.names)
        self.shares.arrive(seq)
        seq.full = min(self._longest + 1, seq.prompt + seq.request.max_tokens)
        self.waiting.append(seq)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed."""
        return [
            s
            for s in (*self.waiting, *self.running)
            if (deadline := s.request.deadline) is not None and now > deadline
        ]

    def plan(self, now: float) -> Batch:
        """The next step: a token of each sequence that decodes, then prompts, the most urgent first. With
        lanes it has no sequence whose next token depends on a step under way, and is empty where one of those
        would have to give way.
        """
        busy = self.lanes > 1 and any(seq.underway for seq in self.running)
        if busy and (self._yielding(now) is not None or any(seq.runs_alone for seq in self.running)):
            return {}
        self._make_way(now)
        every = [s for s in self.running if s.decoding]
        decoding = self._in_turn(every if self.lanes == 1 else self._of_lane(every))
        slots, lengths = [seq.slot for seq in decoding], [len(seq.ids) for seq in decoding]
        if short := self.engine.pages.short(slots, lengths):
            if busy and self._missing(short) > self.engine.pages.free_blocks:
                return {}
            of = dict(zip(slots, decoding, strict=True))
            for seq in [of[slot] for slot, _ in short]:
                if seq.slot >= 0:  # an earlier one may have preempted it
                    self._make_room(seq, now)
        batch = self._decoded(decoding)
        prompts = len(self.running) > len(every)
        if not (prompts or (self.waiting and self._free)):
            return self._apart(batch)
        beginning = [s for s in self.running if not s.decoding] + self.waiting[: len(self._free)]
        room = self._prompt_room(list(batch), beginning)
        begun = self._let_in(room, now)
        self._schedule_prompts([s for s in self.running if not s.decoding or s in begun], room, batch)
        return self._apart(batch)

    def ahead(self, batch: Batch, now: float) -> Batch:
        """The step that follows `batch`, planned before the tokens of `batch` are known: one more token of
        each sequence. Empty if the plan depends on them: a sequence may end, begin or be preempted.
        """
        if len(batch) != len(self.running) or (self.waiting and self._free) or self.limits.step_seconds:
            return {}
        if self._yielding(now) is not None:
            return {}
        for seq, entry in batch.items():
            if not entry.decodes and entry.rows != 1:
                return {}
            if seq.finish or len(seq.ids) + 1 >= seq.full:
                return {}
        if self.expired(now):
            return {}
        pages = self.engine.pages
        slots = [entry.slot for entry in batch.values()]
        ends = [
            seq.num_computed_tokens + (2 if entry.decodes else len(entry.ids) + 1)
            for seq, entry in batch.items()
        ]
        missing = self._missing(pages.short(slots, ends))
        if missing and missing > pages.free_blocks:
            return {}
        return {seq: seq.next_entry() for seq in self.running}

    def _missing(self, short: abc.Iterable[tuple[int, int]]) -> int:
        """Blocks that these slots lack up to these lengths."""
        return sum(self.engine.pages.missing(slot, end) for slot, end in short)

    def _of_lane(self, every: abc.Sequence[Sequence]) -> list[Sequence]:
        """The part of the decoding sequences that goes into the next step, none of them under way; none while
        fewer have come back than a lane has, so that steps that parted in another way come together again.
        """
        free = [seq for seq in every if not seq.underway]
        lanes = self.lanes_for(len(every))
        return free[: -(-len(every) // lanes)] if len(free) >= len(every) // lanes else []

    def lanes_for(self, rows: int) -> int:
        """Lanes among which so many decoding sequences are divided."""
        most = max(1, min(self.lanes, rows))
        return self._lane_count.of(rows, most) if self.weighs else most

    def _apart(self, batch: Batch) -> Batch:
        """The step, or a part of it where a sequence must run alone: that one and the others take turns."""
        alone = [seq for seq in batch if seq.runs_alone]
        if not alone or len(batch) == 1:
            return batch
        others = {seq: entry for seq, entry in batch.items() if not seq.runs_alone}
        self._others_next = bool(others) and not self._others_next
        return others if self._others_next else {alone[0]: batch[alone[0]]}

    def _order(self, seq: Sequence, now: float) -> Key:
        left = self.lengths.remaining(seq) if self.limits.shortest else 0.0
        return order(seq, now, self.shares, self._slots, self.limits.ageing, left)

    @property
    def _slots(self) -> Counter[str]:
        """Slots of each client."""
        return slots_of(self.running)

    @property
    def _clients(self) -> set[str]:
        return {s.client for s in self.waiting} | {s.client for s in self.running}

    def _giver(self, now: float) -> str | None:
        """The client that must give a slot back to the waiting client with the least; None if none must."""
        if self._free or not self.waiting or self.limits.shortest or len(self._clients) < 2:
            return None
        slots = self._slots
        weight, had = self.shares.weight, self.shares.had
        first = min({s.client for s in self.waiting}, key=lambda c: (slots[c] / weight(c), had(c)))
        begun = all(s.started >= 0 for s in self.waiting if s.client == first)
        return giver(first, slots, had, begun, weight)

    def _make_way(self, now: float) -> None:
        """Preempts sequences of clients with more than their share of slots or blocks, as long as the first
        waiting request of another client needs them.
        """
        while (seq := self._yielding(now)) is not None:
            self._preempt(seq)

    def _yielding(self, now: float) -> Sequence | None:
        """The sequence that must give its slot or its blocks to another client now; None if none must."""
        most = self._giver(now) or self._block_giver(now)
        last = None if most is None else self._last_of(most, now)
        return last if last is not None and last.num_computed_tokens >= last.keeps_until else None

    def _block_giver(self, now: float) -> str | None:
        """The client that must give blocks back to the most urgent waiting request. None if there are enough
        free blocks, or if the request's client would then hold more than its part by weight.
        """
        clients = self._clients
        if not self._free or not self.waiting or self.limits.shortest or len(clients) < 2:
            return None
        first, pages = min(self.waiting, key=lambda s: self._order(s, now)), self.engine.pages
        need, blocks = pages.missing(self._free[-1], len(first.ids)), self._blocks()
        weight = self.shares.weight
        unit = pages.pool.size / sum(map(weight, clients))
        if need <= pages.free_blocks or blocks[first.client] + need > int(unit * weight(first.client)):
            return None
        most = max(clients - {first.client}, key=lambda c: blocks[c] / weight(c))
        return most if blocks[most] > int(unit * weight(most)) else None

    def _blocks(self) -> Counter[str]:
        """Blocks of the KV cache that each client's sequences hold."""
        found = Counter[str]()
        for seq in self.running:
            found[seq.client] += len(self.engine.pages.held(seq.slot))
        return found

    def _last_of(self, client: str, now: float) -> Sequence:
        """The least urgent of the client's running sequences."""
        return max((s for s in self.running if s.client == client), key=lambda s: self._order(s, now))

    def _aim(self, decoding: abc.Sequence[Sequence]) -> float:
        """Seconds that the decoded rows of a step may take; 0: no limit. With several clients it is at most
        TWICE the time of one row per client, less what prompts need.
        """
        aim = self.limits.step_seconds
        if len(decoding) < 2 or len(self._clients) < 2:
            return aim
        least = self._one_each(decoding)
        prompts = self.waiting or len(self.running) > len(decoding)
        kept = (self.time.computing(self.limits.min_prefill_tokens) or 0.0) if prompts else 0.0
        even = max(least, TWICE * least - kept)
        return min(aim, even) if aim else even

    def _one_each(self, decoding: abc.Sequence[Sequence]) -> float:
        """Seconds of a step with one decoded row per client."""
        first = interleaved(decoding, self.shares.weight)[: len(slots_of(decoding))]
        return self._decode_seconds(first)

    def _in_turn(self, decoding: list[Sequence]) -> list[Sequence]:
        """The sequences that get a token in this step: all, or as many as fit the time of _aim()."""
        aim, count = self._aim(decoding), len(decoding)
        if not aim or count < 2 or self._decode_seconds(decoding) <= aim:
            return decoding
        turned = [decoding[(self._turn + i) % count] for i in range(count)]
        turned = interleaved(turned, self.shares.weight)
        while count > 1 and self._decode_seconds(turned[:count]) > aim:
            count -= 1
        self._turn += count
        return turned[:count]

    def _decoded(self, seqs: abc.Sequence[Sequence]) -> Batch:
        """The rows of these sequences, those that have a slot and fit into one step."""
        batch, room = Batch(), self.engine.batch
        for seq in seqs:
            remaining = len(seq.ids) - seq.num_computed_tokens
            if seq.slot >= 0 and remaining <= room:
                plain = seq.on_device and remaining == 1
                batch[seq] = seq.next_entry() if plain else seq.entry(remaining)
                room -= remaining
        return batch

    def _decode_seconds(self, decoding: abc.Sequence[Sequence]) -> float:
        return self.time.seconds(Load(len(decoding), 0, sum(s.num_computed_tokens for s in decoding)))

    def _let_in(self, room: int, now: float) -> list[Sequence]:
        """Begins waiting sequences in their order, while there are slots and blocks, and as long as the
        pending prompt tokens of a client are fewer than `room`. If one finds too few blocks, its client
        waits; another client may overtake it only by as much time as the prompt would take.
        """
        begun: list[Sequence] = []
        held_back, stuck, bar = set[Sequence](), set[str](), float("inf")
        pending = Counter[str]()
        for seq in self.running:
            pending[seq.client] += 0 if seq.decoding else seq.remaining
        several = len(self._clients) > 1
        self.waiting.sort(key=lambda s: self._order(s, now))
        while self._free:
            found = None
            for seq in self.waiting:
                if seq in held_back or seq.client in stuck or pending[seq.client] >= room:
                    continue
                if self.shares.had(seq.client) >= bar:
                    continue
                if not waits_for_prefix(seq, self.running, self.engine.pages.cache.block):
                    found = seq
                    break
                held_back.add(seq)
            if found is None:
                break
            if self._admit(found, now):
                begun.append(found)
                pending[found.client] += found.remaining
                if several:
                    self.waiting.sort(key=lambda s: self._order(s, now))
            else:
                stuck.add(found.client)
                bar = min(bar, self.shares.had(found.client) + len(found.ids) * self._token_seconds)
        return begun

    @property
    def _token_seconds(self) -> float:
        """Predicted seconds of a prompt token."""
        return max(1e-9, float(self.time.weights[2]))

    def _schedule_prompts(self, prompts: abc.Sequence[Sequence], room: int, batch: Batch) -> None:
        """Divides the step's room for prompt tokens: among clients by what each had, within one in order."""
        wanted = Counter[str]()
        for seq in prompts:
            wanted[seq.client] += seq.remaining
        parts = dict.fromkeys(wanted, room)
        if len(wanted) > 1:
            parts = split(room, wanted, self.shares.had, self._token_seconds)
            parts = parts if batch else ended_first(parts, wanted)
        for seq in prompts:
            count = max(0, min(parts[seq.client], seq.remaining))
            if count:
                batch[seq] = seq.entry(count)
                parts[seq.client] -= count

    def done(
        self, batch: Batch, tokens: abc.Sequence[int | Sampled], now: float, seconds: float
    ) -> list[Sequence]:
        """Notes what a step did, and gives the sequences that ended. tokens: those that it sampled, in the
        order of the batch.
        """
        if self.lanes > 1:
            self._lane_count.ended(len(batch) if all(seq.decoding for seq in batch) else 0, now)
        if all(entry.decodes for entry in batch.values()):  # as loads_of() and parts(), with less to add up
            read = [seq.num_computed_tokens for seq in batch]
            self.time.learn(Load(len(read), 0, sum(read)), seconds)
            costs = self.time.decode_parts(read, seconds)
        else:
            loads = loads_of(batch)
            self.time.learn(total(loads), seconds)
            costs = self.time.parts(loads, seconds)
        self.shares.charge(batch, costs)
        sampled, ended = iter(tokens), []
        if self.lanes > 1:
            for seq, entry in batch.items():
                seq.underway -= entry.num_tokens
        for seq, entry in batch.items():
            if entry.decodes:
                token = token_of(next(sampled))
                seq.num_computed_tokens += 1
                seq.ids.append(token)
                if token in seq.request.stop_ids or len(seq.ids) >= seq.full or seq.host_sampling:
                    seq.finish = self._finish(seq)
            else:
                self._note(seq, entry, [token_of(next(sampled)) for _ in range(entry.rows)], now)
            if seq.finish:
                self.lengths.learn(seq)
                ended.append(seq)
        for seq in ended:
            self.remove(seq)
        return ended

    def _note(self, seq: Sequence, entry: BatchEntry, sampled: abc.Sequence[int], now: float) -> None:
        """Notes the rows of a sequence: what was computed, what it sampled after it."""
        seq.num_computed_tokens, seq.num_replayed_tokens = seq.num_computed_tokens + entry.num_tokens, 0
        if not entry.rows:
            ids = seq.ids[: seq.num_computed_tokens] if seq.underway else seq.ids
            self.engine.publish(seq.slot, ids, seq.salt)
            return
        self._take(seq, entry, sampled)
        seq.on_device = True
        if seq.first < 0:
            seq.first = now
            self.engine.publish(seq.slot, seq.request.ids, seq.salt)

    def _take(self, seq: Sequence, entry: BatchEntry, sampled: abc.Sequence[int]) -> None:
        """Appends sampled tokens to the sequence. Each was drawn after the draft tokens before it, so tokens
        are valid up to the first one that differs from the draft token in its place.
        """
        drafts = entry.draft_tokens
        for accepted, token in enumerate(sampled):
            seq.ids.append(token)
            seq.finish = self._finish(seq)
            if seq.finish or accepted == len(drafts) or token != drafts[accepted]:
                break
        seq.num_computed_tokens += accepted
        seq.used.drafted += len(drafts)
        seq.used.accepted += accepted
        if accepted < len(drafts):
            reached = self.engine.rewind(seq.slot, seq.num_computed_tokens)
            short, seq.num_computed_tokens = seq.num_computed_tokens - reached, reached
            # More missing tokens than the step had are computed as a prompt.
            seq.num_replayed_tokens = short if short < len(entry.ids) else 0

    def remove(self, seq: Sequence) -> None:
        """Removes a sequence that waits or runs. Its blocks stay in the prefix cache."""
        if seq in self.waiting:
            self.waiting.remove(seq)
        if seq in self.running:
            self.running.remove(seq)
            self._leave(seq)
        if not (self.waiting or self.running):
            self.shares.forget()

    @property
    def held_up(self) -> bool:
        """Whether a request waits although a slot is free: for room in a step, or for blocks."""
        return bool(self.waiting and self._free)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def acquire_slot(self) -> int | None:
        """Leases a free slot to a call; None if there is none. release_slot() ends the lease."""
        return self._free.pop() if self._free else None

    def release_slot(self, slot: int) -> None:
        self.engine.rewind(slot, 0)
        self._free.append(slot)

    def _finish(self, seq: Sequence) -> str:
        if seq.ids[-1] in seq.request.stop_ids or (
            seq.host_sampling is not None and seq.host_sampling.finished
        ):
            return "stop"
        return "length" if len(seq.ids) >= seq.full else ""

    def _prompt_room(self, decoding: abc.Sequence[Sequence], beginning: abc.Sequence[Sequence]) -> int:
        """Prompt tokens for which the step has room. Without decoding sequences, as many as fit. Otherwise
        prompts may prolong the step, and the more so, the more sequences wait for their first token.
        """
        most = self.engine.batch - sum(s.remaining for s in decoding)
        if not decoding:
            return self._room_alone(most)
        read = sum(s.num_computed_tokens for s in decoding)
        alone = self._decode_seconds(decoding)
        more = min(max(1.0, crowd(decoding, beginning)), CROWD)
        budget = alone + (self.limits.prefill_seconds or MARGIN * more * alone)
        if len(slots_of(decoding)) > 1:
            budget = min(budget, max(alone, TWICE * self._one_each(decoding)))
        budget = self.limits.step_seconds or budget
        fitting = self.time.prompt_tokens(len(decoding), read, budget, most)
        return min(most, max(fitting, self.limits.min_prefill_tokens))

    def _room_alone(self, most: int) -> int:
        """Of `most` prompt tokens, those that may go into a step in which no sequence decodes."""
        if most <= SMALL or not self.limits.alone_seconds or self.time.computing(1) is None:
            return most
        return max(SMALL, self.time.prompt_tokens(0, 0, self.limits.alone_seconds, most))

    def _admit(self, seq: Sequence, now: float) -> bool:
        """Gives the sequence a slot and all blocks of its prompt; False if there are too few blocks."""
        pages, slot = self.engine.pages, self._free[-1]
        cached, miss = self.engine.begin(slot, seq.ids, seq.salt)
        if pages.missing(slot, len(seq.ids)) > pages.free_blocks:
            self.engine.rewind(slot, 0)
            return False
        pages.reserve(slot, len(seq.ids))
        self._free.pop()
        self.waiting.remove(seq)
        self.running.append(seq)
        seq.slot, seq.num_computed_tokens = slot, cached
        # Two clients that take the blocks of each other would begin anew for ever if neither got further than
        # the last time; twice what was lost bounds what is computed again by what the request needs anyway.
        again = max(seq.reached + 1, 2 * (seq.reached - cached)) if seq.reached else 0
        seq.keeps_until = min(again, len(seq.ids))
        if seq.started < 0:
            seq.started, seq.cached, seq.miss = now, cached, miss
        return True

    def _make_room(self, seq: Sequence, now: float) -> None:
        """Reserves the blocks that the sequence lacks. If there are too few, it preempts the least urgent
        sequence of the client that holds the most, which may be this one.
        """
        pages, length = self.engine.pages, len(seq.ids)
        if not pages.missing(seq.slot, length):
            return
        while pages.missing(seq.slot, length) > pages.free_blocks:
            blocks = self._blocks()
            last = self._last_of(max(blocks, key=lambda c: blocks[c]), now)
            self._preempt(last)
            if last is seq:
                return
        pages.reserve(seq.slot, length)

    def _preempt(self, seq: Sequence) -> None:
        """Puts the sequence back into the queue. When it returns, it finds the blocks that are still cached
        and recomputes the others.
        """
        self.running.remove(seq)
        seq.reached = seq.num_computed_tokens
        self._leave(seq)
        seq.preempted += 1
        self.waiting.insert(0, seq)

    def _leave(self, seq: Sequence) -> None:
        # The slot may hold one more token, of a step that was launched before the sequence ended.
        self.engine.publish(seq.slot, seq.ids[: seq.num_computed_tokens], seq.salt)
        self.engine.rewind(seq.slot, 0)
        self._free.append(seq.slot)
        seq.slot, seq.num_computed_tokens, seq.num_replayed_tokens, seq.on_device = -1, 0, 0, False


def check(
    request: GenerateRequest,
    waiting: int,
    limits: SchedulerLimits,
    block: int,
    have: int,
    queued: abc.Iterable[str] = (),
) -> None:
    """Raises RequestError if the queue is full, or if the request does not fit `have` blocks of the cache.

    queued: clients of the waiting requests. A client with less than its part of the queue may still come
    when others have filled it.
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


def load(batch: Batch) -> Load:
    """What a step computes."""
    return total(loads_of(batch))


def loads_of(batch: Batch) -> list[Load]:
    """What each sequence of a step computes."""
    return [
        Load(1, 0, seq.num_computed_tokens) if entry.decodes else _load_of(seq, entry)
        for seq, entry in batch.items()
    ]


def _load_of(seq: Sequence, entry: BatchEntry) -> Load:
    decoded, replayed = int(seq.decoding), seq.num_replayed_tokens
    prompt = entry.num_tokens - decoded - replayed
    return Load(decoded, prompt, seq.num_computed_tokens, replayed + len(entry.draft_tokens))


def total(loads: abc.Sequence[Load]) -> Load:
    """What they compute together."""
    return Load(*map(sum, zip(*loads, strict=True))) if loads else Load(0, 0, 0)
