"""Pass: the row pick moves towards the inputs, so that the last layer computes only the rows that are
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from satchel.runtime import ops
from satchel.runtime.graph import TOKENS, Node, Roots, readers, rewrite
from satchel.runtime.op import op_of

if TYPE_CHECKING:
    from satchel.runtime.compiler import Context


def sink(roots: Roots, context: Context) -> Roots:
    """Repeats until nothing moves: a pick passes a node only when it is the node's one reader."""
    while True:
        count = readers(roots)

        def rule(node: Node, src: tuple[Node, ...], count: dict[Node, int] = count) -> Node | None:
            if node.op != "pick" or count[node.src[0]] > 1:
                return None
            inner, rows = src
            made_by = op_of(inner)
            if made_by is None or not made_by.row_wise:
                return None
            picked = (ops.pick(s, rows) if s.shape[0] == TOKENS else s for s in inner.src)
            inner.graph.label = inner.name
            return made_by(*picked, **dict(inner.args))

        moved = rewrite(roots, rule)
        if moved == roots:
            return roots
        roots = moved
