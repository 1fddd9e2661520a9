"""Finds the steps between a layer's Q, K, V product and its attention, which one kernel can compute: biases
or norms of heads, RoPE, the writes to the KV cache, and for few tokens attention itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from satchel.runtime import ops
from satchel.runtime.graph import Node, Roots, toposort

PLAIN = {"value": 0, "causal": 1, "alibi": 0}  # of attention that a fused step may hold
SEEN = ("scale", "window", "cap", "chunk")  # its other arguments


@dataclass(frozen=True, slots=True)
class HeadsInput:
    """Queries, keys or values (T, H, D) before what a fused step does to them."""

    x: Node
    rest: Node | None = None  # a bias (H * D), or the weight (D) of a norm
    shape: tuple[int, ...] = ()  # (H, D), where x is (T, H * D)
    eps: float = 0.0

    def value(self, new: Mapping[Node, Node]) -> Node:
        return ops.reshape(new[self.x], shape=self.shape) if self.shape else new[self.x]


@dataclass(frozen=True, slots=True)
class AttentionSteps:
    """The steps of one layer's attention."""

    attention: Node
    rope: Node  # of the queries
    keys: Node  # rope_kv_write
    values: Node  # kv_write

    @property
    def plain(self) -> tuple[HeadsInput, HeadsInput, HeadsInput]:
        return HeadsInput(self.rope.src[0]), HeadsInput(self.keys.src[1]), HeadsInput(self.values.src[1])

    def fused(self, new: Mapping[Node, Node], heads: tuple[HeadsInput, ...], *, whole: bool) -> Node | None:
        """The fused node over new sources. whole: with attention, or None where it has no such kind of it."""
        rest = [new[h.rest] for h in heads if h.rest is not None]
        flags = {"biases": int(len(rest) == 3), "norms": int(len(rest) == 2), "eps": heads[0].eps}
        q, k, v = (h.value(new) for h in heads)
        caches = new[self.keys.src[0]], new[self.values.src[0]]
        src = (q, *caches, *(new[s] for s in (*self.attention.src[3:6], self.rope.src[1])), k, v, *rest)
        style = self.rope.arg("style")
        if not whole:
            return ops.rope_qkv_write(*src, style=style, **flags)
        if any(self.attention.arg(name) != n for name, n in PLAIN.items()):
            return None
        sinks = (new[s] for s in self.attention.src[6:])
        seen = {name: self.attention.arg(name) for name in SEEN}
        return ops.rope_qkv_attention(*src, *sinks, **seen, style=style, **flags)


def layers_of(roots: Roots) -> dict[Node, AttentionSteps]:
    """By attention node, the layers whose steps have no other readers. A written cache may be a root too."""
    read_by: dict[Node, list[Node]] = {}
    for node in toposort(roots):
        for source in node.src:
            read_by.setdefault(source, []).append(node)
    found = (_layer(node) for node in toposort(roots) if node.op == "attention")
    return {
        one.attention: one
        for one in found
        if one and all(read_by[n] == [one.attention] for n in (one.rope, one.keys, one.values))
    }


def _layer(node: Node) -> AttentionSteps | None:
    q, k, v, *place = node.src[:6]
    if (q.op, k.op, v.op) != ("rope", "rope_kv_write", "kv_write"):
        return None
    same = q.src[1] is k.src[2] and q.arg("style") == k.arg("style")
    states = k.src[0].op == v.src[0].op == "state"
    placed = list(k.src[3:]) == list(v.src[2:]) == place
    return AttentionSteps(node, q, k, v) if same and states and placed else None


def variants(layer: AttentionSteps) -> Iterator[tuple[HeadsInput, ...]]:
    """What a fused step may begin with, the most first."""
    yield from (heads for heads in (_normed(layer), _biased(layer)) if heads)
    yield layer.plain


def _normed(layer: AttentionSteps) -> tuple[HeadsInput, ...] | None:
    q, k, v = layer.plain
    norms = [_norm_of(h.x) for h in (q, k)]
    eps = {n.arg("eps") for n in norms if n is not None}
    if None in norms or len(eps) != 1:
        return None
    heads = zip((q, k), (n for n in norms if n is not None), strict=True)
    return *(HeadsInput(n.src[0], n.src[1], _shape_of(h.x), *eps) for h, n in heads), v


def _shape_of(x: Node) -> tuple[int, ...]:
    return x.arg("shape") if x.op == "reshape" else ()


def _norm_of(x: Node) -> Node | None:
    """The rms_norm of heads x (T, H, D); of one head it may stand before its reshape."""
    norm = x.src[0] if x.op == "reshape" and x.shape[1] == 1 else x
    return norm if norm.op == "rms_norm" and norm.src[1].shape == x.shape[2:] else None


def _biased(layer: AttentionSteps) -> tuple[HeadsInput, ...] | None:
    heads = []
    for h in layer.plain:
        added = h.x.src[0] if h.x.op == "reshape" else h.x
        if added.op != "add" or added.src[1].shape != (added.width,) or len(added.shape) != 2:
            return None
        heads.append(HeadsInput(added.src[0], added.src[1], _shape_of(h.x)))
    return tuple(heads)
