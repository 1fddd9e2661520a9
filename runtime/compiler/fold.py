"""Pass: constant folding. Nodes that depend on constants alone are computed by the numpy definitions."""

from __future__ import annotations

from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import LEAVES, Node, Roots, rewrite
from satchel.runtime.ops import OPS


def fold(roots: Roots, context: Context) -> Roots:
    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op in LEAVES or not src or any(s.op != "const" for s in src):
            return None
        value = OPS[node.op].define(*(s.arg("value").array for s in src), **dict(node.args))
        return node.graph.const(value, node.type.format, node.name)

    return rewrite(roots, rule)
