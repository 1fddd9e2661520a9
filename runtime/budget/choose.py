"""Chooses one format per tensor, with the least total divergence within a limit of bytes.

Method: on the lower convex hull of each tensor's (bytes, divergence), the step that saves most divergence per
byte is taken first (Everett's multipliers in order). The remaining room goes to single changes and to
exchanges between two tensors, until none helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from satchel.errors import RequestError

ROUNDS = 200  # most exchanges between two tensors; each strictly lowers the sum


@dataclass(frozen=True, slots=True)
class FormatOption:
    """A tensor in one format."""

    format: str
    nbytes: int  # in the file
    error: float  # relative squared error
    kld: float  # predicted divergence, nats per token


Options = Mapping[str, Sequence[FormatOption]]
Chosen = dict[str, FormatOption]
Move = tuple[float, int, str, FormatOption]  # change of divergence and of bytes, tensor, new option


@dataclass(frozen=True, slots=True)
class FrontierStep:
    """A step along the frontier: one tensor changes its option."""

    name: str
    option: FormatOption
    nbytes: int  # total after the step
    kld: float  # total after the step


def total_bytes(chosen: Mapping[str, FormatOption]) -> int:
    return sum(option.nbytes for option in chosen.values())


def total_kld(chosen: Mapping[str, FormatOption]) -> float:
    return sum(option.kld for option in chosen.values())


def hull(options: Sequence[FormatOption]) -> list[FormatOption]:
    """The options on the lower convex hull, from the smallest to the best."""
    kept: list[FormatOption] = []
    for option in sorted(options, key=lambda o: (o.nbytes, o.kld)):
        if kept and option.kld >= kept[-1].kld:
            continue
        while len(kept) > 1 and _gain(kept[-2], kept[-1]) <= _gain(kept[-1], option):
            kept.pop()
        kept.append(option)
    return kept


def _gain(a: FormatOption, b: FormatOption) -> float:
    """Divergence saved per additional byte."""
    return (a.kld - b.kld) / (b.nbytes - a.nbytes)


def smallest(options: Options) -> Chosen:
    return {name: min(found, key=lambda o: (o.nbytes, o.kld)) for name, found in options.items()}


def frontier(options: Options) -> list[FrontierStep]:
    """The steps from the smallest file to the best, in the order of divergence saved per byte."""
    start = smallest(options)
    nbytes, kld = total_bytes(start), total_kld(start)
    moves = []
    for name, found in options.items():
        way = hull(found)
        moves += [(_gain(a, b), name, a, b) for a, b in pairwise(way)]
    steps = []
    for _, name, a, b in sorted(moves, key=lambda m: (-m[0], m[1])):
        nbytes, kld = nbytes + b.nbytes - a.nbytes, kld - a.kld + b.kld
        steps.append(FrontierStep(name, b, nbytes, kld))
    return steps


def choose(options: Options, limit: int) -> Chosen:
    """One option per tensor with at most `limit` bytes in all. Raises RequestError if the smallest choice is
    larger.
    """
    chosen = smallest(options)
    least = total_bytes(chosen)
    if least > limit:
        raise RequestError(
            f"the limit leaves {limit:,} bytes for tensors; these formats need at least {least:,}: "
            f"allow {least - limit:,} bytes more, or smaller formats"
        )
    room = limit - least
    barred: set[str] = set()  # a step that did not fit bars the later ones of its tensor
    for step in frontier(options):
        more = step.option.nbytes - chosen[step.name].nbytes
        if step.name in barred or more > room:
            barred.add(step.name)
            continue
        chosen[step.name] = step.option
        room -= more
    return _improve(options, chosen, limit)


def _improve(options: Options, chosen: Chosen, limit: int) -> Chosen:
    """Fills the remaining room; each change lowers the total divergence and keeps the limit."""
    for _ in range(ROUNDS):
        room = limit - total_bytes(chosen)
        moves = [
            (option.kld - chosen[name].kld, option.nbytes - chosen[name].nbytes, name, option)
            for name, found in options.items()
            for option in found
            if option is not chosen[name]
        ]
        better = sorted((m for m in moves if m[0] < 0), key=lambda m: m[0])[:200]
        smaller = sorted((m for m in moves if m[1] < 0), key=lambda m: m[0])[:200]
        pairs: list[tuple[float, tuple[Move, ...]]] = [(m[0], (m,)) for m in better if m[1] <= room]
        pairs += [
            (up[0] + down[0], (up, down))
            for up in better
            for down in smaller
            if up[2] != down[2] and up[1] + down[1] <= room and up[0] + down[0] < 0
        ]
        if not pairs:
            return chosen
        gain, best = min(pairs, key=lambda p: p[0])
        if gain >= -1e-12:
            return chosen
        chosen = chosen | {name: option for _, _, name, option in best}
    return chosen
