"""Decides how a model is divided among the ranks of a group: once, from the graphs of all its outputs, before
any weight is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from satchel.errors import RequestError
from satchel.runtime.graph import Roots
from satchel.runtime.ops.op import OPS
from satchel.runtime.shard.blocks import caches_by_blocks
from satchel.runtime.shard.cuts import Cut, by_kv_heads, dealt, of_keys
from satchel.runtime.shard.infer import CutGroup, Inference

MOST = 16  # ranks of a group
EVEN = 1.1  # a mixture is divided by columns where the largest share is at most so many equal ones
ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is divided. The same for all its graphs."""

    shares: tuple[float, ...]  # of the ranks
    cuts: Mapping[str, Cut] = field(default_factory=dict)  # of weights divided by rows, by name
    experts: Mapping[str, Cut] = field(default_factory=dict)  # of weights divided by experts
    whole: Mapping[str, str] = field(default_factory=dict)  # why a weight is not divided by rows
    unlike: bool = False  # the ranks' devices differ, so their sums may too: rank 0's discrete choices count
    blocks: frozenset[str] = frozenset()  # caches that are divided by blocks, by name

    @property
    def ranks(self) -> int:
        return len(self.shares)

    def infer(self, roots: Roots) -> Inference:
        """The specs of a graph of this model."""
        return Inference(roots, self.ranks, self.whole, self.experts, self.blocks)


def decide(
    roots: Roots, shares: Sequence[float], unlike: bool = False, blocks: frozenset[str] = frozenset()
) -> Sharding:
    """The division of a model. roots: those of all its outputs, after `prepared`. unlike, blocks: of
    Sharding.
    """
    if not 1 <= len(shares) <= MOST:
        raise RequestError(f"a group has 1 to {MOST} devices, got {len(shares)}")
    whole, experts = dict[str, str](), dict[str, Cut]()
    for _ in range(ROUNDS):
        found = Inference(roots, len(shares), whole, experts, blocks)
        wrong = dict(found.conflicts)
        cuts, by_experts = dict[str, Cut](), dict[str, Cut]()
        if not wrong:
            cuts, by_experts, wrong = _resolved(found, tuple(shares))
        if not wrong and not by_experts:
            return Sharding(tuple(shares), cuts, experts, whole, unlike, blocks)
        whole |= wrong
        experts = {name: cut for name, cut in {**experts, **by_experts}.items() if name not in whole}
    raise AssertionError(f"no division was found in {ROUNDS} rounds: {wrong}")


def with_blocks(roots: Roots, sharding: Sharding) -> Sharding:
    """The division with context parallelism: caches that ranks would hold several times are divided by
    blocks. The same one where there are none. roots: as of decide().
    """
    if sharding.ranks < 2:
        return sharding
    blocks = caches_by_blocks(sharding.infer(roots), roots, sharding.cuts)
    return decide(roots, sharding.shares, sharding.unlike, blocks) if blocks else sharding


def _resolved(
    found: Inference, shares: tuple[float, ...]
) -> tuple[dict[str, Cut], dict[str, Cut], dict[str, str]]:
    """Cuts of all divided weights; those that are better divided by experts; why others must be whole."""
    cuts, experts, wrong = dict[str, Cut](), dict[str, Cut](), dict[str, str]()
    members = found.members()
    keys = {found.find(cut) for group in found.groups().values() for cut, *_ in group.links}
    for name, group in found.groups().items():
        if name in keys and not any(found.find(cut) == name for cut, *_ in group.links):
            continue  # it follows from its queries
        cut, why = _cut(group, shares)
        stacks = _by_experts(group, shares, cut)
        if stacks is not None:
            experts |= dict.fromkeys(members[name], stacks)
            continue
        for key, _, kv_heads in group.links if cut is not None else ():
            of = found.find(key)
            if of == name:
                continue
            mine = of_keys(cut, kv_heads) if cut is not None else None
            other = found.group(key)
            fits = mine is not None and math.gcd(*other.units) % kv_heads == 0 and not other.blocks
            agrees = members[of][0] not in cuts or cuts[members[of][0]] == mine
            if mine is not None and fits and agrees:
                cuts |= dict.fromkeys(members[of], mine)
            else:
                wrong |= dict.fromkeys(members[of], "its heads are not those of the queries")
        if cut is None:
            wrong |= dict.fromkeys(members[name], why)
        else:
            cuts |= dict.fromkeys(members[name], cut)
    missing = (m for name in keys for m in members[name] if m not in cuts and m not in wrong)
    wrong |= dict.fromkeys(missing, "its queries are whole")
    return cuts, experts, wrong


def _cut(group: CutGroup, shares: tuple[float, ...]) -> tuple[Cut | None, str]:
    """The cut of a group, in whole blocks where that is even enough; else why there is none."""
    if not group.complete:
        return None, "no product takes it by columns"
    kv_heads = math.gcd(*(kv for _, _, kv in group.links)) if group.links else 0
    found, least = None, math.inf
    for units in (math.gcd(*group.units, *group.blocks), math.gcd(*group.units)):
        cut = by_kv_heads(units, kv_heads, shares) if kv_heads else dealt(units, shares)
        uneven = cut.imbalance(shares, group.blocks) if cut is not None else math.inf
        if uneven < least / EVEN:
            found, least = cut, uneven
    return found, f"{math.gcd(*group.units, *group.blocks)} units for {len(shares)} ranks"


def _by_experts(group: CutGroup, shares: tuple[float, ...], columns: Cut | None) -> Cut | None:
    """The division by experts of a mixture's products, where it is the more even one."""
    stacks = {p.src[1].shape[0] for p in group.products if OPS[p.op].experts}
    if len(stacks) != 1 or any(not OPS[p.op].experts for p in group.products):
        return None
    count = stacks.pop()
    found = dealt(count, shares) if isinstance(count, int) else None
    even = max(EVEN, found.imbalance(shares)) if found is not None else math.inf
    if found is None or (columns is not None and columns.imbalance(shares, group.blocks) <= even):
        return None
    return found
