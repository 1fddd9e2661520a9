"""Chooses the member of a fleet for each request: the one where the request adds the fewest seconds to all
requests together, its own among them.

Invariant: the choice is a function of its arguments and of earlier choices; nothing here reads a clock, sleeps
or does I/O, so that a simulation and a server run the same code.

Seconds come from each member's own model of its steps (runtime/scheduler/steptime.py): a + b * decoded rows
+ c * prompt tokens + d * context tokens read. There are no thresholds: a member that has computed a hot prefix
is left for another as soon as waiting for it costs more than computing the prefix again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import NamedTuple, Protocol

NEAR = 1e-9  # costs within this share of the least are equal: the one with more cached tokens is taken


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
    cached: Callable[
        [Sequence[bytes]], int
    ]  # leading blocks of a prompt, given their digests, that are in its cache
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


class Policy(Protocol):
    """How members are chosen. `views` is not empty."""

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route: ...


def predict(name: str, ask: Ask, view: View) -> Route:
    """What becomes of a request at one member."""
    a, b, c, d = view.step
    running, waiting, answer = view.running, view.waiting, max(1.0, ask.answer)
    remaining = max(1.0, view.remaining)
    # The last token of a prompt is always computed: its logits are needed.
    cached = min(view.cached(ask.digests) * view.block, max(0, ask.prompt - 1))
    own = ask.prompt - cached
    ahead = view.queued + own
    beside = a + b * running + d * view.read  # a step without prompt tokens
    first = ahead * c + ceil(ahead / view.chunk) * beside
    # Where room or a slot is lacking, it waits until enough of those that decode have ended, evenly over their
    # remaining tokens.
    wait = 0.0
    lacking = ahead + answer - view.free
    if lacking > 0:
        wait = lacking / max(1.0, view.read)
    if view.slots and running + waiting >= view.slots:
        wait = max(wait, (running + waiting + 1 - view.slots) / max(1, running))
    first += min(wait, 1.0 + waiting) * remaining * beside
    others = running + waiting
    context = ask.prompt + answer / 2
    step = beside + b * (1 + waiting) + d * (view.queued + context)
    alive = running * remaining / (remaining + view.queued / view.chunk) + waiting
    together = answer * remaining / (answer + remaining)
    delay = alive * own * c + others * together * (b + d * context)
    return Route(name, first + (answer - 1) * step + delay, first, cached)


class LeastTime:
    """Takes the member with the least added seconds; among near equals the one with most cached tokens, then
    the one that was chosen longest ago.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[str, int] = {}

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        routes = [predict(name, ask, view) for name, view in views.items()]
        least = min(route.seconds for route in routes)
        near = [route for route in routes if route.seconds <= least * (1 + NEAR)]
        route = min(near, key=lambda route: (-route.cached, self._last.get(route.member, 0)))
        self._turn += 1
        self._last = {name: self._last.get(name, 0) for name in views}
        self._last[route.member] = self._turn
        return route


class RoundRobin:
    """Takes members in turn: what LeastTime is compared with."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        names = list(views)
        name = names[self._next % len(names)]
        self._next += 1
        return predict(name, ask, views[name])
