"""Pass over a member's placed graph, for the plan of one bucket: sequence parallelism of a group. Between an
all-reduce and the products that read it, each member computes its own rows alone: the all-reduce becomes a
reduce_scatter, the residual stream stays divided by rows, and the normed rows are gathered.

A value is divided by rows where each of its readers is computed by rows too, is a norm's reader, or reads it
once a step (gather_rows before the last layer's end, the copy to the next stage of a pipeline). Everything
else stays as it is, so a graph that has no such value is left alone. Whole values have the bits that they
have without the pass, unless a device rounds the gathered rows.

What crosses between the stages of a pipeline is whole, so the pass runs for each of its groups by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace

from satchel.errors import RequestError
from satchel.runtime import ops
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.graph import LEAVES, TOKENS, Node, Roots, toposort
from satchel.runtime.ops.op import OPS
from satchel.runtime.plan import Bucket

NAME = "SATCHEL_GROUP_SEQUENCE"  # 0: never; N: in steps of N tokens and more; 1: as unset, of LEAST
LEAST = 1024  # two H200s were 6 % faster at 2,048 and 4,096 tokens (docs/parallel.md)
NORMS = frozenset({"rms_norm", "layer_norm"})
BY_ROWS = NORMS | {"rms_norm_add", "add", "mul"}
ONCE = frozenset({"gather_rows", "copy"})  # readers of a whole residual stream, of which a step has few


def least_tokens() -> int:
    """Tokens of a step from which on its group divides rows; 0: never. Raises RequestError where the variable
    is no number.
    """
    asked = os.environ.get(NAME) or "1"
    if not (asked.isascii() and asked.isdecimal()):
        raise RequestError(
            f"{NAME} is {asked!r:.40}: expected the tokens of a step from which on a group divides its rows,"
            f" 0 for never, or 1 for the usual {LEAST:,}"
        )
    return LEAST if int(asked) == 1 else int(asked)


def divide_rows(optimized: Optimized, bucket: Bucket, members: Collection[str]) -> Optimized:
    """The member's graph for this bucket, with the rows of what is on a group divided among its members; the
    same graph where its device lacks the collectives. members: their names.
    """
    device = optimized.assignment.device
    found = divided(optimized.roots, lambda node: device[node] in members)
    if not found:
        return optimized
    work = _Rows(optimized, bucket, len(members), found)
    roots = tuple(work.whole(root) for root in optimized.roots)
    if work.refused:
        return optimized
    assignment = replace(optimized.assignment, roots=roots, device=work.device)
    return replace(optimized, roots=roots, assignment=assignment)


def divided(roots: Roots, here: Callable[[Node], bool] = lambda node: True) -> frozenset[Node]:
    """The values that are divided by rows. here: whether a node is on the group."""
    order = toposort(roots)
    readers: dict[Node, list[Node]] = {}
    for node in order:
        for source in node.src:
            readers.setdefault(source, []).append(node)
    banned = set[Node]()
    while True:
        found = set[Node]()
        for node in order:
            if node not in banned and _can(node, found) and here(node):
                found.add(node)
        spilled = {n for n in found if n.op not in NORMS and _spilled(n, readers.get(n, ()), found, roots)}
        if not spilled:
            return frozenset(found)
        banned |= spilled


def _can(node: Node, found: Collection[Node]) -> bool:
    """Whether a node can be computed by rows, where these values are divided."""
    if node.op in LEAVES or node.shape[:1] != (TOKENS,) or len(node.shape) != 2 or node.type.format != "f32":
        return False
    if node.op == "reduce_add":
        return all(len(s.shape) == 2 for s in node.src)
    by_token = [s for s in node.src if s.shape[:1] == (TOKENS,)]
    return node.op in BY_ROWS and bool(by_token) and all(s in found for s in by_token)


def _spilled(node: Node, readers: Collection[Node], found: Collection[Node], roots: Roots) -> bool:
    """Whether all rows of a divided value are needed in each layer, or no reader takes its own rows alone."""
    by_rows = [r for r in readers if _reads_rows(r, node, found)]
    # The end of a stage is copied alone. It is divided where it carries on a divided stream, which would be
    # needed whole otherwise.
    ends = any(s in found for s in node.src) and all(r.op == "copy" for r in readers)
    kept = bool(by_rows) or ends
    return node in roots or not kept or any(r.op not in ONCE for r in readers if r not in by_rows)


def _reads_rows(reader: Node, source: Node, found: Collection[Node]) -> bool:
    """Whether a reader takes a rank's own rows of a divided value."""
    if reader.op == "norm_quantize":
        return reader.src[0] is source
    return reader in found and not (reader.op == "reduce_add" and reader.src[0] is source)


