"""An engine under a simulated clock: continuous batching, chunked prompts, a KV cache of blocks with a prefix
cache, and preemption, with the seconds of a step from a linear model.

Invariant: between two events (a sequence ends, a prompt is computed, memory runs out, a request comes) all
steps of an engine compute the same number of rows and prompt tokens, so that their seconds are a sum in
closed form. An engine therefore costs a few operations per request, not per step.

A step computes one token of every sequence that decodes and up to `chunk` prompt tokens, first come first
served, and takes a + b * decoded rows + c * prompt tokens + d * context tokens read, as
runtime/scheduler/steptime.py models it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple, Protocol


class EngineSpec(NamedTuple):
    """What an engine is. The defaults are an 8B model (Q4_K_M) on an H200, fitted to measured speeds: 528
    t/s at batch 1, 11,841 t/s at batch 64, prompts at 35,840 t/s; d is its f16 KV cache (131 kB a token) at
    4.03 TB/s.
    """

    step: tuple[float, float, float, float] = (1.8e-3, 5.5e-5, 2.8e-5, 3.3e-8)  # a, b, c, d in seconds
    chunk: int = 512  # prompt tokens of a step
    slots: int = 128  # sequences that may run at once
    tokens: int = 524_288  # of KV cache
    block: int = 64  # tokens in a block of KV cache

    def slower(self, times: float) -> EngineSpec:
        """The same engine with steps that take `times` as long."""
        a, b, c, d = self.step
        return self._replace(step=(a * times, b * times, c * times, d * times))


@dataclass(slots=True, eq=False)
class Work:
    """A request, and what became of it."""

    number: int
    arrived: float  # seconds
    prompt: int  # tokens
    answer: int  # tokens: the true length
    digests: Sequence[bytes]  # of the full blocks of the prompt and its answer
    predicted: float = 0.0  # tokens of the answer, as the router predicts them
    user: str = ""
    first: float = -1.0  # time of the first token; -1: none yet
    ended: float = -1.0  # time of the last token
    computed: int = 0  # prompt tokens computed, in all attempts
    lost: int = 0  # times that its engine was lost


class Prompt(NamedTuple):
    """A request whose prompt is not computed."""

    work: Work
    generated: int  # tokens of its answer that it had before; they are computed again like a prompt
    lacking: int  # tokens that were not cached when it came

    @property
    def tokens(self) -> int:
        return self.work.prompt + self.generated


class Memory(Protocol):
    """The KV cache as an engine uses it. Numbers are tokens."""

    def cached(self, digests: Sequence[bytes], most: int) -> int: ...

    def begin(self, prompt: Prompt) -> int | None:
        """Takes room for a prompt; gives its cached tokens, or None if there is no room."""

    def publish(self, prompt: Prompt) -> None:
        """The prompt is computed: its full blocks can be found."""

    def grow(self, tokens: int) -> None: ...

    def end(self, work: Work, generated: int, published: bool) -> None: ...

    def free(self) -> int: ...

    def counted(self) -> Memory:
        """A copy for a forecast."""


class BlockCache:
    """Blocks of KV cache: private ones, and ones that are found by their digest. The least recently used
    blocks without a reader are evicted first, and later blocks of a chain before earlier ones.

    Invariant: if a block is present, so are all before it in its chain. told: called with a digest and
    whether it came or went.
    """

    def __init__(self, spec: EngineSpec, told: Callable[[bytes, bool], None] | None = None) -> None:
        self.spec, self._told = spec, told
        self._readers: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # without a reader, the oldest first
        self._own = 0  # tokens that are not shared
        self._running = 0  # each has a block that is not full
        self._held: dict[int, int] = {}  # blocks that a request reads, by its number

    def cached(self, digests: Sequence[bytes], most: int) -> int:
        """Leading blocks, at most `most`, that are present."""
        low, high = 0, min(most, len(digests))
        readers = self._readers
        while low < high:
            mid = (low + high + 1) // 2
            if digests[mid - 1] in readers:
                low = mid
            else:
                high = mid - 1
        return low

    def find(self, digests: Sequence[bytes]) -> int:
        """Leading blocks that are present."""
        return self.cached(digests, len(digests))

    def present(self) -> Iterable[bytes]:
        return self._readers.keys()

    def free(self) -> int:
        held = len(self._readers) - len(self._idle) + self._running
        return self.spec.tokens - held * self.spec.block - self._own

    def begin(self, prompt: Prompt) -> int | None:
        work, tokens, block = prompt.work, prompt.tokens, self.spec.block
        blocks = self.cached(work.digests, (tokens - 1) // block)
        idle = sum(1 for d in work.digests[:blocks] if not self._readers[d])
        # A block to spare for each that decodes, so that one that was preempted does not come back at once.
        if self.free() - idle * block < tokens - blocks * block + (2 + self._running) * block:
            return None
        work.computed += tokens - blocks * block
        self._read(work.digests[:blocks])
        self._held[work.number] = blocks
        self._own += tokens - blocks * block
        self._running += 1
        self._evict()
        return blocks * block

    def publish(self, prompt: Prompt) -> None:
        self._share(prompt.work, prompt.tokens // self.spec.block)

    def grow(self, tokens: int) -> None:
        self._own += tokens
        self._evict()

    def end(self, work: Work, generated: int, published: bool) -> None:
        """The request leaves: all that it computed can be found, but has no reader."""
        block, tokens = self.spec.block, work.prompt + generated
        if published:
            self._share(work, tokens // block)
        held = self._held.pop(work.number)
        self._own -= tokens - held * block
        self._running -= 1
        for digest in reversed(work.digests[:held]):
            left = self._readers[digest] = self._readers[digest] - 1
            if not left:
                self._idle[digest] = None
        self._evict()

    def put(self, digests: Sequence[bytes]) -> None:
        """Blocks come from another engine."""
        new = [d for d in digests if d not in self._readers]
        if len(new) * self.spec.block <= self.free():
            self._read(digests)
            for digest in reversed(digests):
                self._readers[digest] -= 1
                if not self._readers[digest]:
                    self._idle[digest] = None
            self._evict()

    def counted(self) -> Memory:
        return CountedMemory(self.spec, self.free(), self._running, self)

    def shared(self, digests: Sequence[bytes]) -> int:
        """Leading blocks with two readers or more. A block has no more readers than those before it."""
        low, high = 0, len(digests)
        while low < high:
            mid = (low + high + 1) // 2
            if self._readers.get(digests[mid - 1], 0) > 1:
                low = mid
            else:
                high = mid - 1
        return low

    def _share(self, work: Work, blocks: int) -> None:
        """Makes the first `blocks` blocks of a request ones that can be found."""
        held = self._held[work.number]
        if blocks > held:
            self._own -= (blocks - held) * self.spec.block
            self._read(work.digests[held:blocks])
            self._held[work.number] = blocks

    def _read(self, digests: Iterable[bytes]) -> None:
        readers, idle, told = self._readers, self._idle, self._told
        for digest in digests:
            count = readers.get(digest)
            readers[digest] = (count or 0) + 1
            if count == 0:
                del idle[digest]
            elif count is None and told is not None:
                told(digest, True)

    def _evict(self) -> None:
        over = -(self.free() - len(self._idle) * self.spec.block) // self.spec.block
        for _ in range(min(over, len(self._idle))):
            digest, _ = self._idle.popitem(last=False)
            del self._readers[digest]
            if self._told is not None:
                self._told(digest, False)


class CountedMemory:
    """Memory for a forecast: it counts tokens, and looks into a cache that it does not change. What one
    request publishes in the forecast, later ones find.
    """

    def __init__(self, spec: EngineSpec, free: int, running: int, cache: BlockCache) -> None:
        self.spec, self._free, self._running, self._cache = spec, free, running, cache
        self._published: list[Sequence[bytes]] = []
        self._found: dict[int, int] = {}  # blocks that a request found, by its number

    def cached(self, digests: Sequence[bytes], most: int) -> int:
        found = self._cache.cached(digests, most)
        return max([found, *(common(digests, other, most) for other in self._published)])

    def free(self) -> int:
        return self._free

    def begin(self, prompt: Prompt) -> int | None:
        block = self.spec.block
        found = self.cached(prompt.work.digests, (prompt.tokens - 1) // block)
        if self._free < prompt.tokens - found * block + (2 + self._running) * block:
            return None
        self._free -= prompt.tokens - found * block + block
        self._running += 1
        self._found[prompt.work.number] = found
        return found * block

    def publish(self, prompt: Prompt) -> None:
        self._published.append(prompt.work.digests[: prompt.tokens // self.spec.block])

    def grow(self, tokens: int) -> None:
        self._free -= tokens

    def end(self, work: Work, generated: int, published: bool) -> None:
        """Gives back all but the blocks that it found, or that others read."""
        shared = self._found.get(work.number)
        if shared is None:
            shared = self._cache.shared(work.digests)
        self._free += max(0, work.prompt + generated - shared * self.spec.block) + self.spec.block
        self._running -= 1

    def counted(self) -> Memory:
        return CountedMemory(self.spec, self._free, self._running, self._cache)


def common(a: Sequence[bytes], b: Sequence[bytes], most: int) -> int:
    """Length of the common prefix of two chains, at most `most`: equal at one place, they are equal
    before."""
    low, high = 0, min(len(a), len(b), most)
    while low < high:
        mid = (low + high + 1) // 2
        if a[mid - 1] == b[mid - 1]:
            low = mid
        else:
            high = mid - 1
    return low


class Report(NamedTuple):
    """The state of an engine at a time, for a router's view."""

    waiting: int
    queued: int
    running: int
    read: int
    remaining: float
    free: int


