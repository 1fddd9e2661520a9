"""Finds the steps of a mixture of experts, which a device may compute in three for few tokens: the norm with
the router, the norm with gate and up of the selected experts, and their down products with the weighted sum
and the residual. Each selects the experts from the router's logits, so no step stands between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from satchel.runtime import ops
from satchel.runtime.graph import Node, Roots, toposort

NORMED = {"linear": ops.norm_linear, "linear_swiglu": ops.norm_linear_swiglu}  # products after the norm


@dataclass(frozen=True, slots=True)
class ExpertSteps:
    """The steps of one mixture. after_norm: products of the normalized input besides gate and up, the
    router's first; shared: linear_add of the shared expert onto the experts' sum, if the file has one.
    """

    norm: Node
    after_norm: tuple[Node, ...]
    ids: Node
    share: Node
    gated: Node
    down: Node
    total: Node
    shared: Node | None
    end: Node  # add of the residual

    @property
    def steps(self) -> tuple[Node, ...]:
        inner = (self.norm, *self.after_norm, self.ids, self.share, self.gated, self.down, self.total)
        return (*inner, *([self.shared] if self.shared else []), self.end)

    def normed(self, node: Node, new: Mapping[Node, Node]) -> Node:
        """The fused node over new sources of one of after_norm."""
        weights = (new[s] for s in (*node.src[1:], self.norm.src[1]))
        return NORMED[node.op](new[self.norm.src[0]], *weights, eps=self.norm.arg("eps"))

    def gate(self, new: Mapping[Node, Node], logits: Node) -> Node:
        sources = (new[s] for s in (self.norm.src[0], *self.gated.src[1:3], self.norm.src[1]))
        bias = (new[s] for s in self.ids.src[1:])
        return ops.norm_expert_swiglu(
            *sources, logits, *bias, eps=self.norm.arg("eps"), **_args(self.ids, "k", "sigmoid")
        )

    def sum(self, new: Mapping[Node, Node], gated: Node, logits: Node, residual: Node) -> Node:
        bias = (new[s] for s in self.ids.src[1:])
        args = {**_args(self.ids, "k", "sigmoid"), **_args(self.share, "norm", "scale")}
        return ops.expert_linear_sum(gated, new[self.down.src[1]], logits, residual, *bias, **args)

    @property
    def ranks(self) -> bool:
        """Whether the fused steps rank the experts as the file does: without groups of experts."""
        return bool(self.ids.arg("groups") == 1)

    def trial(self, new: Mapping[Node, Node]) -> tuple[Node, ...]:
        """All of them, at the norm: what they compute from later values is left out."""
        products = tuple(self.normed(node, new) for node in self.after_norm)
        gated = self.gate(new, products[0])
        return (*products, gated, self.sum(new, gated, products[0], new[self.norm.src[0]]))

    def replaced(self, node: Node, new: Mapping[Node, Node]) -> Node | None:
        """What stands in the place of one of the steps; None: nothing."""
        if node in self.after_norm:
            return self.normed(node, new)
        logits = self.after_norm[0]
        if node is self.gated:
            return self.gate(new, new[logits])
        if node is not self.end:
            return None
        return self.sum(new, new[self.gated], new[logits], self._residual_of(new))

    def trial_tail(self) -> Node:
        """The routing weights, the sum and the residual as one node, where the products stay as they are. Its
        sources are the old ones.
        """
        return self._tail(self.norm.src[0], self.after_norm[0], self.ids, self.down)

    def replaced_tail(self, node: Node, new: Mapping[Node, Node]) -> Node | None:
        """What stands in the place of one of tail_steps; None: nothing."""
        if node is not self.end:
            return None
        sources = (new[n] for n in (self.after_norm[0], self.ids, self.down))
        return self._tail(self._residual_of(new), *sources)

    def _tail(self, residual: Node, logits: Node, ids: Node, y: Node) -> Node:
        return ops.expert_sum_add(y, logits, ids, residual, **_args(self.share, "norm", "sigmoid", "scale"))

    def _residual_of(self, new: Mapping[Node, Node]) -> Node:
        if self.shared is None:
            return new[self.residual]
        return ops.linear_add(*(new[s] for s in self.shared.src[:2]), new[self.residual])

    @property
    def tail_steps(self) -> tuple[Node, ...]:
        return (self.share, self.total, *([self.shared] if self.shared else []), self.end)

    @property
    def residual(self) -> Node:
        y = self.shared or self.total
        return self.end.src[1] if self.end.src[0] is y else self.end.src[0]


def _args(node: Node, *names: str) -> dict[str, Any]:
    return {name: node.arg(name) for name in names}


def experts_of(roots: Roots) -> dict[Node, ExpertSteps]:
    """By the norm, the mixtures whose inner values have no other readers."""
    read_by: dict[Node, list[Node]] = {}
    for node in toposort(roots):
        for source in node.src:
            read_by.setdefault(source, []).append(node)
    found = (_steps(node, read_by) for node in read_by if node.op == "expert_sum")
    return {one.norm: one for one in found if one is not None and not set(one.steps[:-1]) & set(roots)}


def _steps(total: Node, read_by: Mapping[Node, list[Node]]) -> ExpertSteps | None:
    down, share = total.src
    if (down.op, share.op) != ("expert_linear", "expert_weights") or down.src[0].op != "expert_swiglu":
        return None
    gated, ids, logits = down.src[0], down.src[2], share.src[0]
    norm = gated.src[0]
    if ids.op != "top_experts" or share.arg("sigmoid") != ids.arg("sigmoid"):
        return None
    if norm.op != "rms_norm" or len(norm.shape) != 2 or logits.op != "linear" or logits.src[0] is not norm:
        return None
    if ids.src[0] is not logits or share.src[1] is not ids or gated.src[3] is not ids:
        return None
    shared, end = _end(total, read_by)
    products = [n for n in read_by[norm] if n is not logits and n is not gated]
    steps = (logits, *products)
    own = {gated: [down], down: [total], share: [total]}
    alone = all(read_by[node] == readers for node, readers in own.items())
    between = set(read_by[ids]) == {share, gated, down} and set(read_by[logits]) == {ids, share}
    if end is None or not alone or not between or any(n.op not in NORMED or norm in n.src[1:] for n in steps):
        return None
    return ExpertSteps(norm, steps, ids, share, gated, down, total, shared, end)


def _end(total: Node, read_by: Mapping[Node, list[Node]]) -> tuple[Node | None, Node | None]:
    """The shared expert's product onto the sum, if there is one, and the add of a residual (T, N); None, None
    where there is no such add.
    """
    shared, y = None, total
    if len(read_by[y]) == 1 and read_by[y][0].op == "linear_add" and read_by[y][0].src[2] is y:
        shared = y = read_by[y][0]
    end = read_by[y][0] if len(read_by.get(y, [])) == 1 else None
    if end is None or end.op != "add" or end.src[0].shape != end.src[1].shape:
        return None, None
    return shared, end
