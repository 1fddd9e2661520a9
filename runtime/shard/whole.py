"""Which values of the members' graphs are whole: the same bits on every member. They are known from the
graphs alone, so that a check of them does not rest on how the graphs were made.
"""

from __future__ import annotations

from collections.abc import Sequence

from satchel.runtime.graph import LEAVES, Node, Roots, toposort
from satchel.runtime.ops.op import OPS


def whole_values(members: Sequence[Roots]) -> tuple[frozenset[Node], ...]:
    """Of each member's graph, the computed nodes that are whole: results of collectives, and what all members
    compute alike from such. A weight or a constant is whole where all members have it. A state is: what was
    written to it counts, for the op that writes it stands before its readers.
    """
    terms: dict[object, int] = {}  # numbers of terms: an op with its arguments, of terms
    named = [_terms(toposort(roots), rank, terms) for rank, roots in enumerate(members)]
    common = frozenset.intersection(*(frozenset(own.values()) for own in named))
    return tuple(
        frozenset(node for node, term in own.items() if term in common and node.op not in LEAVES)
        for own in named
    )


def _terms(order: Sequence[Node], rank: int, terms: dict[object, int]) -> dict[Node, int]:
    """The term of each node of a member's graph. Members meet in one order, so a collective's term is its
    number; of one that leaves each member its own rows, also the member's.
    """
    found: dict[Node, int] = {}
    meetings = 0
    for node in order:
        if node.op in LEAVES:
            term: object = (node.op, node.name if node.op in ("input", "state") else _content(node))
        elif OPS[node.op].scatters is not None:
            term = ("own rows", rank, len(found))
        elif OPS[node.op].meets is not None:
            term, meetings = ("meeting", meetings), meetings + 1
        else:
            term = (node.op, node.args, tuple(found[source] for source in node.src))
        found[node] = terms.setdefault(term, len(terms))
    return found


def _content(leaf: Node) -> object:
    """What tells a weight or a constant from another one."""
    return leaf.name if leaf.op == "weight" else (leaf.type, leaf.arg("value").array.tobytes())
