"""Pass: fuses neighbouring ops into one step, if the first has no other reader and the device has the fused
op.

Each rule's docstring gives the pattern. The fused op's `parts` are its decomposition, so a device that lacks
it loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import Node, Roots, readers, rewrite

Uses = dict[Node, int]
Local = Callable[[Node, tuple[Node, ...], Uses], Node | None]


def residual(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """add(linear(x, w), r), in either order -> linear_add(x, w, r)."""
    if node.op != "add":
        return None
    for product, old, other in ((src[0], node.src[0], src[1]), (src[1], node.src[1], src[0])):
        whole = product.type == other.type == node.type  # neither is broadcast
        if product.op == "linear" and len(product.src) == 2 and uses[old] == 1 and whole:
            return ops.linear_add(*product.src, other)
    return None


def normed_residual(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """add(r, rms_norm(x, w)), in either order -> rms_norm_add(x, w, r)."""
    if node.op != "add" or src[0].type != src[1].type:
        return None
    for norm, old, other in ((src[1], node.src[1], src[0]), (src[0], node.src[0], src[1])):
        if norm.op == "rms_norm" and uses[old] == 1:
            return ops.rms_norm_add(*norm.src, other, eps=norm.arg("eps"))
    return None


def gated_by_gelu(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """mul(gelu(gate), up) -> geglu(gate, up)."""
    if node.op == "mul" and src[0].op == "gelu" and uses[node.src[0]] == 1 and src[0].type == src[1].type:
        return ops.geglu(*src[0].src, src[1], style=src[0].arg("style"))
    return None


def quantized_norm(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """quantize(rms_norm(x, w)) -> norm_quantize(x, w)."""
    if node.op == "quantize" and src[0].op == "rms_norm" and uses[node.src[0]] == 1:
        return ops.norm_quantize(*src[0].src, eps=src[0].arg("eps"), format=node.arg("format"))
    return None


def quantized_swiglu(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """quantize(swiglu(gate, up)) -> swiglu_quantize(gate, up)."""
    if node.op == "quantize" and src[0].op == "swiglu" and uses[node.src[0]] == 1:
        return ops.swiglu_quantize(*src[0].src, format=node.arg("format"))
    return None


def _product(node: Node, old: Node, uses: Uses) -> tuple[Node, ...]:
    """x and w of a product that has no other reader, or of one half of a merged product whose halves have no
    other readers.
    """
    if node.op == "linear" and len(node.src) == 2:
        return node.src
    if node.op != "cols" or node.src[0].op != "linear" or len(node.src[0].src) != 3 or uses[old.src[0]] > 2:
        return ()
    x, first, second = node.src[0].src
    return x, second if node.arg("start") else first


def gated_linear(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """swiglu of two products of x, merged or not -> linear_swiglu(x, gate, up)."""
    if node.op != "swiglu" or any(uses[old] > 1 for old in node.src):
        return None
    gate, up = (_product(new, old, uses) for new, old in zip(src, node.src, strict=True))
    same = gate and up and gate[0] is up[0] and gate[1].shape == up[1].shape
    return ops.linear_swiglu(*gate, up[1]) if same else None


def quantized_gated_linear(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """quantize(linear_swiglu(x, gate, up)) -> linear_swiglu_quantize(x, gate, up)."""
    if node.op == "quantize" and src[0].op == "linear_swiglu" and uses[node.src[0]] == 1:
        return ops.linear_swiglu_quantize(*src[0].src, format=node.arg("format"))
    return None


def turned_write(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """kv_write(cache, rope(x, cos_sin), ...) -> rope_kv_write(cache, x, cos_sin, ...)."""
    if node.op == "kv_write" and src[1].op == "rope" and uses[node.src[1]] == 1:
        return ops.rope_kv_write(src[0], *src[1].src, *src[2:], style=src[1].arg("style"))
    return None


def gated_experts(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """swiglu(expert_linear(x, gate, ids), expert_linear(x, up, ids)) -> expert_swiglu(x, gate, up, ids)."""
    if node.op != "swiglu" or any(
        s.op != "expert_linear" or uses[old] > 1 for s, old in zip(src, node.src, strict=True)
    ):
        return None
    (x, gate, ids), (y, up, others) = src[0].src, src[1].src
    return ops.expert_swiglu(x, gate, up, ids) if (x, ids) == (y, others) else None


def limited_gate(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """swiglu_limited(expert_add(gate, b, ids), expert_add(up, c, ids)) ->
    expert_gate_limited(gate, b, up, c, ids).
    """
    if node.op != "swiglu_limited" or any(
        s.op != "expert_add" or uses[old] > 1 for s, old in zip(src, node.src, strict=True)
    ):
        return None
    (gate, gate_bias, ids), (up, up_bias, others) = src[0].src, src[1].src
    if ids is not others:
        return None
    return ops.expert_gate_limited(gate, gate_bias, up, up_bias, ids, **dict(node.args))


RULES: tuple[Local, ...] = (
    residual,
    normed_residual,
    gated_by_gelu,
    quantized_norm,
    gated_linear,
    quantized_gated_linear,
    gated_experts,
    limited_gate,
    quantized_swiglu,
    turned_write,
)


def fuse(roots: Roots, context: Context) -> Roots:
    uses = readers(roots)

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        wanted = context.wanted(node)
        for local in RULES:
            node.graph.label = node.name
            made = local(node, src, uses)
            if made is None or context.target(wanted).refusal(made):
                continue
            # No fusion across devices.
            at = {context.wanted(s) for s in made.src if s.op == "weight"}
            if context.wanted(made) == wanted and len(at) <= 1:
                return made
        return None

    return rewrite(roots, rule)
