"""Orders steps so that devices work at the same time. Before a turn of one device come the steps that the
turn waits for, then steps that the previous device can run meanwhile. Only the order changes, not what a step
computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from satchel.runtime.compiler.memory import storage
from satchel.runtime.graph import LEAVES, Node
from satchel.runtime.ops import OPS
from satchel.runtime.ops.op import op_of

AHEAD = 6  # number of later turns that are searched for steps a device can run early


@dataclass(frozen=True, slots=True)
class Ordered:
    """Nodes, sources first."""

    order: list[Node]
    # Nodes that begin a segment on the same device, so that earlier results can be read while they run.
    begins: frozenset[Node] = frozenset()


@dataclass(frozen=True, slots=True)
class _Turn:
    """Consecutive steps on one device."""

    device: str
    nodes: list[Node]


def overlap(order: Sequence[Node], device: Mapping[Node, str]) -> Ordered:
    """The same nodes in an overlapping order; leaves come first."""
    done = [node for node in order if node.op in LEAVES]
    turns, placed, begins = _turns(order, device), set(done), set[Node]()
    pulled: list[Node] = []  # taken from later turns into their device's next one
    for i, turn in enumerate(turns):
        mine = [node for node in dict.fromkeys([*turn.nodes, *pulled]) if node not in placed]
        pulled = []
        if mine and i + 1 < len(turns):
            other = turns[i + 1]
            near, far = _ready(turns[i + 1 : i + 1 + AHEAD], turn.device, other.device, placed.union(mine))
            waited = _needed([*mine, *near], [*other.nodes, *far])
            rest = [node for node in [*mine, *near] if node not in waited]
            if _multiplies(rest) and _multiplies([*other.nodes, *far]):
                first = [node for node in [*mine, *near] if node in waited]
                begins.update(_first_step(rest) if first else ())
                mine = first + rest
            else:
                mine += [node for node in near if node in waited]
            reached = placed.union(mine)
            pulled = [node for node in far if _follows(node, reached, far)]
        done += mine
        placed.update(mine)
    return Ordered(done, frozenset(begins))


def _turns(order: Sequence[Node], device: Mapping[Node, str]) -> list[_Turn]:
    turns: list[_Turn] = []
    for node in (n for n in order if n.op not in LEAVES):
        if not turns or turns[-1].device != device[node]:
            turns.append(_Turn(device[node], []))
        turns[-1].nodes.append(node)
    return turns


def _fixed(node: Node) -> bool:
    """Whether a node keeps its order: it touches a state or waits for the host."""
    if node.op == "copy":
        return False
    return OPS[node.op].waits or OPS[node.op].alias or any(storage(s).op == "state" for s in node.src)


def _ready(turns: Sequence[_Turn], here: str, there: str, placed: set[Node]) -> tuple[list[Node], list[Node]]:
    """Steps that `here` can run without waiting for another device, and steps of `there` that wait for `here`
    alone.
    """
    near, far = dict[Node, None](), dict[Node, None]()
    for turn in turns:
        for node in turn.nodes:
            if node in placed or _fixed(node):
                continue
            if turn.device == here and all(s in placed or s in near for s in node.src):
                near[node] = None
            elif turn.device == there and all(s in placed or s in near or s in far for s in node.src):
                far[node] = None
    return list(near), list(far)


def _needed(own: Iterable[Node], readers: Iterable[Node]) -> set[Node]:
    """Nodes of the device that these readers depend on, and its nodes with a fixed order."""
    mine = list(own)
    among, waiting = set(mine), [node for node in mine if _fixed(node)]
    waiting += [source for node in readers for source in node.src]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in among and node not in found:
            found.add(node)
            waiting += node.src
    return found


def _follows(node: Node, placed: set[Node], far: Sequence[Node]) -> bool:
    return all(s in placed or s in far for s in node.src)


def _first_step(nodes: Sequence[Node]) -> list[Node]:
    """The first node that is a step. Views and copies begin no segment."""
    return [node for node in nodes if node.op != "copy" and not OPS[node.op].view][:1]


def _multiplies(nodes: Sequence[Node]) -> bool:
    return any((made_by := op_of(node)) is not None and made_by.product for node in nodes)
