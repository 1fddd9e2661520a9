"""Which values of the members' graphs are whole: the same bits on every member. They are known from the
graphs alone, so that a check of them does not rest on how the graphs were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from satchel.runtime.graph import LEAVES, Node, Roots, toposort
from satchel.runtime.ops.op import op_of


def whole_values(
    members: Sequence[Roots], stage: Callable[[Node], str] = lambda node: ""
) -> tuple[frozenset[Node], ...]:
    """Of each member's graph, the computed nodes that are whole: results of collectives, and what all members
    compute alike from such. A weight or a constant is whole where all members have it. A state is: what was
    written to it counts, for the op that writes it stands before its readers. stage: the group that a node is
    on; of a pipeline of groups a graph has a member of each.
    """
    terms: dict[object, int] = {}  # numbers of terms: an op with its arguments, of terms
    named = [_terms(toposort(roots), rank, stage, terms) for rank, roots in enumerate(members)]
    common = frozenset.intersection(*(frozenset(own.values()) for own in named))
    return tuple(
        frozenset(node for node, term in own.items() if term in common and node.op not in LEAVES)
        for own in named
    )


def _terms(
    order: Sequence[Node], rank: int, stage: Callable[[Node], str], terms: dict[object, int]
) -> dict[Node, int]:
    """The term of each node of a member's graph. Members of a group meet in one order, so a collective's term
    is its group and its number there; of one that leaves each member its own rows, the member's own. A copy
    between devices has its source's.
    """
    found: dict[Node, int] = {}
    meetings = Counter[str]()
    for node in order:
        made_by = op_of(node)
        if node.op in LEAVES:
            term: object = (node.op, node.name if node.op in ("input", "state") else _content(node))
        elif made_by is None:
            found[node] = found[node.src[0]]
            continue
        elif made_by.scatters is not None:
            term = ("own rows", rank, len(found))
        elif made_by.meets is not None:
            group = stage(node)
            term = ("meeting", group, meetings[group])
            meetings[group] += 1
        else:
            term = (node.op, node.args, tuple(found[source] for source in node.src))
        found[node] = terms.setdefault(term, len(terms))
    return found


def _content(leaf: Node) -> object:
    """What tells a weight or a constant from another one."""
    return leaf.name if leaf.op == "weight" else (leaf.type, leaf.arg("value").array.tobytes())
