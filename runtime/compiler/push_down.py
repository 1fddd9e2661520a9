"""Pass: push-down of the row gather. gather_rows moves towards the inputs through row-wise ops, so the last
feed-forward and the head compute only the rows whose logits are read.
"""

from __future__ import annotations

from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import TOKENS, Node, Roots, readers, rewrite
from satchel.runtime.ops.op import op_of


def push_down(roots: Roots, context: Context) -> Roots:
    """Repeats until nothing moves. A gather moves past a node only if it is the node's only reader: any other
    reader needs all the rows.
    """
    while True:
        count = readers(roots)

        def rule(node: Node, src: tuple[Node, ...], count: dict[Node, int] = count) -> Node | None:
            if node.op != "gather_rows" or count[node.src[0]] > 1:
                return None
            inner, rows = src
            made_by = op_of(inner)
            if made_by is None or not made_by.row_wise:
                return None
            gathered = (ops.gather_rows(s, rows) if s.shape[0] == TOKENS else s for s in inner.src)
            inner.graph.label = inner.name
            return made_by(*gathered, **dict(inner.args))

        moved = rewrite(roots, rule)
        if moved == roots:
            return roots
        roots = moved