Told = Callable[[Work, float, bool], None]  # a request's first (False) or last (True) token, and its time


class SimulatedEngine:
    """told: called with each first and last token. `ends` is when the present run of equal steps ends."""

    def __init__(self, spec: EngineSpec, memory: Memory, now: float, told: Told) -> None:
        self.spec, self.memory, self.told = spec, memory, told
        self.time = now  # when the present run began
        self.ends = inf
        self.busy = 0.0  # seconds of steps
        self.preempted = 0
        self.waiting: deque[Prompt] = deque()
        self.queued = 0  # prompt tokens to compute, of all that wait
        self._begun: deque[int] = deque()  # tokens left of the first that wait: those that have room
        # Those that decode: the step after which they end, the step at which their answer's first token came,
        # a number that settles ties.
        self._running: list[tuple[int, int, int, Work]] = []
        self._read = 0  # context tokens of those that decode
        self._predicted = 0.0  # tokens: sums over those that decode
        self._generated = 0
        self._serial = 0
        self._steps = 0
        self._count = (
            0  # steps of the present run, rows of each, prompt tokens of each, context read at first
        )
        self._rows = self._prompt = self._context = 0

    # ------------------------------------------------------------------ what others ask

    def report(self, now: float) -> Report:
        """The state after the steps that have ended at `now`."""
        done = self._done(now)
        rows = len(self._running)
        generated = self._generated + done * rows
        remaining = max(1.0, (self._predicted - generated) / rows) if rows else 0.0
        queued = self.queued - min(self.queued, done * self._prompt)
        free = self.memory.free() - done * rows
        return Report(len(self.waiting), queued, rows, self._read + done * rows, remaining, free)

    def works(self) -> list[tuple[Work, int]]:
        """All requests here with the tokens that they have generated."""
        running = [(w, w.answer - (end - self._steps)) for end, _, _, w in sorted(self._running)]
        return running + [(p.work, p.generated) for p in self.waiting]

    def copy(self, told: Told) -> SimulatedEngine:
        """A copy for a forecast, which knows all."""
        other = SimulatedEngine(self.spec, self.memory.counted(), self.time, told)
        other.waiting, other._begun = self.waiting.copy(), self._begun.copy()
        other._running = self._running.copy()
        other.queued, other._read, other._serial, other._steps = (
            self.queued,
            self._read,
            self._serial,
            self._steps,
        )
        other._count, other._rows, other._prompt, other._context, other.ends = (
            self._count,
            self._rows,
            self._prompt,
            self._context,
            self.ends,
        )
        return other

    # ------------------------------------------------------------------ what happens

    def add(self, work: Work, now: float, generated: int = 0) -> None:
        """A request comes: it joins after the step under way."""
        self._cut(now)
        prompt = self._prompt_of(work, generated)
        self.waiting.append(prompt)
        self.queued += prompt.lacking
        self._plan()

    def _prompt_of(self, work: Work, generated: int) -> Prompt:
        tokens, block = work.prompt + generated, self.spec.block
        return Prompt(
            work, generated, tokens - self.memory.cached(work.digests, (tokens - 1) // block) * block
        )

    def take_waiting(self, now: float) -> list[Prompt]:
        """Gives up all requests whose prompts are not computed, and goes on with the others."""
        self._cut(now)
        given = list(self.waiting)
        for prompt in given[: len(self._begun)]:
            self.memory.end(prompt.work, prompt.generated, False)
        self.waiting.clear()
        self._begun.clear()
        self.queued = 0
        self._plan()
        return given

    def stop(self, now: float) -> None:
        """The engine is lost: it computes no step that has not ended."""
        self._apply(self._done(now))
        self._count, self.ends = 0, inf

    def advance(self) -> None:
        """Completes the present run of steps."""
        self._apply(self._count)
        self._plan()

    # ------------------------------------------------------------------ runs of equal steps

    def _seconds(self, steps: int) -> float:
        a, b, c, d = self.spec.step
        each = a + b * self._rows + c * self._prompt + d * self._context
        return steps * each + d * (self._rows + self._prompt) * steps * (steps - 1) / 2

    def _done(self, now: float) -> int:
        """Steps of the present run that have ended at `now`."""
        since = now - self.time
        if since <= 0 or not self._count:
            return 0
        a, b, c, d = self.spec.step
        half = d * (self._rows + self._prompt) / 2
        each = a + b * self._rows + c * self._prompt + d * self._context - half
        steps = (sqrt(each * each + 4 * half * since) - each) / (2 * half) if half else since / each
        return min(self._count, int(steps + 1e-9))

    def _cut(self, now: float) -> None:
        """Ends the present run with the step that is under way at `now`."""
        if not self._count:
            self.time = max(self.time, now)
            return
        done = self._done(now)
        if done < self._count and self.time + self._seconds(done) < now - 1e-12:
            done += 1
        self._apply(done)

    def _apply(self, steps: int) -> None:
        seconds = self._seconds(steps)
        self.time += seconds
        self.busy += seconds
        self._steps += steps
        rows = self._rows
        if steps and rows:
            self._read += steps * rows
            self._generated += steps * rows
            self.memory.grow(steps * rows)
        self._end_those_done()
        if steps and self._prompt:
            self._compute(steps * self._prompt)

    def _end_those_done(self) -> None:
        while self._running and self._running[0][0] <= self._steps:
            _, _, _, work = heapq.heappop(self._running)
            self._leave(work, work.answer)
            self.memory.end(work, work.answer, True)
            self.told(work, self.time, True)

    def _leave(self, work: Work, generated: int) -> None:
        self._read -= work.prompt + generated
        self._predicted -= work.predicted
        self._generated -= generated

    def _compute(self, tokens: int) -> None:
        """Prompt tokens were computed, of those that wait in order."""
        self.queued -= tokens
        while tokens:
            part = min(tokens, self._begun[0])
            tokens -= part
            self._begun[0] -= part
            if not self._begun[0]:
                self._start()

    def _start(self) -> None:
        """The first prompt is computed, which gives a token."""
        self._begun.popleft()
        prompt = self.waiting.popleft()
        work, generated = prompt.work, prompt.generated + 1
        self.memory.publish(prompt)
        self.told(work, self.time, False)
        if generated >= work.answer:
            self.memory.end(work, generated - 1, True)
            self.told(work, self.time, True)
            return
        self.memory.grow(1)
        self._serial += 1
        heapq.heappush(
            self._running, (self._steps + work.answer - generated, self._steps, self._serial, work)
        )
        self._read += work.prompt + generated
        self._predicted += work.predicted
        self._generated += generated

    def _begin(self) -> None:
        """Gives room to those that wait, as far as a step computes them and there is room."""
        budget = self.spec.chunk - sum(self._begun)
        while (
            budget > 0
            and len(self._begun) < len(self.waiting)
            and len(self._running) + len(self._begun) < self.spec.slots
        ):
            prompt = self.waiting[len(self._begun)]
            found = self.memory.begin(prompt)
            if found is None:
                if not self._running and not self._begun:
                    raise ValueError(
                        f"a prompt of {prompt.tokens} tokens does not fit into {self.spec.tokens} of KV cache"
                    )
                return
            left = prompt.tokens - found
            self.queued += left - prompt.lacking  # others may have computed a part of it since it came
            self._begun.append(left)
            budget -= left

    def _plan(self) -> None:
        """Begins the next run of equal steps."""
        self._begin()
        rows = len(self._running)
        first = self._begun[0] if self._begun else 0
        if first >= self.spec.chunk:
            count, prompt = first // self.spec.chunk, self.spec.chunk
        elif first:
            count, prompt = 1, min(self.spec.chunk, sum(self._begun))
        else:
            count, prompt = (self._running[0][0] - self._steps if rows else 0), 0
        if rows:
            room = self.memory.free() // rows
            if room < 1:
                self._preempt()
                self._plan()
                return
            count = min(count, self._running[0][0] - self._steps, room)
        self._count, self._rows, self._prompt = count, rows, prompt
        self._context = self._read
        if first:
            head = self.waiting[0]
            self._context += head.tokens - first
        self.ends = self.time + self._seconds(count) if count else inf

    def _preempt(self) -> None:
        """The sequence that came last gives its room to the others and waits again."""
        if len(self._running) == 1 and not self._begun:
            raise ValueError(f"one sequence does not fit into {self.spec.tokens} tokens of KV cache")
        if self._begun:  # a prompt that is being computed came later than all that decode
            prompt = self.waiting[len(self._begun) - 1]
            left = self._begun.pop()
            self.memory.end(prompt.work, prompt.generated, False)
            self.queued += prompt.lacking - left
        else:
            last = max(self._running, key=lambda entry: entry[1:3])
            self._running.remove(last)
            heapq.heapify(self._running)
            end, _, _, work = last
            generated = work.answer - (end - self._steps)
            self._leave(work, generated)
            self.memory.end(work, generated, True)
            prompt = self._prompt_of(work, generated)
            self.waiting.appendleft(prompt)
            self.queued += prompt.lacking
        self.preempted += 1
