"""Finds the steps between a layer's products and its attention with MLA, which one kernel can compute: the
heads' k_b, RoPE of queries and of the shared key, the latent's norm, and the write to the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from satchel.runtime import ops
from satchel.runtime.graph import LEAVES, Node, Roots, toposort

ATTENDS = ("attention", "sparse_attention")


@dataclass(frozen=True, slots=True)
class LatentSteps:
    """The steps of one layer, in their order."""

    steps: tuple[Node, ...]
    asked: Node  # concat: the queries that attention takes
    write: Node  # kv_write
    q: Node  # (T, H, nope + n_rot)
    kv: tuple[Node, int]  # the value that holds latent and shared key side by side, and their first column
    norm: Node
    turned: Node  # rope of the queries
    product: Node  # head_linear

    def fused(self, new: Mapping[Node, Node]) -> Node:
        """The fused node over new sources."""
        value, start = self.kv
        kv = ops.cols(new[value], start=start, size=self.write.src[1].width)
        place = (new[s] for s in self.write.src[2:])
        rest = (new[s] for s in (self.turned.src[1], self.norm.src[1], self.product.src[1]))
        args = {"eps": self.norm.arg("eps"), "style": self.turned.arg("style")}
        return ops.rope_latent_write(new[self.q], kv, new[self.write.src[0]], *place, *rest, **args)


def latents_of(roots: Roots) -> dict[Node, LatentSteps]:
    """By attention node, the layers whose steps have no other readers. A written cache may be a root too."""
    read_by: dict[Node, list[Node]] = {}
    order = toposort(roots)
    for node in order:
        for source in node.src:
            read_by.setdefault(source, []).append(node)
    found = {}
    for node in order:
        steps = _steps(node, order) if node.op in ATTENDS else None
        if steps is None:
            continue
        inner = {*steps.steps, node}
        outside = set(roots) - {steps.write}
        if all(set(read_by[n]) <= inner for n in steps.steps) and not outside & set(steps.steps):
            found[node] = steps
    return found


def _steps(node: Node, order: Sequence[Node]) -> LatentSteps | None:
    asked, write, again = node.src[:3]
    if (
        asked.op != "concat"
        or write.op != "kv_write"
        or again is not write
        or list(node.src[3:6]) != list(write.src[2:])
    ):
        return None
    product, turned = asked.src
    row = write.src[1]
    if (product.op, turned.op, row.op) != ("head_linear", "rope", "concat") or write.src[0].op != "state":
        return None
    first, second = product.src[0], turned.src[0]
    if (first.op, second.op) != ("take", "take") or first.src[0] is not second.src[0]:
        return None
    nope = first.arg("size")
    if (
        first.arg("start") != 0
        or second.arg("start") != nope
        or nope + second.arg("size") != first.src[0].width
    ):
        return None
    latent, shared = row.src
    norm = _under(latent)
    if norm.op != "rms_norm" or shared.op != "rope" or shared.src[1] is not turned.src[1]:
        return None
    if shared.arg("style") != turned.arg("style") or turned.src[1].width != second.arg("size"):
        return None
    (value, start, size), (other, after, _) = _columns(norm.src[0]), _columns(shared.src[0])
    if value is not other or after != start + size:
        return None
    inner = (product, turned, first, second, row, norm, shared, asked, write, latent, shared.src[0])
    leaves = {n for n in (latent, shared.src[0]) if n.op != "reshape"}
    steps = tuple(n for n in order if n in set(inner) - leaves and n.op not in LEAVES)
    return LatentSteps(steps, asked, write, first.src[0], (value, start), norm, turned, product)


def _under(node: Node) -> Node:
    while node.op == "reshape":
        node = node.src[0]
    return node


def _columns(node: Node) -> tuple[Node, int, int]:
    """The value (T, N) whose columns a view of columns is, the first, and their number."""
    node, start = _under(node), 0
    size = node.width
    while node.op == "cols":
        start += node.arg("start")
        node = _under(node.src[0])
    return node, start, size