class _Rows:
    """A graph whose rows are divided, under construction."""

    def __init__(self, optimized: Optimized, bucket: Bucket, ranks: int, found: frozenset[Node]) -> None:
        self.bucket, self.ranks, self.found = bucket, ranks, found
        self.placed = optimized.assignment.device
        self.targets = {target.name: target for target in optimized.targets}
        self.device: dict[Node, str] = {}
        self.refused = False
        self._whole: dict[Node, Node] = {}
        self._own: dict[Node, Node] = {}
        self._exact = frozenset(optimized.roots)
        for node in toposort(optimized.roots):  # sources first, so no chain of sources is long
            if node not in found:
                self.whole(node)
            elif node.op not in NORMS:
                self.own(node)

    def whole(self, node: Node) -> Node:
        """All rows of a value."""
        if node not in self._whole:
            self._whole[node] = node if node.op in LEAVES else self._made_whole(node)
        return self._whole[node]

    def own(self, node: Node) -> Node:
        """The rank's own rows of a divided value."""
        if node not in self._own:
            node.graph.label = node.name
            if node.op == "reduce_add":
                y, *rest = node.src
                kept = (self.own(r) if r in self.found else self.whole(r) for r in rest)
                made = self._taken(node, ops.reduce_scatter(self.whole(y), *kept, ranks=self.ranks))
            else:
                src = (self.own(s) if s in self.found else self.whole(s) for s in node.src)
                made = self._put(node, OPS[node.op](*src, **dict(node.args)))
            self._own[node] = made
        return self._own[node]

    def _made_whole(self, node: Node) -> Node:
        node.graph.label = node.name
        if node in self.found:
            return self._gathered(node)
        if node.op == "norm_quantize" and node.src[0] in self.found:
            x, w = node.src
            normed = self._normed(node, self.own(x), self.whole(w), node.arg("eps"))
            return self._put(node, ops.quantize(normed, format=node.arg("format")))
        src = tuple(self.whole(s) for s in node.src)
        return self._put(node, node.graph.node(node.op, src, node.type, node.name, **dict(node.args)))

    def _gathered(self, node: Node) -> Node:
        rounds = int(node.op in NORMS and node not in self._exact)
        if node.op == "rms_norm":
            return self._normed(node, self.own(node.src[0]), self.whole(node.src[1]), node.arg("eps"), rounds)
        return self._taken(node, ops.all_gather(self.own(node), ranks=self.ranks, rounds=rounds))

    def _normed(self, node: Node, x: Node, w: Node, eps: float, rounds: int = 1) -> Node:
        """All rows of rms_norm(x, w), by one step where the device has it."""
        fused = ops.norm_all_gather(x, w, eps=eps, ranks=self.ranks, rounds=rounds)
        if not self.targets[self.placed[node]].refusal(fused, self.bucket):
            return self._put(node, fused)
        own = self._put(node, ops.rms_norm(x, w, eps=eps))
        return self._taken(node, ops.all_gather(own, ranks=self.ranks, rounds=rounds))

    def _taken(self, node: Node, made: Node) -> Node:
        """A collective in the place of a node, if the device has it."""
        self.refused = self.refused or bool(self.targets[self.placed[node]].refusal(made, self.bucket))
        return self._put(node, made)

    def _put(self, node: Node, made: Node) -> Node:
        self.device[made] = self.placed[node]
        return made
