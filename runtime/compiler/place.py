"""Pass: assigns a device to every node, and inserts a copy where a value crosses devices.

A node goes to the device that the placement wants. If that device lacks the op, a fused op is decomposed, and
any other moves to the next device. A state lies on one device, and the nodes that read or write it run there.
"""

from __future__ import annotations

from satchel.errors import DeviceError
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.memory import storage
from satchel.runtime.compiler.optimized import DeviceAssignment
from satchel.runtime.graph import LEAVES, Graph, Node, Roots, rewrite, toposort
from satchel.runtime.ops import OPS


def place(roots: Roots, context: Context) -> DeviceAssignment:
    roots = _decompose(roots, context)
    order = [node for node in toposort(roots) if node.op not in LEAVES]
    moved: dict[str, None] = {}
    homes = _homes(order, context, moved)
    device: dict[Node, str] = {}
    for node in order:
        if (OPS[node.op].view or node.op == "take") and node.src[0].op not in LEAVES:
            # What takes a part of a value stands where that was made, so that the part alone crosses.
            device[node] = device[node.src[0]]
            continue
        state = touched(node)
        home = homes.get(state.name) if state else None
        able = home is not None and not context.target(home).refusal(node)
        device[node] = home if home is not None and able else _choose(node, context, moved)
    return _with_copies(roots, device, tuple(moved), homes, context)


def touched(node: Node) -> Node | None:
    """The first state that a node reads or updates in place, if any."""
    return next((found for s in node.src if (found := storage(s)).op == "state"), None)


def _homes(order: list[Node], context: Context, moved: dict[str, None]) -> dict[str, str]:
    """Device of each state: the wanted device of the first node that touches it, if it supports all such
    nodes, else the next device that does.
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
            able = (t.name for t in context.order(wanted) if not any(t.refusal(node) for node in nodes))
            homes[name] = next(able, wanted)
        refused = (n for n in nodes if homes[name] != context.wanted(n))
        for node in refused if name not in context.homes else ():
            _note(moved, node, context.wanted(node), homes[name])
    return homes


def _note(moved: dict[str, None], node: Node, wanted: str, here: str) -> None:
    formats = ", ".join(s.type.format for s in node.src)
    moved[f"{node.name}: {node.op} on ({formats}) moved from {wanted} to {here}"] = None


def _decompose(roots: Roots, context: Context) -> Roots:
    """Decomposes fused ops that the wanted device lacks."""

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        parts = None if node.op in LEAVES else OPS[node.op].parts
        if parts is None or not context.target(context.wanted(node)).refusal(node):
            return None
        node.graph.label = node.name
        return parts(*src, **dict(node.args))

    return rewrite(roots, rule)


def _choose(node: Node, context: Context, moved: dict[str, None]) -> str:
    wanted = context.wanted(node)
    order = context.order(wanted)
    for target in order:
        if not target.refusal(node):
            # A quantize that moves with its product is not worth a report.
            if target.name != wanted and node.op != "quantize":
                _note(moved, node, wanted, target.name)
            return target.name
    reasons = "; ".join(f"{t.name}: {t.refusal(node)}" for t in order)
    raise DeviceError(f"{node.name}: no device has {node.op}: {reasons}")


class _Crossings:
    """Brings values to other devices: by one copy per reading device. A value that depends on inputs and
    constants alone is recomputed instead, which waits for no device.
    """

    def __init__(self, context: Context) -> None:
        self.context, self.placed = context, dict[Node, str]()
        self._again: dict[str, Graph] = {}

    def on_device(self, value: Node, here: str) -> Node:
        """The value as a node on this device."""
        if value.op in LEAVES or self.placed[value] == here:
            return value
        if value.op != "copy" and OPS[value.op].view:
            # The source of a view crosses whole, once for all its views.
            base = self.on_device(value.src[0], here)
            seen = value.graph.node(value.op, (base,), value.type, value.name, **dict(value.args))
            self.placed[seen] = here
            return seen
        free = all(s.op in ("input", "const") for s in value.src)
        if free and not self.context.target(here).refusal(value):
            # Nodes are hash-consed: a second equal node needs a graph of its own.
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
