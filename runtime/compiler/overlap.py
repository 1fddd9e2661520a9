"""Order of steps in which devices work at the same time: before a device's turn stands what that turn waits
for, then what the device before it can do meanwhile. Only the order changes; every step computes what it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from satchel.runtime.compiler.memory import storage
from satchel.runtime.graph import LEAVES, Node
from satchel.runtime.ops import OPS
from satchel.runtime.ops.op import op_of

AHEAD = 6  # turns behind its own in which a device finds what it could do already


@dataclass(frozen=True, slots=True)
class Ordered:
    """Nodes, sources first; begins: those that begin a segment though their device does not change, so that
    what was made before them can be read while they run.
    """

    order: list[Node]
    begins: frozenset[Node] = frozenset()


@dataclass(frozen=True, slots=True)
class _Turn:
    """A stretch of steps on one device."""

    device: str
    nodes: list[Node]


def overlap(order: Sequence[Node], device: Mapping[Node, str]) -> Ordered:
    """The same nodes; leaves stand first."""
    done = [node for node in order if node.op in LEAVES]
    turns, placed, begins = _turns(order, device), set(done), set[Node]()
    pulled: list[Node] = []  # of later turns: their device has them in its next one
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
    """Whether a node touches a state or waits for the host: it stays in its order."""
    if node.op == "copy":
        return False
    return OPS[node.op].waits or OPS[node.op].alias or any(storage(s).op == "state" for s in node.src)


def _ready(turns: Sequence[_Turn], here: str, there: str, placed: set[Node]) -> tuple[list[Node], list[Node]]:
    """What `here` can do without waiting for another device, and `there` waiting for `here` alone."""
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
    """The device's own nodes that these readers depend on, and those whose order is fixed."""
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
    """The first node that is a step: windows and copies begin no segment."""
    return [node for node in nodes if node.op != "copy" and not OPS[node.op].view][:1]


def _multiplies(nodes: Sequence[Node]) -> bool:
    return any((made_by := op_of(node)) is not None and made_by.product for node in nodes)
