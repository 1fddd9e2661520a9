"""DRY penalties: lowers the logit of a token that continues a repetition (p-e-w, 2024, as in llama.cpp).

A token that followed an earlier copy of the text's suffix, of at least `allowed` tokens, loses multiplier *
base^(length - allowed). A sequence breaker ends the suffix; a token that is a breaker by itself loses
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from satchel.runtime.graph import Array
from satchel.runtime.sampling.exact import exp, log
from satchel.runtime.sampling.options import MOST_BIASES, Sampling

LARGEST = 60.0  # powers are capped at e^LARGEST
REACH = 20  # most tokens of a breaker after its first


@dataclass(frozen=True, slots=True)
class Breakers:
    """Sequence breakers as tokens."""

    # First token of a breaker to the tokens that may follow it; () for a complete breaker.
    tails: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def at(self, ids: Sequence[int], i: int) -> bool:
        """Whether a breaker begins at index i and ends within ids."""
        found = self.tails.get(ids[i])
        return found is not None and any(tuple(ids[i + 1 : i + 1 + len(t)]) == t for t in found)

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(1 + len(found) for found in self.tails.values())

    def alone(self, token: int) -> bool:
        return () in self.tails.get(token, ())


def find_breakers(
    texts: Iterable[str], vocabulary: int, piece: Callable[[int], bytes], encode: Callable[[str], list[int]]
) -> Breakers:
    """Breakers in a vocabulary: tokens that contain a text, and tokens whose end begins one, with its
    continuation.
    """
    tails: dict[int, set[tuple[int, ...]]] = {}
    wanted = [t.encode() for t in dict.fromkeys(texts) if t]
    begun: dict[bytes, list[bytes]] = {}  # breakers by each of their prefixes
    for raw in wanted:
        for n in range(1, len(raw)):
            begun.setdefault(raw[:n], []).append(raw)
    longest = max(map(len, begun), default=0)
    rests: dict[bytes, tuple[int, ...]] = {}
    for token in range(vocabulary):
        data = piece(token)
        whole = {raw for raw in wanted if raw in data}
        found: set[tuple[int, ...]] = {()} if whole else set()
        for n in range(min(longest, len(data)), 0, -1):
            for raw in begun.get(data[-n:], ()):
                if raw not in whole:
                    rest = raw[n:]
                    if rest not in rests:
                        rests[rest] = tuple(encode(rest.decode(errors="ignore"))[:REACH])
                    found.add(rests[rest])
        if found:
            tails[token] = found
    return Breakers({token: tuple(sorted(found)) for token, found in tails.items()})


def suffix_lengths(ids: Array) -> Array:
    """For each index i, the length of the longest common suffix of ids[: i + 1] and the text: (n) int64; the
    last entry is n. Z-function of the reversed text (Gusfield, 1997).
    """
    s = ids[::-1].tolist()
    z = [0] * len(s)
    left = right = 0
    for i in range(1, len(s)):
        n = min(right - i, z[i - left]) if i < right else 0
        while i + n < len(s) and s[n] == s[i + n]:
            n += 1
        if i + n > right:
            left, right = i, i + n
        z[i] = n
    if z:
        z[0] = len(s)
    return np.array(z[::-1], np.int64)


def dry_penalties(
    ids: Sequence[int], s: Sampling, breakers: Breakers, context: int
) -> list[tuple[int, float]]:
    """(token, amount added to its logit) for the next token; at most 512, the largest penalties first."""
    reach = context if s.dry_last_n < 0 else min(s.dry_last_n, context)
    last = np.asarray(ids[max(0, len(ids) - reach) :], np.int64)
    if len(last) <= s.dry_allowed_length or not _followed(last):
        return []
    listed = last.tolist()
    limit = next(
        (len(last) - 1 - i for i in range(len(last) - 1, -1, -1) if breakers.at(listed, i)), len(last)
    )
    if limit < s.dry_allowed_length:
        return []
    lengths = np.minimum(suffix_lengths(last), limit)
    longest: dict[int, int] = {}
    for i in np.flatnonzero(lengths[:-1] >= s.dry_allowed_length).tolist():
        token = listed[i + 1]
        if not breakers.alone(token):
            longest[token] = max(longest.get(token, 0), int(lengths[i]))
    ranked = sorted(longest.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_BIASES]
    steepness = log(s.dry_base)
    return [
        (t, -s.dry_multiplier * exp(min(LARGEST, steepness * (n - s.dry_allowed_length)))) for t, n in ranked
    ]


def _followed(last: Array) -> bool:
    """Whether the last token occurred before; otherwise nothing repeats."""
    return bool((last[:-1] == last[-1]).any())
