"""Chooses the member of a fleet for each request: the one where the request adds the fewest seconds to all
requests together, its own among them.

Invariant: the choice is a function of its arguments and of earlier choices; nothing here reads a clock,
sleeps or does I/O, so that a simulation and a server run the same code.

Seconds come from each member's own model of its steps (runtime/scheduler/steptime.py): a + b * decoded rows
+ c * prompt tokens + d * context tokens read. There are no thresholds: a member that has computed a hot
prefix is left for another as soon as waiting for it costs more than computing the prefix again.
docs/fleet-simulation.md derives the formula, names its sources and compares it with an oracle.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple, Protocol

# A second before the first token counts like so many seconds afterwards. At 1 the sum of all times is
# least; at 4 it is at most some percent longer, and first tokens, which are what users wait for, come much
# earlier.
FIRST = 4.0
# Members that are compared for a request: beyond so many, those that hold its prefix and some drawn at
# random.
MOST = 64
NEW = 512  # tokens of the prompt whose wait is reported
# How likely it is that those who have all slots of a member end together, as a batch of equal answers does,
# and not evenly. Without it, a request that waits for one of 64 slots costs a step or two, which is less than
# a few prompt tokens elsewhere; in a batch it waits for whole answers.
TOGETHER = 0.1


class View(NamedTuple):
    """What is known of a member: its last report, and what was routed to it since."""

    waiting: int  # requests whose prompts are not computed yet
    queued: int  # prompt tokens of these still to compute
    running: int  # requests that decode
    read: int  # context tokens that these attend to in a step
    remaining: float  # mean of the tokens that these are predicted to decode still
    free: int  # tokens of KV cache that are free or can be evicted
    block: int  # tokens in a block of KV cache
    chunk: int  # prompt tokens that a step computes at most
    step: tuple[float, float, float, float]  # a, b, c, d: seconds of a step, see above
    # Leading blocks of a prompt, given their digests, that are in its cache.
    cached: Callable[[Sequence[bytes]], int]
    slots: int = 0  # requests that may run at once; 0: as many as there is room for


class Ask(NamedTuple):
    """What routing needs to know of a request."""

    prompt: int  # tokens
    answer: float  # tokens, predicted
    digests: Sequence[bytes]  # of its prompt's full blocks, see runtime/fleet/known.py


class Route(NamedTuple):
    member: str
    seconds: float  # that the request adds to all requests, predicted
    first: float  # seconds until its first token, predicted
    cached: int  # prompt tokens that the member need not compute
    prefill: str = ""  # the member that computes the prompt, if it is another, see runtime/fleet/pools.py

    @property
    def cost(self) -> float:
        """What is compared: the added seconds, those before the first token weighted."""
        return self.seconds + (FIRST - 1) * self.first


class RoutingPolicy(Protocol):
    """How members are chosen. `views` is not empty."""

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route: ...


def predict(name: str, ask: Ask, view: View) -> Route:
    """What becomes of a request at one member."""
    _, b, c, d = view.step
    running, waiting, answer = view.running, view.waiting, max(1.0, ask.answer)
    # Lengths of answers vary as much as an exponential's do, which has no memory: one that has decoded long
    # is as far from its end as one that begins.
    remaining = max(answer, view.remaining)
    # The last token of a prompt is always computed: its logits are needed.
    cached = min(view.cached(ask.digests) * view.block, max(0, ask.prompt - 1))
    own = ask.prompt - cached
    ahead = view.queued + own
    beside = _decoding(view, view.running, view.read)
    first = ahead * c + ceil(ahead / view.chunk) * beside
    first += _room(view, ahead + answer, remaining, TOGETHER)
    # Its own decoding, beside those that decode and those that wait before it.
    context = ask.prompt + answer / 2
    step = beside + b * (1 + waiting) + d * (view.queued + context)
    decoding = (answer - 1) * step
    others = running + waiting
    # While its prompt is computed, all wait that decode by then: those that do now and have not ended, and
    # those before it in the queue.
    alive = running * remaining / (remaining + view.queued / view.chunk) + waiting
    # Afterwards it adds a row, and the reading of its context, to the steps of each other for as long as both
    # decode: the mean of the shorter of two exponential times.
    together = answer * remaining / (answer + remaining)
    # Those that come while its prompt and those before it are computed wait behind it: by Little's law they
    # come at the rate at which those here pass through.
    later = (others + 1) / (first + decoding) * ahead * c if first + decoding > 0 else 0.0
    delay = (alive + later) * own * c + others * together * (b + d * context)
    return Route(name, first + decoding + delay, first, cached)


def wait(view: View) -> float:
    """Predicted seconds before the first step of a new prompt of 512 tokens."""
    turns = ceil(view.queued / view.chunk) * _decoding(view, view.running, view.read)
    return view.queued * view.step[2] + turns + _room(view, view.queued + NEW, max(1.0, view.remaining))


def _decoding(view: View, rows: int, read: int) -> float:
    """Seconds of a step of so many decoded rows, which read so many context tokens, without prompt tokens."""
    a, b, _, d = view.step
    return a + b * rows + d * read


def _room(view: View, tokens: float, remaining: float, together: float = 0.0) -> float:
    """Seconds until a request finds room for so many tokens, and a slot. Those that have them end evenly over
    their remaining tokens; those that wait come first. together: how likely it is that those with slots end
    all at once.
    """
    seconds, there = 0.0, view.running + view.waiting
    if tokens > view.free:
        part = min((tokens - view.free) / max(1, view.read), 1.0 + view.waiting)
        seconds = part * remaining * _decoding(view, view.running, view.read)
    if view.slots and there >= view.slots:
        part = together + (1 - together) * (there + 1 - view.slots) / view.slots
        full = _decoding(view, view.slots, view.read + view.queued)
        seconds = max(seconds, part * remaining * full)
    return seconds


class LeastTime:
    """Takes the member with the least cost; of equal ones that with most cached tokens, then the one that was
    chosen longest ago.

    most: members that are compared; in a larger fleet, members with the prompt's prefix (at most half of
    these) and others drawn at random. holders: members with the longest prefix of a prompt that any member
    has, given its digests; without it, a large fleet's prefixes are found only by chance.
    """

    def __init__(
        self,
        most: int = MOST,
        holders: Callable[[Sequence[bytes]], Iterable[str]] | None = None,
        seed: int = 0,
    ) -> None:
        self._most, self._holders, self._draw = most, holders, random.Random(seed)
        self._turn = 0
        self._last: dict[str, int] = {}

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        last = self._last
        names = views if len(views) <= self._most else self._some(ask, views)
        routes = [predict(name, ask, views[name]) for name in names]
        route = min(routes, key=lambda route: (route.cost, -route.cached, last.get(route.member, 0)))
        self._turn += 1
        last[route.member] = self._turn
        if len(last) > 2 * len(views):  # members have left
            self._last = {name: last[name] for name in views if name in last}
        return route

    def _some(self, ask: Ask, views: Mapping[str, View]) -> Iterable[str]:
        names = list(views)
        holding = [n for n in self._holders(ask.digests) if n in views] if self._holders is not None else []
        if len(holding) > self._most // 2:
            holding = self._draw.sample(holding, self._most // 2)
        return dict.fromkeys([*holding, *self._draw.sample(names, self._most - len(holding))])


class RoundRobin:
    """Takes members in turn: what LeastTime is compared with."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        names = list(views)
        name = names[self._next % len(names)]
        self._next += 1
        return predict(name, ask, views[name])
