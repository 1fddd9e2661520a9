"""Pass: merges products of one activation with several weights into one step, followed by views of its
columns.

No weight is copied: a step may name any number of weights, of any formats that share an activation format.
Where the device takes each product and not all together, as of weights that it packs beside others, those
that it takes together are a step.
"""

from __future__ import annotations

from satchel.quant import FORMATS
from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import Node, Roots, rewrite, toposort


def _product(siblings: list[Node]) -> Node:
    siblings[0].graph.label = siblings[0].name
    return ops.linear(siblings[0].src[0], *(node.src[1] for node in siblings))


def _taken(siblings: list[Node], context: Context) -> list[list[Node]]:
    """The products of one activation, apart where their device refuses them together."""
    wanted = context.wanted(siblings[0])
    refusal = next((target.refusal for target in context.targets if target.name == wanted), None)
    if refusal is None or not refusal(_product(siblings)) or any(refusal(node) for node in siblings):
        return [siblings]
    found: list[list[Node]] = []
    for node in siblings:
        fitting = (group for group in found if not refusal(_product([*group, node])))
        if group := next(fitting, None):
            group.append(node)
        else:
            found.append([node])
    return found


def merge(roots: Roots, context: Context) -> Roots:
    groups: dict[tuple[Node, str | None, str], list[Node]] = {}
    for node in toposort(roots):
        if node.op == "linear" and len(node.src) == 2:
            key = (node.src[0], FORMATS[node.src[1].type.format].act, context.wanted(node))
            groups.setdefault(key, []).append(node)
    start: dict[Node, tuple[tuple[Node, ...], int]] = {}
    alike = (part for siblings in groups.values() if len(siblings) > 1 for part in _taken(siblings, context))
    for siblings in (part for part in alike if len(part) > 1):
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
