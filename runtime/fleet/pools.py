"""Chooses per request whether one member computes the prompt and the answer, or one computes the prompt and
another the answer, with the keys and values moved between them.

Invariant: both ways are judged in the same seconds (runtime/fleet/router.py); where moving does not save a
tenth, nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from satchel.runtime.fleet.router import Ask, LeastTime, Route, RoutingPolicy, View, predict

Role = Literal["prefill", "decode", "both"]
GAIN = 0.1  # share of the cost that moving must save: predictions are no better than that


class KVLink(NamedTuple):
    """How keys and values go from one member to another."""

    token: float  # bytes of keys and values of a token
    rate: float  # bytes a second
    start: float = 1e-3  # seconds before the first byte

    def seconds(self, tokens: float) -> float:
        return tokens * self.token / self.rate

    def late(self, tokens: int, chunk: int, since: float) -> float:
        """Seconds from the end of a prompt's computation, which took `since`, until all of it has come: each
        chunk goes while the next is computed.
        """
        return self.start + max(self.seconds(min(chunk, tokens)), self.seconds(tokens) - since)


class PrefillPools:
    """roles: of members by their names; a member that is not named does both. link: may be set anew at any
    time, as moves are measured. inner: chooses among the members that may do a thing.
    """

    def __init__(self, roles: Mapping[str, Role], link: KVLink, inner: RoutingPolicy | None = None) -> None:
        self._roles, self.link = roles, link
        self._inner: RoutingPolicy = inner if inner is not None else LeastTime()

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        """A route whose `prefill` names the member that computes the prompt, where that is another."""
        decoding = self._only(views, "decode")
        here = self._inner.choose(ask, decoding or views)
        prefilling = self._only(views, "prefill")
        if not decoding or not prefilling:
            return here
        split = self.split(ask, prefilling, decoding)
        return split if split is not None and split.cost < (1 - GAIN) * here.cost else here

    def split(self, ask: Ask, prefilling: Mapping[str, View], decoding: Mapping[str, View]) -> Route | None:
        """The best way by two members, or None if there are no two. Keys and values of a chunk go while the
        next is computed, so that only what is not yet sent when the prompt is computed delays the answer.
        """
        found: Route | None = None
        prompt = self._inner.choose(ask._replace(answer=1.0), prefilling)
        chunk = prefilling[prompt.member].chunk
        rest = ask._replace(answer=max(1.0, ask.answer - 1))
        for name, view in decoding.items():
            if name == prompt.member:
                continue
            had = min(view.cached(ask.digests) * view.block, ask.prompt - 1)
            answer = predict(name, rest, view._replace(cached=_all_but_one(ask, view)))
            moved = ask.prompt - had
            seconds = prompt.seconds + self.link.late(moved, chunk, prompt.first) + answer.seconds
            route = Route(name, seconds, prompt.first, prompt.cached, prompt.member)
            if found is None or route.cost < found.cost:
                found = route
        return found

    def _only(self, views: Mapping[str, View], role: Role) -> dict[str, View]:
        return {n: views[n] for n in views if self._roles.get(n, "both") in (role, "both")}


def _all_but_one(ask: Ask, view: View) -> Callable[[Sequence[bytes]], int]:
    """Of a member to which a prompt's keys and values were moved: all that need not be computed."""
    blocks = -(-ask.prompt // view.block)
    return lambda digests: blocks
