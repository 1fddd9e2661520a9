"""Pass: latent attention of long stretches of a prompt makes keys and values of each head on the way instead
of taking queries into the latents' space: the same numbers from fewer multiply-adds, once many queries share
what was made. Only in plans of steps that can hold such a stretch (Context.long).

Tokens in shorter runs, decoded ones among them, keep the absorbed form and its bits: each op computes its own
tokens, and expanded_attention takes over what the others have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from satchel.runtime import ops
from satchel.runtime.graph import Node, Roots, rewrite, toposort

if TYPE_CHECKING:
    from satchel.runtime.compiler import Context


def expand(roots: Roots, context: Context) -> Roots:
    if not context.long:
        return roots

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        found = _absorbed(node, src)
        if found is None:
            return None
        attention, k_b, q, picked = found
        node.graph.label = node.name
        cache, place, scale = attention.src[1], attention.src[3:], attention.arg("scale")
        some = ops.short_attention(
            *attention.src, scale=scale, value=attention.arg("value"), least=context.long
        )
        left = ops.head_linear(ops.reshape(some, shape=src[0].arg("shape")), src[1])
        made = ops.expanded_attention(
            q, cache, cache, *place, k_b, src[1], left, scale=scale, least=context.long
        )
        if any(context.target(context.wanted(n)).refusal(n) for n in (some, made)):
            return None
        if len({context.wanted(w) for w in (k_b, src[1])}) > 1:
            return None
        return made if picked is None else ops.pick(made, picked)

    return rewrite(roots, rule)


def _absorbed(node: Node, src: tuple[Node, ...]) -> tuple[Node, Node, Node, Node | None] | None:
    """The attention of a layer whose results this node brings back, the weight by which its queries came
    there, the queries before, and the rows that were picked between, if any.
    """
    if node.op != "head_linear" or src[0].op != "reshape":
        return None
    attention, rows = src[0].src[0], None
    if attention.op == "pick":
        attention, rows = attention.src
    if attention.op != "attention" or not attention.arg("value") or len(attention.src) != 6:
        return None
    asked = attention.src[0]
    if asked.op != "concat" or asked.src[0].op != "head_linear":
        return None
    plain, k_b = asked.src[0].src
    return attention, k_b, ops.concat(plain, asked.src[1]), rows


def expandable(roots: Roots) -> bool:
    """Whether there is anything for this pass."""
    return any(_absorbed(n, n.src) is not None for n in toposort(roots) if n.op == "head_linear")
