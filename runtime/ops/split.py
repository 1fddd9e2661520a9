"""How an op behaves when its sources are divided among ranks (tensor parallelism): the specs of values, and
the rules that stand beside the ops' shape rules.

A rule says what a result is on each rank, and what it wants of its sources for that. An op without a rule
takes whole sources, so a new op is right at once and only not faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from satchel.runtime.graph import Node


class Split(NamedTuple):
    """Each rank has a range of this axis. cut: the weight whose rows began the division."""

    axis: int
    cut: str


class Experts(NamedTuple):
    """Each rank has the rows (T, k, N) of its own experts and zeros for the others. cut: the first weight
    that is divided by experts.
    """

    cut: str


# Ends of the names of an adapter's factors, which are small beside the weight: y = W x + B (A x).
LORA_A, LORA_B = ".lora_a", ".lora_b"
WHOLE = "whole"  # every rank has all of it, in the same bits
PARTIAL = "partial"  # the value is the sum over the ranks
GATHERED = "gathered"  # only wanted: whole, and a divided value may be gathered for it
Spec = Split | Experts | str


class SplitOutcome(NamedTuple):
    """What a result is, and the spec that is wanted of each source."""

    spec: Spec
    wants: tuple[Spec, ...]


class Cuts(Protocol):
    """The divisions that an inference collects."""

    def begin(self, product: Node) -> Spec:
        """The spec of a product of a whole value: split by the rows of its weight, by experts, or whole."""

    def units(self, cut: str, count: int) -> None:
        """The cut points divide a dimension into `count` equal units."""

    def closes(self, cut: str, weight: Node) -> None:
        """A weight is cut along its columns, which leaves a partial sum."""

    def complete(self, cut: str) -> None:
        """The division needs no product that closes it."""

    def link(self, queries: Split, keys: Split, heads: int, kv_heads: int) -> None:
        """Queries of `heads` heads attend to keys of `kv_heads`."""

    def by_blocks(self, cache: Node) -> bool:
        """Whether the blocks of a cache are dealt among the ranks (context parallelism)."""


SplitRule = Callable[[Node, tuple[Spec, ...], Cuts], SplitOutcome | None]


def _size(node: Node, axis: int) -> int:
    size = node.shape[axis]
    return size if isinstance(size, int) else 0


def along(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """Elementwise ops with broadcast: sources that have the divided axis are divided alike."""
    found = [
        Split(s.axis + len(node.shape) - len(x.shape), s.cut)
        for x, s in zip(node.src, specs, strict=True)
        if isinstance(s, Split)
    ]
    if not found or any(s.axis != found[0].axis for s in found):
        return None
    axis, cut = found[0]
    wants: list[Spec] = []
    for x in node.src:
        own = axis - len(node.shape) + len(x.shape)
        has_axis = own >= 0 and _size(x, own) != 1
        wants.append(Split(own, cut) if has_axis else WHOLE)
    return SplitOutcome(found[0], tuple(wants))


def along_zeros(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """`along` for ops that give 0 for zeros in the first source: rows of other ranks' experts stay 0."""
    if isinstance(specs[0], Experts):
        return SplitOutcome(specs[0], tuple(s if isinstance(s, Experts) else WHOLE for s in specs))
    return along(node, specs, cuts)


