"""Pass: the row pick moves towards the inputs, so that the last layer computes only the rows that somebody
reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from satchel.runtime.graph import TOKENS, Node, Roots, readers, rewrite
from satchel.runtime.ops import OPS

if TYPE_CHECKING:
    from satchel.runtime.compiler import Context

# Ops that compute each row of their result from the same row of their sources.
ROWWISE = frozenset(
    {"add", "mul", "linear", "linear_add", "rms_norm", "swiglu", "reshape", "cols"}
    | {"layer_norm", "gelu", "soft_cap", "sigmoid", "softplus"}
    | {"top_experts", "expert_weights", "expert_linear", "expert_sum"}
    | {"expert_add", "swiglu_limited", "head_linear", "take", "concat"}
)


def sink(roots: Roots, context: Context) -> Roots:
    """Repeats until nothing moves: a pick passes a node only when it is the node's one reader."""
    while True:
        count = readers(roots)

        def rule(node: Node, src: tuple[Node, ...], count: dict[Node, int] = count) -> Node | None:
            if node.op != "pick" or node.src[0].op not in ROWWISE or count[node.src[0]] > 1:
                return None
            inner, rows = src
            picked = (OPS["pick"](s, rows) if s.shape[0] == TOKENS else s for s in inner.src)
            inner.graph.label = inner.name
            return OPS[inner.op](*picked, **dict(inner.args))

        moved = rewrite(roots, rule)
        if moved == roots:
            return roots
        roots = moved
