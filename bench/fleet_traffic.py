"""Traffic for simulated fleets, in the shapes of published traces.

Each number names its source:
- AZURE 2023: Azure LLM inference traces of November 2023, code (8,819 requests in 3,436 s) and conversation
  (19,366 requests in 3,502 s), published with Patel et al., "Splitwise", ISCA 2024. The quantiles and the
  variances of counts below were computed from the published files.
- AZURE 2024: a week of May 2024, published with Stojkovic et al., "DynamoLLM", HPCA 2025: 16,803,695
  requests of code and 27,303,999 of conversation.
- COPILOT 2026: GitHub Copilot's coding agents, June 2026 (Azure's public data sets, card of the data set):
  3.95 turns a session, 7.83 calls a turn, 631.4e9 prompt and 4.91e9 answer tokens in 9,310,255 calls, that is
  67,800 and 527 a call; 85.7 % of prompt tokens were cached.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from math import exp, log

from simulated_engine import Work

QUANTILES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)


class Lengths:
    """A distribution of lengths by its quantiles, geometric between them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._logs = [log(max(1, t)) for t in tokens]

    def draw(self, draw: random.Random) -> int:
        at = draw.random()
        above = min(bisect(QUANTILES, at), len(QUANTILES) - 1)
        low, high = QUANTILES[above - 1], QUANTILES[above]
        a, b = self._logs[above - 1], self._logs[above]
        return max(1, round(exp(a + (b - a) * (at - low) / (high - low))))


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths and arrivals of one kind of traffic."""

    prompt: Lengths
    answer: Lengths
    burst: float  # a burst brings so many requests on average, geometrically distributed
    wave: float  # coefficient of variation of the rate from minute to minute
    gap: float = 0.05  # mean seconds between the requests of a burst


# AZURE 2023. Rank correlation of prompt and answer: 0.07 and -0.02, so they are drawn apart. Variance by
# mean of the counts in a second: 1.4 and 13.2; in a minute: 16.1 and 164; coefficient of variation by the
# minute: 0.22 and 1.04. A compound of bursts with a mean of m requests, geometric, has 2m - 1 within long
# windows.
CONVERSATION = Shape(
    Lengths((2, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 6179, 14050)),
    Lengths((7, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 954, 1000)),
    burst=1.2,
    wave=0.2,
)
CODE = Shape(
    Lengths((3, 75, 147, 386, 770, 1075, 1469, 1909, 2433, 3192, 5188, 7303, 7436, 7437, 7437)),
    Lengths((6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 251, 825, 1899)),
    burst=7.0,
    wave=1.0,
)


class Digests:
    """Gives digests of new blocks: what is shared is shared by using the same list."""

    def __init__(self) -> None:
        self._next = count(1)

    def new(self, blocks: int) -> list[bytes]:
        return [next(self._next).to_bytes(8, "big") for _ in range(blocks)]


class Traffic:
    """Requests in order of their time. `next_after` gives what follows an answer: nothing, but for agents."""

    def __init__(self, works: Iterator[Work]) -> None:
        self._works = works

    def arrivals(self) -> Iterator[Work]:
        return self._works

    def next_after(self, work: Work, now: float) -> Work | None:
        return None


def arrivals(rate: float, shape: Shape, draw: random.Random) -> Iterator[float]:
    """Times of requests: bursts come as a Poisson process whose rate is drawn anew from a Gamma distribution
    every ten seconds of simulated time.
    """
    start, length, heap, level = 0.0, 10.0, [], 1.0
    while True:
        at = start
        while True:
            at += draw.expovariate(max(1e-9, rate * level / shape.burst))
            if at >= start + length:
                break
            time = at
            heap.append(time)
            while draw.random() < 1 - 1 / shape.burst:
                time += draw.expovariate(1 / shape.gap)
                heap.append(time)
        heap.sort()
        ready = bisect(heap, start + length)
        yield from heap[:ready]
        del heap[:ready]
        start += length
        level = draw.gammavariate(1 / shape.wave**2, shape.wave**2) if shape.wave else 1.0


def plain(shape: Shape, rate: float, requests: int, block: int, seed: int, user: str = "") -> Traffic:
    """Requests that share nothing."""
    draw, digests = random.Random(seed), Digests()

    def works() -> Iterator[Work]:
        for number, at in zip(range(requests), arrivals(rate, shape, draw), strict=False):
            prompt, answer = shape.prompt.draw(draw), shape.answer.draw(draw)
            yield Work(number, at, prompt, answer, digests.new((prompt + answer) // block), user=user)

    return Traffic(works())


def steps(shape: Shape, rates: Sequence[tuple[float, float]], block: int, seed: int) -> Traffic:
    """Requests that share nothing, at rates that change: each (seconds, requests a second)."""
    draw, digests, numbers = random.Random(seed), Digests(), count()

    def works() -> Iterator[Work]:
        start = 0.0
        for seconds, rate in rates:
            for at in arrivals(rate, shape, draw):
                if at >= seconds:
                    break
                prompt, answer = shape.prompt.draw(draw), shape.answer.draw(draw)
                blocks = digests.new((prompt + answer) // block)
                yield Work(next(numbers), start + at, prompt, answer, blocks)
            start += seconds

    return Traffic(works())


def hot(
    shape: Shape, rate: float, requests: int, block: int, seed: int, prefixes: int = 200, zipf: float = 1.1
) -> Traffic:
    """Requests behind system prompts of 512 to 4,096 tokens, whose popularity falls as 1 / rank ** zipf."""
    draw, digests = random.Random(seed), Digests()
    weights = list(accumulate(1 / (rank + 1) ** zipf for rank in range(prefixes)))
    systems = [digests.new(draw.randint(512, 4096) // block) for _ in range(prefixes)]

    def works() -> Iterator[Work]:
        for number, at in zip(range(requests), arrivals(rate, shape, draw), strict=False):
            rank = bisect(weights, draw.random() * weights[-1])
            system = systems[rank]
            prompt, answer = len(system) * block + shape.prompt.draw(draw), shape.answer.draw(draw)
            own = digests.new((prompt + answer) // block - len(system))
            yield Work(number, at, prompt, answer, system + own, user=f"system {rank}")

    return Traffic(works())


@dataclass(slots=True)
class _Session:
    left: int  # calls of the turn
    turns: int  # turns that follow
    tokens: int  # of the conversation so far
    draw: random.Random  # of its own, so that a session asks the same whatever answers it
    digests: list[bytes] = field(default_factory=list)


class Agents:
    """Sessions of coding agents: each call's prompt is the call before, its answer, and what a tool or the
    user added. Calls of a turn follow each other after a tool's time, turns after the user's.

    COPILOT 2026 for turns, calls and answers. Prompts have 39,000 tokens a call on average, where the trace
    has 67,800; tools take 4 s and users 30 s on average, which the card does not say. A session starts with
    one of `kinds` system prompts.
    """

    TOOL, USER = 4.0, 30.0

    def __init__(self, rate: float, sessions: int, block: int, seed: int, kinds: int = 8) -> None:
        """rate: sessions that start per second."""
        self._draw, self._digests, self._block, self._seed = random.Random(seed), Digests(), block, seed
        self._rate, self._sessions, self._numbers = rate, sessions, count()
        self._systems = [self._digests.new(4096 // block) for _ in range(kinds)]
        self._open: dict[int, _Session] = {}

    def arrivals(self) -> Iterator[Work]:
        at = 0.0
        for number in range(self._sessions):
            at += self._draw.expovariate(self._rate)
            draw = random.Random(f"{self._seed} {number}")
            system = draw.choice(self._systems)
            calls, turns = _geometric(7.83, draw), _geometric(3.95, draw) - 1
            session = _Session(calls, turns, len(system) * self._block, draw, list(system))
            yield self._call(session, at, draw.randint(500, 4000))

    def next_after(self, work: Work, now: float) -> Work | None:
        session = self._open.pop(work.number)
        draw, session.tokens, session.digests = session.draw, work.prompt + work.answer, list(work.digests)
        if session.left > 0:
            added = min(8000, max(1, round(draw.lognormvariate(log(200), 1.0))))
            return self._call(session, now + draw.expovariate(1 / self.TOOL), added)
        if session.turns > 0:
            session.turns -= 1
            session.left = _geometric(7.83, draw)
            added = max(1, round(draw.expovariate(1 / 300)))
            return self._call(session, now + draw.expovariate(1 / self.USER), added)
        return None

    def _call(self, session: _Session, at: float, added: int) -> Work:
        session.left -= 1
        answer = min(8000, max(8, round(session.draw.lognormvariate(log(330), 0.97))))  # mean 527
        prompt = session.tokens + added
        new = (prompt + answer) // self._block - len(session.digests)
        digests = session.digests + self._digests.new(new)
        work = Work(next(self._numbers), at, prompt, answer, digests, user="agent")
        self._open[work.number] = session
        return work


def _geometric(mean: float, draw: random.Random) -> int:
    drawn = 1
    while draw.random() > 1 / mean:
        drawn += 1
    return drawn
