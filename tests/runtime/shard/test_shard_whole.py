"""Which values a check of groups compares: the collectives of each group of a pipeline are counted by
themselves, and a copy between devices is whole where its source is.
"""

from __future__ import annotations

from satchel.runtime.graph import TOKENS, Graph, Node, Type
from satchel.runtime.ops import add, reduce_add
from satchel.runtime.shard.whole import whole_values


def parallel(rank: int) -> tuple[Node, Node, Node, Node]:
    """Sums on two groups, of which the first is copied to the second: both, the copy, and their addition."""
    graph = Graph()
    graph.label = "first"
    part = graph.node("input", (), Type((TOKENS, 8)), f"part of {rank}")
    first = reduce_add(part)
    graph.label = "second"
    second = reduce_add(part, graph.node("input", (), Type((TOKENS, 8)), "x"))
    crossed = graph.node("copy", (first,), first.type, "first", to=f"member {rank}")
    return first, second, crossed, add(second, crossed)


def test_each_group_counts_its_own_collectives() -> None:
    """One rank begins with the first group's sum, the other with the second group's."""
    (a, b, c, d), (e, f, g, h) = parallel(0), parallel(1)
    found = whole_values([(a, d), (f, h)], lambda node: node.name)
    assert found == (frozenset((a, b, c, d)), frozenset((e, f, g, h)))


def test_what_one_rank_has_alone_is_not_whole() -> None:
    graphs = []
    for rank in range(2):
        graph = Graph()
        part = graph.node("input", (), Type((TOKENS, 8)), f"part of {rank}")
        graphs.append((add(part, part), reduce_add(add(part, part))))
    found = whole_values(graphs)
    assert found == tuple(frozenset(roots[1:]) for roots in graphs)
