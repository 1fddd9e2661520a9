"""Pass: merges products of one activation with several weights into one step, followed by views of its
columns.

No weight is copied: a step may name any number of weights, of any formats that share an activation format.
"""

from __future__ import annotations

from satchel.quant import FORMATS
from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import Node, Roots, rewrite, toposort


def merge(roots: Roots, context: Context) -> Roots:
    groups: dict[tuple[Node, str | None, str], list[Node]] = {}
    for node in toposort(roots):
        if node.op == "linear" and len(node.src) == 2:
            key = (node.src[0], FORMATS[node.src[1].type.format].act, context.wanted(node))
            groups.setdefault(key, []).append(node)
    start: dict[Node, tuple[tuple[Node, ...], int]] = {}
    for siblings in (g for g in groups.values() if len(g) > 1):
        at = 0
        for node in siblings:
            start[node] = (tuple(s.src[1] for s in siblings), at)
            at += node.width

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node not in start:
            return None
        weights, at = start[node]
        node.graph.label = node.name
        return ops.cols(ops.linear(src[0], *weights), start=at, size=node.width)

    return rewrite(roots, rule)
