"""What the router is compared with: an oracle that knows the state of all engines and the true lengths of
answers, and policies that know less.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import inf

from simulated_engine import BlockCache, EngineSpec, SimulatedEngine, Work
from simulated_fleet import SimulatedFleet

from satchel.runtime.fleet.router import Ask, Route, View, predict


class Oracle:
    """Takes the member where the request adds the least time to all requests that are there, its own among
    them: each placement is simulated to its end on a copy of the engine, with the true lengths of all
    answers. It does not know who comes later. among: beyond so many members, it looks at those that hold
    the longest prefix, at most half of that number, and at others drawn at random.
    """

    def __init__(self, fleet: SimulatedFleet, among: int = 64, seed: int = 0) -> None:
        self._fleet, self._among, self._draw = fleet, among, random.Random(seed)
        self._alone: dict[str, list[float]] = {}  # times at which those at a member end if nobody comes

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        fleet, work = self._fleet, self._fleet.work
        least, best, after = inf, "", list[float]()
        for name in candidates(fleet, ask, self._among, self._draw):
            engine = fleet.open[name].engine
            if name not in self._alone:
                self._alone[name] = ends(engine, fleet.now)
            ended = ends(engine, fleet.now, work, ask.prompt - work.prompt)
            added = sum(t - fleet.now for t in ended) - sum(
                t - fleet.now for t in self._alone[name] if t > fleet.now
            )
            if added < least:
                least, best, after = added, name, ended
        self._alone[best] = after
        return Route(best, least, 0.0, 0)


def candidates(fleet: SimulatedFleet, ask: Ask, among: int, draw: random.Random) -> Sequence[str]:
    names = list(fleet.open)
    if len(names) <= among:
        return names
    holding = sorted(fleet.holding(ask.digests) & fleet.open.keys())
    some = draw.sample(holding, min(len(holding), among // 2))
    return list(dict.fromkeys([*some, *draw.sample(names, among - len(some))]))


def ends(engine: SimulatedEngine, now: float, work: Work | None = None, generated: int = 0) -> list[float]:
    """Times at which the requests of an engine end, with another that comes now and nobody after it."""
    ended: list[float] = []

    def told(_: Work, time: float, last: bool) -> None:
        if last and time > now:
            ended.append(time)

    copy = engine.copy(told)
    if work is not None:
        copy.add(work, now, generated)
    while copy.ends < inf:
        copy.advance()
    return ended


class LeastQueue:
    """Takes the member with the fewest requests."""

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        least = min(views, key=lambda name: views[name].running + views[name].waiting)
        return Route(least, 0.0, 0.0, 0)


class Affinity:
    """Takes the member that a hash of the prompt's first `tokens` tokens names (rendezvous hashing)."""

    def __init__(self, tokens: int = 4096) -> None:
        self._tokens = tokens

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        names = list(views)
        blocks = min(len(ask.digests), max(1, self._tokens // views[names[0]].block))
        key = ask.digests[blocks - 1] if blocks else b""
        return Route(max(names, key=lambda n: blake2b(n.encode() + key, digest_size=8).digest()), 0.0, 0.0, 0)


class LMetric:
    """Takes the member with the least product of prompt tokens to compute and requests: Zhang et al.,
    "LMetric", 2026 (arXiv 2603.15202).
    """

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        least, best = inf, ""
        for name, view in views.items():
            own = ask.prompt - min(view.cached(ask.digests) * view.block, ask.prompt - 1)
            score = (view.queued + own) * (view.running + view.waiting + 1)
            if score < least:
                least, best = score, name
        return Route(best, 0.0, 0.0, 0)


def alone(works: Sequence[tuple[int, int, Sequence[bytes]]], spec: EngineSpec) -> list[tuple[float, float]]:
    """A lower bound for each request: seconds to its first and last token on an engine of its own, whose
    cache has all blocks of the requests before it and never evicts.

    works: prompt, answer and digests, in order of arrival. On a real engine a step computes at least what
    it does here, and a block can only be cached if an earlier request had it: no placement is faster.
    """
    roomy = spec._replace(tokens=1 << 60)
    cache = BlockCache(roomy)
    bounds = []
    for prompt, answer, digests in works:
        times: list[float] = []
        engine = SimulatedEngine(roomy, cache, 0.0, lambda _, time, __, times=times: times.append(time))
        engine.add(Work(0, 0.0, prompt, answer, digests), 0.0)
        while engine.ends < inf:
            engine.advance()
        bounds.append((times[0], times[-1]))
    return bounds


__all__ = ["Affinity", "LMetric", "LeastQueue", "Oracle", "alone", "candidates", "ends", "predict"]
