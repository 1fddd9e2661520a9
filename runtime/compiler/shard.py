"""Pass: tensor parallelism. The graph becomes that of one rank: of each group of devices one member's part,
see runtime/shard, and of other devices all that they compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from satchel.runtime.compiler.apart import Apart, apart
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.fold import fold
from satchel.runtime.compiler.push_down import push_down
from satchel.runtime.compiler.rotate import rotate
from satchel.runtime.graph import LEAVES, Graph, Node, Roots
from satchel.runtime.ops.split import Split
from satchel.runtime.shard.division import Division, Home
from satchel.runtime.shard.pieces import Range
from satchel.runtime.shard.rank import RankGraph
from satchel.runtime.shard.sharding import Sharding, decide, with_blocks
from satchel.runtime.shard.windows import separate

BEFORE = (rotate, fold, push_down)  # the passes before this one


class GroupTraits(NamedTuple):
    """What the division of a group's layers depends on."""

    shares: tuple[float, ...]  # of the members
    unlike: bool = False  # as of Sharding
    blocks: bool = False  # with context parallelism


def shard(roots: Roots, context: Context) -> Roots:
    return roots if context.division is None else rank_of(roots, context.division, context.rank)


def prepared(roots: Roots) -> Roots:
    """A graph after the passes before this one."""
    for step in BEFORE:
        roots = step(roots, Context((), lambda node: ""))
    return roots


def sharding_of(
    outputs: Iterable[Roots], shares: Sequence[float], unlike: bool = False, blocks: bool = False
) -> Sharding:
    """How a model that is on one group is divided. outputs: the roots of each graph that will run. unlike,
    blocks: of GroupTraits.
    """
    traits = GroupTraits(tuple(shares), unlike, blocks)
    return shardings_of(map(prepared, outputs), lambda node: "", {"": traits})[""]


def shardings_of(
    outputs: Iterable[Roots], home: Home, groups: Mapping[str, GroupTraits]
) -> dict[str, Sharding]:
    """How each group divides the layers that it has; groups that have none are left out. outputs: the roots
    of each graph that will run, after `prepared`.
    """
    roots = tuple(root for found in outputs for root in found)
    parts = _apart(roots, home, groups).leaving
    return {name: _decided(parts[name], traits) for name, traits in groups.items() if name in parts}


def _decided(roots: Roots, traits: GroupTraits) -> Sharding:
    found = decide(roots, traits.shares, traits.unlike)
    return with_blocks(roots, found) if traits.blocks else found


def state_ranges(roots: Roots, division: Division) -> dict[str, tuple[Range, ...]]:
    """The heads of each divided cache that every member of its group has, by the state's name. roots: before
    all passes.
    """
    parts, ranges = _apart(prepared(roots), division.home, division.members).leaving, {}
    for name, sharding in division.shardings.items():
        for state, spec in sharding.infer(parts[name]).states.items() if name in parts else ():
            if isinstance(spec, Split):
                ranges[state] = sharding.cuts[spec.cut].ranges
    return ranges


def rank_of(roots: Roots, division: Division, rank: int) -> Roots:
    """The graph of a rank. roots: after `prepared`."""
    found = _apart(roots, division.home, division.members)
    graph = Graph()
    parts = {name: _part(name, own, division, rank, graph) for name, own in found.leaving.items()}

    def value(node: Node) -> Node:
        return parts[found.home[node]].value(found.own[node])

    for node in found.order:
        own, part = found.own[node], parts[found.home[node]]
        part.given.update((s, value(found.brought[s])) for s in own.src if s in found.brought)
        part.add(own)
    return tuple(_leaf(graph, root) if root.op in LEAVES else value(root) for root in found.roots)


class _Part(Protocol):
    """What builds a device's nodes in the graph of a rank. given: the values for its inputs that stand for
    those of other devices.
    """

    given: dict[Node, Node]

    def add(self, node: Node) -> None:
        """Makes a node, whose sources were made."""

    def value(self, node: Node) -> Node:
        """The whole value of a node that was made."""


class _Whole:
    """A device that is no group: it computes its nodes as they are."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.given = graph, dict[Node, Node]()
        self._made: dict[Node, Node] = {}

    def add(self, node: Node) -> None:
        src = tuple(self._source(s) for s in node.src)
        self._made[node] = self.graph.node(node.op, src, node.type, node.name, **dict(node.args))

    def value(self, node: Node) -> Node:
        return self._made[node]

    def _source(self, node: Node) -> Node:
        if node.op not in LEAVES:
            return self._made[node]
        return self.given[node] if node in self.given else _leaf(self.graph, node)


def _part(name: str, roots: Roots, division: Division, rank: int, graph: Graph) -> _Part:
    if name not in division.members:
        return _Whole(graph)
    return RankGraph(roots, division.shardings[name], division.number(name, rank), graph)


def _leaf(graph: Graph, leaf: Node) -> Node:
    return graph.node(leaf.op, (), leaf.type, leaf.name, **dict(leaf.args))


def _apart(roots: Roots, home: Home, groups: Iterable[str]) -> Apart:
    """The parts of the devices. In those of groups, windows of products are products of their own."""
    divided = frozenset(groups)
    return apart(separate(roots, lambda node: home(node) in divided), home)
