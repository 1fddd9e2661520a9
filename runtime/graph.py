"""The op graph. Nodes are immutable and hash-consed: equal work is one node, and work that no root needs is
never reached.

This module knows no op, no format and no device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Dim:
    """A first dimension whose size is known only at each step."""

    name: str
    count: int  # index into the counts of the step block
    ranks: int = 1  # of a rank's own tokens: the number of ranks that the step's tokens are divided among

    def __repr__(self) -> str:
        return self.name


TOKENS = Dim("tokens", 0)
ROWS = Dim("rows", 1)


def own_tokens(ranks: int) -> Dim:
    """The tokens of a step whose rows a rank of a group has alone (HAL_COUNT_OWN), see `own_rows`."""
    return Dim("own tokens", 2, ranks)


def own_rows(tokens: int, rank: int, ranks: int) -> slice:
    """The rows of a step of so many tokens that are a rank's own: one stretch for each rank, in order, whose
    lengths differ by one at most.
    """
    return slice(tokens * rank // ranks, tokens * (rank + 1) // ranks)


class Type(NamedTuple):
    """Shape and element or block format of a tensor."""

    shape: tuple[int | Dim, ...]  # outermost first; only the first dimension may be a Dim
    format: str = "f32"

    def __repr__(self) -> str:
        return f"{self.format}[{', '.join(map(str, self.shape))}]"


class Literal:
    """A constant array among a node's arguments. Literals with equal contents are equal and hash alike."""

    def __init__(self, array: Array) -> None:
        self.array = np.ascontiguousarray(array)
        self.array.flags.writeable = False
        self._digest = hashlib.sha256(
            self.array.tobytes() + str((array.dtype, array.shape)).encode()
        ).digest()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._digest == other._digest

    def __repr__(self) -> str:
        return f"<{self.array.size} numbers>"


Arg = str | int | float | tuple[int, ...] | Literal


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One value of the graph: an op applied to sources and arguments, or a leaf."""

    op: str  # "input", "weight", "state" or "const" for a leaf
    src: tuple[Node, ...]
    args: tuple[tuple[str, Arg], ...]
    type: Type
    name: str  # identifies a leaf; labels any other node
    graph: Graph = field(repr=False)

    def arg(self, key: str) -> Any:
        return dict(self.args)[key]

    @property
    def shape(self) -> tuple[int | Dim, ...]:
        return self.type.shape

    @property
    def width(self) -> int:
        """The last dimension. Raises TypeError if it is a Dim, as in a vector (T)."""
        last = self.type.shape[-1]
        if isinstance(last, Dim):
            raise TypeError(f"{self.op} {self.name}: {self.type} has no fixed width")
        return last


Roots = tuple[Node, ...]
LEAVES = frozenset({"input", "weight", "state", "const"})


class Graph:
    """Makes nodes and keeps each distinct one once. While `label` is set, new nodes without a name get it."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[object, ...], Node] = {}
        self.label = ""
        self.verified: set[Node] = set()  # nodes that are right by themselves: compiler/verify.py
        self.sorted: tuple[Roots, tuple[Node, ...]] = ((), ())  # the last roots of toposort(), and its answer

    def node(self, op: str, src: tuple[Node, ...], type: Type, name: str = "", **args: Arg) -> Node:
        """The node of this op, sources and arguments; the same one for equal calls. Leaves differ by name."""
        fixed = tuple(sorted(args.items()))
        key = (op, src, fixed, name if op in LEAVES else "")
        if key not in self._nodes:
            self._nodes[key] = Node(op, src, fixed, type, name or self.label, self)
        found = self._nodes[key]
        if found.type != type:
            raise TypeError(f"{op} {name}: exists with type {found.type}, requested as {type}")
        return found

    def const(self, array: Array, format: str, name: str = "") -> Node:
        return self.node("const", (), Type(array.shape, format), name, value=Literal(array))


def toposort(roots: Iterable[Node]) -> tuple[Node, ...]:
    """All nodes that the roots depend on, sources first, in the order of a depth-first walk. The order of the
    last roots is kept: passes ask for it in turn.
    """
    roots = tuple(roots)
    if not roots:
        return ()
    graph = roots[0].graph
    before, order = graph.sorted
    if before != roots:
        order = _walked(roots)
        graph.sorted = roots, order
    return order


def _walked(roots: Roots) -> tuple[Node, ...]:
    order: list[Node] = []
    begun: set[Node] = set()
    done: set[Node] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        if node not in begun:
            begun.add(node)
            stack.extend([source for source in reversed(node.src) if source not in begun])
        elif stack.pop() not in done:
            done.add(node)
            order.append(node)
    return tuple(order)


def readers(roots: tuple[Node, ...]) -> dict[Node, int]:
    """Number of readers of each node. Being a root counts as one."""
    count = dict.fromkeys(roots, 1)
    for node in toposort(roots):
        for source in node.src:
            count[source] = count.get(source, 0) + 1
    return count


Rule = Callable[[Node, tuple[Node, ...]], Node | None]


def rewrite(roots: Roots, rule: Rule) -> Roots:
    """Rebuilds the graph, sources first. The rule receives each old node and its new sources, and returns a
    replacement, or None to keep the node.
    """
    new: dict[Node, Node] = {}
    for node in toposort(roots):
        src = tuple([new[s] for s in node.src])
        new[node] = rule(node, src) or (node if src == node.src else _over(node, src))
    return tuple(new[root] for root in roots)


def _over(node: Node, src: tuple[Node, ...]) -> Node:
    """The same node over other sources."""
    return node.graph.node(node.op, src, node.type, node.name, **dict(node.args))


def leaves(roots: Roots, op: str) -> Iterator[Node]:
    return (node for node in toposort(roots) if node.op == op)
