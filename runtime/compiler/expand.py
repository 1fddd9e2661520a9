"""Pass: expands MLA for long runs of a prompt. Keys and values of each head are computed from the latents,
instead of absorbing k_b into the queries: fewer multiply-adds once many queries share the keys. Only plans
whose steps can hold such a run have it (Context.long), and only on devices that say that it is the faster
form. GPUs do not: their expanded_attention absorbs too, and `attention` has faster kernels.

Tokens in shorter runs, decoded ones among them, keep the absorbed form and its bits: absorbed_attention and
expanded_attention each compute their own tokens, and expanded_attention copies the rows of the other.
"""

from __future__ import annotations

from satchel.quant.cache import ROTATED
from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import Node, Roots, rewrite, toposort


def expand(roots: Roots, context: Context) -> Roots:
    if not context.long:
        return roots

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        found = _absorbed(node, src)
        if found is None:
            return None
        attention, k_b, q, rows = found
        node.graph.label = node.name
        cache, place, scale = attention.src[1], attention.src[3:], attention.arg("scale")
        absorbed = ops.absorbed_attention(
            *attention.src, scale=scale, value=attention.arg("value"), least=context.long
        )
        left = ops.head_linear(ops.reshape(absorbed, shape=src[0].arg("shape")), src[1])
        expanded = ops.expanded_attention(
            q, cache, cache, *place, k_b, src[1], left, scale=scale, least=context.long
        )
        for n in (absorbed, expanded):
            target = context.target(context.wanted(n))
            if not target.expands or target.refusal(n):
                return None
        if len({context.wanted(w) for w in (k_b, src[1])}) > 1:
            return None
        return expanded if rows is None else ops.gather_rows(expanded, rows)

    return rewrite(roots, rule)


def _absorbed(node: Node, src: tuple[Node, ...]) -> tuple[Node, Node, Node, Node | None] | None:
    """Matches the v_b product behind absorbed attention. Gives the attention, k_b, the queries (T, H, D)
    before k_b was absorbed, and the row gather in between, if any.
    """
    if node.op != "head_linear" or src[0].op != "reshape":
        return None
    attention, rows = src[0].src[0], None
    if attention.op == "gather_rows":
        attention, rows = attention.src
    if attention.op != "attention" or not attention.arg("value") or len(attention.src) != 6:
        return None
    if attention.src[1].type.format in ROTATED:
        return None
    asked = attention.src[0]
    if asked.op != "concat" or asked.src[0].op != "head_linear":
        return None
    plain, k_b = asked.src[0].src
    return attention, k_b, ops.concat(plain, asked.src[1]), rows


def expandable(roots: Roots) -> bool:
    """Whether the graph has absorbed attention that this pass can expand."""
    return any(_absorbed(n, n.src) is not None for n in toposort(roots) if n.op == "head_linear")
