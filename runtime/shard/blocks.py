"""Context parallelism: which caches the ranks divide by blocks, because each of them would hold the same
keys otherwise. That is the cache of latent attention, of heads that all ranks compute, and of fewer KV heads
than ranks.

Block b of the pool is block b // ranks of the cache of rank b % ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from satchel.runtime.graph import Node, Roots, toposort
from satchel.runtime.ops.split import Spec, Split
from satchel.runtime.shard.cuts import Cut
from satchel.runtime.shard.infer import Inference, state_of

PLAIN = {"window": 0, "chunk": 0, "causal": 1}  # of attention that can be computed in parts


def caches_by_blocks(found: Inference, roots: Roots, cuts: Mapping[str, Cut]) -> frozenset[str]:
    """Names of the caches that several ranks would hold the same heads of, and that only attention to all
    past positions reads. found, cuts: of the division without them.
    """
    order = toposort(roots)
    held = {n.name for n in order if n.op == "state" and _repeats(found.states.get(n.name), cuts)}
    kept = held & {state_of(n.src[0]).name for n in order if n.op == "kv_write"}
    while True:
        lost = {name for node in order for name in _read(node) & kept if not _in_parts(node, kept)}
        if not lost:
            return frozenset(kept)
        kept -= lost


def own_blocks(blocks: int, ranks: int) -> int:
    """Blocks of each rank's cache, of a pool of so many."""
    return -(-blocks // ranks)


def _repeats(spec: Spec | None, cuts: Mapping[str, Cut]) -> bool:
    """Whether a state of this spec has heads that more than one rank holds."""
    if not isinstance(spec, Split):
        return True
    cut = cuts[spec.cut]
    return sum(r.size for r in cut.ranges) > cut.units


def _read(node: Node) -> set[str]:
    """States that a node reads or writes, through writes before it."""
    found = (s for s in node.src if s.op == "state" or s.op == "kv_write")
    return {state_of(s).name for s in found}


def _in_parts(node: Node, kept: set[str]) -> bool:
    """Whether a node that reads or writes a cache of `kept` has a form for caches that are divided so."""
    if node.op == "kv_write":
        return True
    return (
        node.op == "attention"
        and all(node.arg(name) == value for name, value in PLAIN.items())
        and all(state_of(cache).name in kept for cache in node.src[1:3])
    )