def summed(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """add: a partial sum plus a whole value stays partial; the whole value is added when it is reduced."""
    if PARTIAL in specs and all(s in (PARTIAL, WHOLE) for s in specs):
        short = specs[1] == PARTIAL and node.src[1].shape != node.shape
        return None if short else SplitOutcome(PARTIAL, specs)
    return along(node, specs, cuts)


def scaled(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """mul: a partial sum times a whole value stays partial."""
    if specs == (PARTIAL, WHOLE):
        return SplitOutcome(PARTIAL, specs)
    return along_zeros(node, specs, cuts)


def product(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """A product of a whole value is split by the weight's rows; a product of a value that is split along its
    last axis is split by the weight's columns and leaves a partial sum. B of an adapter takes a partial sum
    as it is.
    """
    x, rest = specs[0], (WHOLE,) * (len(specs) - 2)
    weight = node.src[1]
    if weight.op != "weight" or len(node.src) > (3 if len(weight.shape) == 3 else 2):
        return None
    if isinstance(x, Experts):
        return SplitOutcome(x, (x, x, *rest))
    if x == PARTIAL and weight.name.endswith(LORA_B):
        return SplitOutcome(PARTIAL, (PARTIAL, WHOLE, *rest))  # it is reduced with the product beside it
    if isinstance(x, Split):
        if x.axis != len(node.src[0].shape) - 1:
            return None
        cuts.closes(x.cut, weight)
        return SplitOutcome(PARTIAL, (x, Split(len(weight.shape) - 1, x.cut), *rest))
    begun = cuts.begin(node)
    if isinstance(begun, Split):
        return SplitOutcome(begun, (WHOLE, Split(len(weight.shape) - 2, begun.cut), *rest))
    return SplitOutcome(begun, (WHOLE, begun, *rest)) if isinstance(begun, Experts) else None


def embedding(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """get_rows: each rank looks up the ids among its own rows; other ids give zeros."""
    begun = cuts.begin(node) if node.src[0].op == "weight" else WHOLE
    if not isinstance(begun, Split):
        return None
    cuts.complete(begun.cut)
    return SplitOutcome(PARTIAL, (Split(0, begun.cut), WHOLE))


def by_head(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """Ops that take each head by itself: (T, H, D) split along H, with weights for all heads (D), or for each
    (H, D).
    """
    x = specs[0]
    if not isinstance(x, Split) or x.axis != 1 or len(node.src[0].shape) != 3:
        return None
    each = (s.op in ("weight", "const") and len(s.shape) == 2 for s in node.src[1:])
    return SplitOutcome(x, (x, *(Split(0, x.cut) if own else WHOLE for own in each)))


def head_or_expert(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """by_head for a linear op of one source."""
    return SplitOutcome(specs[0], specs) if isinstance(specs[0], Experts) else by_head(node, specs, cuts)


def head_product(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """head_linear: weights (H, N, K) are split as the heads of the value."""
    x = specs[0]
    if not isinstance(x, Split) or x.axis != 1 or node.src[1].op != "weight":
        return None
    return SplitOutcome(x, (x, Split(0, x.cut)))


def joined(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """concat: b (T, 1, B) is whole, or split as a is."""
    found = [s for s in specs if isinstance(s, Split)]
    if not found or found[0].axis != 1:
        return None
    wants = (found[0] if _size(x, 1) != 1 else WHOLE for x in node.src)
    return SplitOutcome(found[0], tuple(wants))


def reshaped(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """Dimensions after the first are merged or divided; a cut stays where it falls between whole entries of
    the outermost one.
    """
    x, old, new = specs[0], node.src[0].shape[1:], node.shape[1:]
    if x == PARTIAL:
        return SplitOutcome(PARTIAL, specs)
    if isinstance(x, Experts):
        return SplitOutcome(PARTIAL if len(new) == 1 else x, specs)
    if not isinstance(x, Split) or not new:
        return None
    if old[0] == 1 and len(old) == 2 and x.axis == 2 and len(new) == 1:
        return SplitOutcome(Split(1, x.cut), specs)
    if x.axis != 1 or new[0] == 1:
        return None
    cuts.units(x.cut, _size(node, 1))
    return SplitOutcome(x, specs)


def rows_gathered(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """gather_rows: a selection of rows of whatever each rank has."""
    x = specs[0]
    kept = x == PARTIAL or isinstance(x, Experts) or (isinstance(x, Split) and x.axis > 0)
    return SplitOutcome(x, (x, WHOLE)) if kept else None


def written(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """kv_write: each rank's cache has the heads that are written there. One that is divided by blocks has all
    of them.
    """
    x = specs[1]
    if cuts.by_blocks(node.src[0]) or not isinstance(x, Split) or x.axis != 1:
        return None
    return SplitOutcome(x, (x, x, WHOLE, WHOLE, WHOLE))


def attended(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """attention: queries are split by heads, keys and values by the heads that these share; a cache of one
    head is whole, and so are the heads of one that is divided by blocks. Numbers by head (sinks, slopes) are
    split as the queries are.
    """
    q, k, v = specs[:3]
    if not isinstance(q, Split) or q.axis != 1:
        return None
    heads, kv_heads = _size(node.src[0], 1), _size(node.src[1], 1)
    cuts.units(q.cut, heads)
    if isinstance(k, Split) and isinstance(v, Split):
        cuts.link(q, k, heads, kv_heads)
        cuts.link(q, v, heads, kv_heads)
    elif (kv_heads > 1 and not cuts.by_blocks(node.src[1])) or k != WHOLE or v != WHOLE:
        return None
    rest = (
        Split(0, q.cut) if len(s.shape) == 1 and s.op in ("weight", "const") else WHOLE for s in node.src[6:]
    )
    return SplitOutcome(Split(1, q.cut), (q, k, v, WHOLE, WHOLE, WHOLE, *rest))


def expert_biased(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """expert_add: of a partial sum, one rank alone adds the bias."""
    y = specs[0]
    if isinstance(y, Split):
        return SplitOutcome(y, (y, Split(1, y.cut), WHOLE)) if y.axis == 2 else None
    if isinstance(y, Experts):
        return SplitOutcome(y, (y, y, WHOLE))
    return SplitOutcome(y, (y, WHOLE, WHOLE)) if y == PARTIAL else None


def experts_summed(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """expert_sum: linear in the experts' rows."""
    y = specs[0]
    if isinstance(y, Split):
        return SplitOutcome(Split(1, y.cut), (y, WHOLE)) if y.axis == 2 else None
    return None if y == WHOLE else SplitOutcome(PARTIAL, (y, WHOLE))


def logits_gathered(node: Node, specs: tuple[Spec, ...], cuts: Cuts) -> SplitOutcome | None:
    """Ops that read whole rows of logits: logits that are split by the vocabulary are gathered."""
    return SplitOutcome(WHOLE, (GATHERED, *(WHOLE,) * (len(specs) - 1)))
