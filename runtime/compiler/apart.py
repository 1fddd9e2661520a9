"""Takes a graph apart by device: the nodes of each device as a graph of their own, with inputs in place of
the values of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from satchel.runtime.compiler.place import touched
from satchel.runtime.graph import LEAVES, Graph, Node, Roots, toposort
from satchel.runtime.shard.division import Home


@dataclass(frozen=True, slots=True)
class Apart:
    """The parts of a graph."""

    roots: Roots  # of the whole graph
    order: tuple[Node, ...]  # all computed nodes of the whole graph, sources first
    home: Mapping[Node, str]  # the device of each
    own: Mapping[Node, Node]  # the node of a part for each of them
    brought: Mapping[Node, Node]  # for each input of a part that stands for another part's value: that value
    leaving: Mapping[str, Roots]  # by device: what it gives to others, and its roots of the whole graph


def apart(roots: Roots, home: Home) -> Apart:
    """The parts. Nodes that touch a state are on the device of the first one that does."""
    graph, order = Graph(), tuple(n for n in toposort(roots) if n.op not in LEAVES)
    at, own, brought = dict[Node, str](), dict[Node, Node](), dict[Node, Node]()
    states, inputs = dict[str, str](), dict[tuple[str, Node], Node]()
    leaving: dict[str, dict[Node, None]] = {}

    def source(device: str, node: Node) -> Node:
        if node.op in LEAVES:
            return graph.node(node.op, (), node.type, node.name, **dict(node.args))
        if at[node] == device:
            return own[node]
        if (device, node) not in inputs:
            leaving.setdefault(at[node], {})[own[node]] = None
            name = f"{len(inputs)}: {node.op} of {at[node]}"
            inputs[device, node] = graph.node("input", (), node.type, name)
            brought[inputs[device, node]] = node
        return inputs[device, node]

    for node in order:
        state = touched(node)
        device = home(node) if state is None else states.setdefault(state.name, home(node))
        at[node] = device
        src = tuple(source(device, s) for s in node.src)
        own[node] = graph.node(node.op, src, node.type, node.name, **dict(node.args))
    for root in (r for r in roots if r.op not in LEAVES):
        leaving.setdefault(at[root], {})[own[root]] = None
    return Apart(roots, order, at, own, brought, {device: tuple(found) for device, found in leaving.items()})
