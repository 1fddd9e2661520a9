"""Pass: splits the routed experts of some layers into two parts that are added: the experts that a second
device has, and the rest. Each part has the layer's products with slots of its own, negative for experts of
the other part.
"""

from __future__ import annotations

from satchel.runtime import ops
from satchel.runtime.compiler.context import Context, ExpertPart
from satchel.runtime.graph import LEAVES, Node, Roots, Type, rewrite


def split(roots: Roots, context: Context) -> Roots:
    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        part = context.expert_parts.get(node.name)
        if part is None or node.op not in ("expert_sum", "reshape") or len(src[0].shape) != 3:
            return None
        first = _by_expert(src[0])
        if first is None or first.src[1].op != "weight":
            return None
        node.graph.label = node.name
        return ops.add(
            _sum(node, src, first.src[-1], rest_table(node.name, part), None),
            _sum(node, src, first.src[-1], part_table(node.name, part), part),
        )

    return rewrite(roots, rule) if context.expert_parts else roots


def _by_expert(node: Node) -> Node | None:
    """The last expert product on the path to a value (T, k, N); None if there is none."""
    while node.op not in LEAVES and len(node.shape) == 3:
        if ops.OPS[node.op].experts:
            return node
        node = node.src[0]
    return None


def _sum(join: Node, src: tuple[Node, ...], ids: Node, name: str, part: ExpertPart | None) -> Node:
    """Sum over the experts of the part, or of the rest, with the same op as `join`. name: its slot table."""
    graph, stack = join.graph, _by_expert(src[0])
    experts = stack.src[1].shape[0] if stack is not None else 0
    table = graph.node("weight", (), Type((experts,), "i32"), name)
    y = _rebuilt(src[0], ids, ops.gather(ids, table), part, {})
    return graph.node(join.op, (y, *src[1:]), join.type, join.name, **dict(join.args))


def _rebuilt(node: Node, ids: Node, places: Node, part: ExpertPart | None, known: dict[Node, Node]) -> Node:
    """A value (T, k, N) recomputed with `places` instead of ids. part: its experts replace the full stacks;
    None: the full stacks stay.
    """
    if node.op in LEAVES or len(node.shape) != 3:
        return node
    if node not in known:
        src = [_rebuilt(s, ids, places, part, known) for s in node.src]
        if ops.OPS[node.op].experts and node.src[-1] is ids:
            src[-1] = places
            src[1:-1] = [held(s, part) if part and s.op == "weight" else s for s in src[1:-1]]
        known[node] = node.graph.node(node.op, tuple(src), node.type, node.name, **dict(node.args))
    return known[node]


def held(tensor: Node, part: ExpertPart) -> Node:
    """The experts of a tensor that the second device has."""
    shape = (part.count, *tensor.shape[1:])
    return tensor.graph.node("weight", (), Type(shape, tensor.type.format), tensor.name + part.suffix)


def part_table(label: str, part: ExpertPart) -> str:
    """Name of the table (E) that maps a layer's experts to slots of the part."""
    return f"{label}.experts{part.suffix}"


def rest_table(label: str, part: ExpertPart) -> str:
    """Name of the table (E) that maps them to slots of the full stacks."""
    return f"{part_table(label, part)}.rest"
