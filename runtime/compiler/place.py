"""Pass: assigns a device to every node, and inserts a copy wherever a value crosses from one device to
another.

A node goes to the device that the placement wants. An op that this device lacks is decomposed, else moved to
the next device. A state lies on one device, and the nodes that read or write it run there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from satchel.errors import DeviceError
from satchel.runtime.compiler.memory import storage
from satchel.runtime.graph import LEAVES, Graph, Node, Roots, rewrite, toposort
from satchel.runtime.ops import OPS

if TYPE_CHECKING:
    from satchel.runtime.compiler import Context


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """roots: the graph with its copies. device: of every node that is no leaf. moved: nodes that are not on
    their wanted device. homes: the device of each state by name. streamed: devices whose layers run one by
    one.
    """

    roots: Roots
    device: dict[Node, str]
    moved: tuple[str, ...]
    homes: dict[str, str] = field(default_factory=dict)
    streamed: Collection[str] = ()


def place(roots: Roots, context: Context) -> DeviceAssignment:
    roots = _decompose(roots, context)
    order = [node for node in toposort(roots) if node.op not in LEAVES]
    moved: dict[str, None] = {}
    homes = _homes(order, context, moved)
    device: dict[Node, str] = {}
    for node in order:
        if OPS[node.op].view and node.src[0].op not in LEAVES:
            device[node] = device[node.src[0]]
            continue
        state = touched(node)
        home = homes.get(state.name) if state else None
        able = home is not None and not context.target(home).refusal(node)
        device[node] = home if home is not None and able else _choose(node, context, moved)
    return _with_copies(roots, device, tuple(moved), homes, context)


def touched(node: Node) -> Node | None:
    """The first state that a node reads or works on in place, if any."""
    return next((found for s in node.src if (found := storage(s)).op == "state"), None)


def _homes(order: list[Node], context: Context, moved: dict[str, None]) -> dict[str, str]:
    """The device of each state: the one that the first of the nodes which touch it is wanted on, if it can do
    them all, else the next that can.
    """
    users: dict[str, list[Node]] = {}
    for node in order:
        state = touched(node)
        if state:
            users.setdefault(state.name, []).append(node)
    homes = dict(context.homes)
    for name, nodes in users.items():
        if name not in homes:
            wanted = context.wanted(nodes[0])
            names = [wanted, *(t.name for t in context.targets if t.name != wanted)]
            able = (n for n in names if not any(context.target(n).refusal(node) for node in nodes))
            homes[name] = next(able, wanted)
        refused = (n for n in nodes if homes[name] != context.wanted(n))
        for node in refused if name not in context.homes else ():
            _note(moved, node, context.wanted(node), homes[name])
    return homes


def _note(moved: dict[str, None], node: Node, wanted: str, here: str) -> None:
    formats = ", ".join(s.type.format for s in node.src)
    moved[f"{node.name}: {node.op} on ({formats}) moved from {wanted} to {here}"] = None


def _decompose(roots: Roots, context: Context) -> Roots:
    """Fused ops that the wanted device lacks become their parts."""

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        parts = None if node.op in LEAVES else OPS[node.op].parts
        if parts is None or not context.target(context.wanted(node)).refusal(node):
            return None
        node.graph.label = node.name
        return parts(*src, **dict(node.args))

    return rewrite(roots, rule)


def _choose(node: Node, context: Context, moved: dict[str, None]) -> str:
    wanted = context.wanted(node)
    order = [context.target(wanted), *(t for t in context.targets if t.name != wanted)]
    for target in order:
        if not target.refusal(node):
            # Codes that only a product elsewhere reads are made there: nobody misses them here.
            if target.name != wanted and node.op != "quantize":
                _note(moved, node, wanted, target.name)
            return target.name
    reasons = "; ".join(f"{t.name}: {t.refusal(node)}" for t in order)
    raise DeviceError(f"{node.name}: no device has {node.op}: {reasons}")


class _Crossings:
    """How values get from device to device: by a copy, one for each device that reads it; what depends on
    inputs and constants alone is computed again instead, which waits for nobody.
    """

    def __init__(self, context: Context) -> None:
        self.context, self.placed = context, dict[Node, str]()
        self._again: dict[str, Graph] = {}

    def on_device(self, value: Node, here: str) -> Node:
        """The value as a node on this device."""
        if value.op in LEAVES or self.placed[value] == here:
            return value
        if value.op != "copy" and OPS[value.op].view:
            # What the window is on crosses whole, and once for all windows on it.
            base = self.on_device(value.src[0], here)
            seen = value.graph.node(value.op, (base,), value.type, value.name, **dict(value.args))
            self.placed[seen] = here
            return seen
        free = all(s.op in ("input", "const") for s in value.src)
        if free and not self.context.target(here).refusal(value):
            # A graph keeps equal nodes once, so the second one belongs to a graph of its own.
            graph = self._again.setdefault(here, Graph())
            made = graph.node(value.op, value.src, value.type, value.name, **dict(value.args))
        else:
            made = value.graph.node("copy", (value,), value.type, value.name, to=here)
        self.placed[made] = here
        return made


def _with_copies(
    roots: Roots, device: dict[Node, str], moved: tuple[str, ...], homes: dict[str, str], context: Context
) -> DeviceAssignment:
    crossings = _Crossings(context)

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op in LEAVES:
            return None
        here = device[node]
        crossing = tuple(crossings.on_device(s, here) for s in src)
        made = node.graph.node(node.op, crossing, node.type, node.name, **dict(node.args))
        crossings.placed[made] = here
        return made

    return DeviceAssignment(rewrite(roots, rule), crossings.placed, moved, homes, context.streamed)
