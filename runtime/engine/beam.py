"""Beam search (Lowerre, 1976): each step extends the kept continuations and keeps the most likely ones.

Each beam has a slot; when a beam continues in two ways, the second slot shares its blocks. The slots are
leased for the whole search; between its steps the engine thread serves other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.scheduler.sequence import salted


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """Options of a beam search."""

    width: int  # beams that are kept
    max_tokens: int
    length_penalty: float = 1.0
    stop_ids: frozenset[int] = frozenset()  # tokens that end a beam
    adapter_scales: AdapterScales = ()

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 64 or self.max_tokens < 1:
            raise RequestError(
                f"beam width is {self.width} and max_tokens {self.max_tokens}: the width must lie between "
                "1 and 64, and there must be a token"
            )


@dataclass(frozen=True, slots=True)
class Beam:
    """A finished continuation."""

    ids: tuple[int, ...]
    logprob: float  # sum over its tokens
    score: float  # logprob over length^length_penalty
    finish: str = ""


@dataclass(frozen=True, slots=True)
class ActiveBeam:
    """A beam that is still extended. Its slot holds all of its tokens but the last."""

    slot: int
    ids: tuple[int, ...]
    logprob: float


def log_softmax(logits: Array) -> Array:
    """log_softmax of each row, float64."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def expand(opened: Sequence[ActiveBeam], logprobs: Array, width: int) -> list[tuple[int, int, float]]:
    """The 2 * width most likely continuations as (beam, token, sum of log-probabilities), best first."""
    total = logprobs + np.array([b.logprob for b in opened])[:, None]
    order = np.argsort(-total, axis=None, kind="stable")[: 2 * width]
    return [(int(i) // total.shape[1], int(i) % total.shape[1], float(total.flat[i])) for i in order]


class BeamSearch:
    """One search over leased slots."""

    def __init__(
        self, engine: Engine, prompt: Sequence[int], options: BeamOptions, slots: Sequence[int]
    ) -> None:
        self.engine, self.prompt, self.options, self.slots = engine, list(prompt), options, list(slots)
        self.opened: list[ActiveBeam] = []
        self.closed: list[Beam] = []

    def close(self, ids: tuple[int, ...], logprob: float, finish: str) -> None:
        score = logprob / len(ids) ** self.options.length_penalty
        self.closed.append(Beam(ids, logprob, score, finish))

    def _entry(self, slot: int, ids: Sequence[int]) -> BatchEntry:
        return BatchEntry(slot, ids, adapter_scales=self.options.adapter_scales)

    def begin(self) -> None:
        """Computes the prompt and opens the first beams."""
        slot, engine, n = self.slots[0], self.engine, self.engine.batch
        cached, _ = engine.begin(slot, self.prompt, salted("", self.options.adapter_scales))
        rest = self.prompt[cached:]
        for at in range(0, len(rest) - 1, n):
            engine.step([self._entry(slot, rest[at : min(at + n, len(rest) - 1)])])
        logits = engine.logits([self._entry(slot, rest[-1:])])
        self._choose([ActiveBeam(slot, (), 0.0)], log_softmax(logits))

    def step(self) -> bool:
        """Extends each open beam by one token; False when the search is done."""
        if not self.opened or len(self.opened[0].ids) >= self.options.max_tokens:
            return False
        logits = self.engine.logits([self._entry(b.slot, b.ids[-1:]) for b in self.opened])
        self._choose(self.opened, log_softmax(logits))
        return bool(self.opened) and not self._settled()

    def _settled(self) -> bool:
        """Whether no open beam can still reach the best ones: its log-probability only falls."""
        if len(self.closed) < self.options.width:
            return False
        worst = sorted((b.score for b in self.closed), reverse=True)[self.options.width - 1]
        length = self.options.max_tokens if self.options.length_penalty > 0 else len(self.opened[0].ids)
        best = max(b.logprob for b in self.opened) / float(length) ** self.options.length_penalty
        return bool(best <= worst)

    def _choose(self, beams: Sequence[ActiveBeam], logprobs: Array) -> None:
        """Keeps the best continuations; ended ones close, the others get slots."""
        chosen: list[tuple[ActiveBeam, int, float]] = []
        for rank, (i, token, total) in enumerate(expand(beams, logprobs, self.options.width)):
            if total == -np.inf:
                break
            if token in self.options.stop_ids:
                if rank < self.options.width:
                    self.close((*beams[i].ids, token), total, "stop")
            elif len(chosen) < self.options.width:
                chosen.append((beams[i], token, total))
        self._move(chosen)

    def _move(self, chosen: Sequence[tuple[ActiveBeam, int, float]]) -> None:
        """Each parent's slot goes to its first child; further children fork it into free slots."""
        going = {parent.slot for parent, _, _ in chosen}
        free = [s for s in self.slots if s not in going]
        taken: set[int] = set()
        self.opened = []
        for parent, token, total in chosen:
            slot = parent.slot
            if slot in taken:
                slot = free.pop()
                self.engine.fork(parent.slot, slot, [*self.prompt, *parent.ids])
            taken.add(slot)
            self.opened.append(ActiveBeam(slot, (*parent.ids, token), total))

    def result(self) -> list[Beam]:
        for beam in self.opened:
            self.close(beam.ids, beam.logprob, "length")
        return sorted(self.closed, key=lambda b: -b.score)[: self.options.width]


def beam_search(service: Service, prompt: Sequence[int], options: BeamOptions) -> list[Beam]:
    """The best continuations, best first. Raises RequestError if the engine has fewer slots than beams, or
    the context is too short.
    """
    engine = service.engine
    if options.width > engine.cache.slots:
        raise RequestError(
            f"{options.width} beams need as many slots, there are {engine.cache.slots}: load the model with "
            "more"
        )
    need = len(prompt) + options.max_tokens
    if need > engine.cache.context + 1:
        raise RequestError(
            f"{need} tokens do not fit the context of {engine.cache.context}: shorten the prompt"
        )
    slots = service.acquire_slots(options.width)
    try:
        search = BeamSearch(engine, prompt, options, slots)
        service.ask(search.begin)
        while service.ask(search.step):
            pass
        return search.result()
    finally:
        service.release_slots(slots)
