"""Pass: splits the routed experts of some layers into two parts that are added: the experts that another
device caches, and the rest. Each part has the layer's products with slots of its own, negative for experts of
the other part.
"""

from __future__ import annotations

from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import LEAVES, Node, Roots, Type, rewrite

CACHED, UNCACHED = (
    ".cached",
    ".uncached",
)  # suffixes of a tensor's cached experts and of each part's slot table


def split(roots: Roots, context: Context) -> Roots:
    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        count = context.expert_cache.get(node.name, 0)
        if not count or node.op not in ("expert_sum", "reshape") or len(src[0].shape) != 3:
            return None
        first = _by_expert(src[0])
        if first is None or first.src[1].op != "weight":
            return None
        node.graph.label = node.name
        parts = [_part(node, src, first.src[-1], kind, count) for kind in (UNCACHED, CACHED)]
        return ops.add(*parts)

    return rewrite(roots, rule) if context.expert_cache else roots


def _by_expert(node: Node) -> Node | None:
    """The last expert product on the path to a value (T, k, N); None if there is none."""
    while node.op not in LEAVES and len(node.shape) == 3:
        if ops.OPS[node.op].experts:
            return node
        node = node.src[0]
    return None


def _part(join: Node, src: tuple[Node, ...], ids: Node, kind: str, count: int) -> Node:
    """Sum over the experts of one part, with the same op as `join`."""
    graph, stack = join.graph, _by_expert(src[0])
    experts = stack.src[1].shape[0] if stack is not None else 0
    table = graph.node("weight", (), Type((experts,), "i32"), table_name(join.name, kind))
    places = ops.gather(ids, table)
    y = _rebuilt(src[0], ids, places, count if kind == CACHED else 0, {})
    return graph.node(join.op, (y, *src[1:]), join.type, join.name, **dict(join.args))


def _rebuilt(node: Node, ids: Node, places: Node, count: int, known: dict[Node, Node]) -> Node:
    """A value (T, k, N) recomputed with `places` instead of ids. count: number of cached experts that replace
    the full stacks; 0: the full stacks stay.
    """
    if node.op in LEAVES or len(node.shape) != 3:
        return node
    if node not in known:
        src = [_rebuilt(s, ids, places, count, known) for s in node.src]
        if ops.OPS[node.op].experts and node.src[-1] is ids:
            src[-1] = places
            src[1:-1] = [held(stack, count) if count else stack for stack in src[1:-1]]
        known[node] = node.graph.node(node.op, tuple(src), node.type, node.name, **dict(node.args))
    return known[node]


def held(tensor: Node, count: int) -> Node:
    """The first `count` experts of a tensor, as another device caches them."""
    shape = (count, *tensor.shape[1:])
    return tensor.graph.node("weight", (), Type(shape, tensor.type.format), tensor.name + CACHED)


def table_name(label: str, kind: str) -> str:
    """Name of the table (E) that maps experts to slots in one part of a layer."""
    return f"{label}.experts{kind}"
