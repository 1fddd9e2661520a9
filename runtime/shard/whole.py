"""Which values of the members' graphs are whole: the same bits on every member. They are known from the
graphs alone, so that a check of them does not rest on how the graphs were made.
"""

from __future__ import annotations

from collections.abc import Sequence

from satchel.runtime.graph import LEAVES, Node, Roots, toposort
from satchel.runtime.ops.op import op_of


def whole_values(members: Sequence[Roots]) -> tuple[frozenset[Node], ...]:
    """Of each member's graph, the computed nodes that are whole: results of collectives, and of ops whose
    sources are whole. A weight or a constant is whole where all members have it. A state is: what was written
    to it counts, for the op that writes it stands before its readers.
    """
    orders = [toposort(roots) for roots in members]
    held = [{_content(node) for node in order if node.op in ("weight", "const")} for order in orders]
    common = frozenset.intersection(*map(frozenset, held))
    found = []
    for order in orders:
        whole: set[Node] = set()
        for node in order:
            if node.op in LEAVES:
                fits = node.op not in ("weight", "const") or _content(node) in common
            else:
                made_by = op_of(node)  # None of a copy between devices
                meets = made_by is not None and made_by.meets is not None
                fits = meets or all(source in whole for source in node.src)
            if fits:
                whole.add(node)
        found.append(frozenset(node for node in whole if node.op not in LEAVES))
    return tuple(found)


def _content(leaf: Node) -> object:
    """What tells a weight or a constant from another one."""
    return leaf.name if leaf.op == "weight" else (leaf.type, leaf.arg("value").array.tobytes())
