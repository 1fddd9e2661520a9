"""Several answers to one prompt: their seeds, and the selection of the best."""

from __future__ import annotations

from collections.abc import Sequence

from satchel.errors import RequestError
from satchel.runtime.api.reply import Reply
from satchel.runtime.sampling import MASK
from satchel.runtime.words import MAX_COMPLETIONS

SPREAD = 0x9E3779B97F4A7C15  # difference between the seeds of answers to one prompt


def seeds(first: int, n: int) -> list[int]:
    """Seeds of n answers to one prompt; the first answer's is the given one."""
    return [(first + i * SPREAD) & MASK for i in range(n)]


def check_counts(n: int, best_of: int | None) -> int:
    """Number of answers to generate. Raises RequestError if it is too large, or smaller than n."""
    made = n if best_of is None else best_of
    if not 1 <= n <= MAX_COMPLETIONS or made > MAX_COMPLETIONS:
        raise RequestError(f"n is {n} and best_of {made}: they must lie between 1 and {MAX_COMPLETIONS}")
    if made < n:
        raise RequestError(f"best_of is {made}: it cannot be fewer than n, which is {n}")
    return made


def best(replies: Sequence[Reply], n: int) -> list[Reply]:
    """Runs replies to one prompt to their ends. Gives the n best by mean log-probability if there are more
    than n, else all in order. The first runs alone until it has computed the prompt, which the others then
    find in the cache.
    """
    next(iter(replies[0]), None)
    for reply in replies[1:]:
        reply.start()
    for reply in replies:
        reply.read()
    if n == len(replies):
        return list(replies)
    ranked = sorted(replies, key=lambda r: -r.mean_logprob)
    return ranked[:n]
