"""Finds the steps between a part of a layer and the next part's products, where the part has a post-norm:
the post-norm with its residual h, the norm of h, the products, and a gate of theirs. One kernel can compute
them. h has other readers, so the fused step gives it beside the products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from satchel.runtime import ops
from satchel.runtime.graph import Node, Roots, toposort

MADE_BY = {
    "linear": ops.post_norm_linear,
    "linear_swiglu": ops.post_norm_linear_swiglu,
    "geglu": ops.post_norm_linear_geglu,
}


@dataclass(frozen=True, slots=True)
class PostNormSteps:
    """Steps in their order: rms_norm_add, rms_norm, the products, maybe halves of them and their gate."""

    steps: tuple[Node, ...]

    @property
    def end(self) -> Node:
        return self.steps[-1]

    def fused(self, new: Mapping[Node, Node]) -> Node:
        """The fused node over new sources: the last step's columns, then h."""
        h, norm, products = self.steps[:3]
        x, post, r = (new[s] for s in h.src)
        weights = (new[s] for s in products.src[1:])
        style = {"style": self.end.arg("style")} if self.end.op == "geglu" else {}
        return MADE_BY[self.end.op](x, *weights, new[norm.src[1]], post, r, eps=h.arg("eps"), **style)

    def results(self, fused: Node) -> Iterator[tuple[Node, Node]]:
        """The old nodes that later steps read, each with its columns of the fused node."""
        h, n = self.steps[0], self.end.width
        yield self.end, ops.cols(fused, start=0, size=n)
        yield h, ops.cols(fused, start=n, size=h.width)


def post_norms_of(roots: Roots) -> dict[Node, PostNormSteps]:
    """By last step, the steps whose inner values have no other readers, and whose h none reads before the
    last step in the order of the graph.
    """
    order = {node: i for i, node in enumerate(toposort(roots))}
    read_by: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for source in node.src:
            read_by[source].append(node)
    found = {}
    for h in order:
        steps = _steps(h, read_by) if h.op == "rms_norm_add" and len(h.shape) == 2 else ()
        if (
            steps
            and not set(steps[1:]) & set(roots)
            and all(order[n] > order[steps[-1]] for n in read_by[h] if n is not steps[1])
        ):
            found[steps[-1]] = PostNormSteps(steps)
    return found


def _steps(h: Node, read_by: Mapping[Node, list[Node]]) -> tuple[Node, ...]:
    norms = [n for n in read_by[h] if n.op == "rms_norm" and n.src[0] is h and n.arg("eps") == h.arg("eps")]
    if len(norms) != 1 or len(read_by[norms[0]]) != 1:
        return ()
    (products,) = read_by[norms[0]]
    if products.op not in ("linear", "linear_swiglu") or norms[0] in products.src[1:]:
        return ()
    return (h, norms[0], products, *_gate(products, read_by))


def _gate(products: Node, read_by: Mapping[Node, list[Node]]) -> tuple[Node, ...]:
    """The halves of merged products and the GeGLU that alone reads them."""
    halves = read_by[products]
    if products.op != "linear" or len(products.src) != 3 or [n.op for n in halves] != ["cols", "cols"]:
        return ()
    gates = {reader for half in halves for reader in read_by[half]}
    gate = gates.pop() if len(gates) == 1 else None
    size = products.src[1].shape[0]
    if gate is None or gate.op != "geglu" or any(len(read_by[half]) != 1 for half in halves):
        return ()
    whole = [(s.arg("start"), s.arg("size")) for s in gate.src] == [(0, size), (size, size)]
    return (*halves, gate) if whole else ()
