"""How likely continuations of a prompt are: the log-probability of each token, after all that stands before
it.

What the continuations of a prompt share is computed once, and steps take pieces of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from satchel.runtime.engine.reading import Passage, PassageReader
from satchel.runtime.graph import Array
from satchel.runtime.kv import common
from satchel.runtime.tasks.perplexity import Softmax


@dataclass(frozen=True, slots=True)
class Scored:
    """A continuation: its tokens, their log-probabilities, and whether each was the likeliest one. ids begin
    with the first token that differs from the prompt's: where the first letters changed its last token, with
    that.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: bool

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return sum(self.logprobs)


@dataclass(frozen=True, slots=True)
class Branches:
    """A prompt and its continuations, each with the prompt before it, as token ids: those from `start` on are
    scored.
    """

    start: int
    wholes: tuple[Sequence[int], ...]


@dataclass(slots=True)
class PartialScore:
    """Score of a continuation whose tokens are read in part."""

    logprobs: list[float] = field(default_factory=list)
    greedy: bool = True


def branch(prompt: Sequence[int], wholes: Sequence[Sequence[int]]) -> Branches:
    """Scoring starts where the first of the continuations leaves the prompt, alike for all of them, and never
    at the very first token, which nothing stands before.
    """
    start = max(1, min(common(prompt, ids[:-1]) for ids in wholes))
    return Branches(start, tuple(wholes))


def logprobs(logits: Array, targets: Sequence[int]) -> npt.NDArray[np.float64]:
    """Log-probability of a token for each row of logits (n, V)."""
    return -Softmax.of(logits).nll(np.asarray(targets, np.int32))


def score(reader: PassageReader, asked: Sequence[Branches]) -> list[list[Scored]]:
    """Every continuation of every prompt, in order. reader: of "logits"."""
    passages: list[Passage] = []
    targets: list[Sequence[int]] = []
    for branches in asked:
        leader = len(passages)
        for ids in branches.wholes:
            leader_before = leader if len(passages) > leader and branches.start > 1 else None
            passages.append(
                Passage(ids[:-1], branches.start - 1, shared=True, waits_for_prefix=leader_before)
            )
            targets.append(ids)
    found = [PartialScore() for _ in passages]
    for rows in reader.read(passages):
        next_ids = targets[rows.number][rows.first + 1 : rows.first + 1 + len(rows.values)]
        one = found[rows.number]
        one.logprobs += logprobs(rows.values, next_ids).tolist()
        one.greedy &= bool(np.array_equal(rows.values.argmax(-1), next_ids))
    results = iter(zip(targets, found, strict=True))
    return [
        [
            Scored(tuple(ids[b.start :]), tuple(one.logprobs), one.greedy)
            for ids, one in (next(results) for _ in b.wholes)
        ]
        for b in asked
    ]
