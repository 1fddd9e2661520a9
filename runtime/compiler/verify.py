"""Invariants of a graph after every pass, and of a finished plan. A failure is a bug of the compiler,
reported by node or step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from satchel.quant import BY_ID, FORMATS
from satchel.runtime.graph import LEAVES, Dim, Node, Roots, toposort
from satchel.runtime.ops import OPS
from satchel.runtime.ops.op import op_of
from satchel.runtime.plan import ALIGN, PACKED, Plan, Segment


class PlanError(AssertionError):
    """A pass broke an invariant."""


def verify_graph(roots: Roots) -> None:
    """Ops and formats are known, types follow the shape rules, and a state is written after every read of its
    old value.
    """
    order = toposort(roots)
    for node in order:
        verified = node.graph.verified
        if node not in verified:
            _verify_node(node)
            verified.add(node)
    _verify_in_place(order)


def _verify_node(node: Node) -> None:
    """What depends on the node alone, which does not change: it is looked at once."""
    if node.type.format not in FORMATS:
        raise PlanError(f"{node.op} {node.name}: unknown format {node.type.format}")
    if any(isinstance(d, Dim) for d in node.shape[1:]):
        raise PlanError(f"{node.op} {node.name}: only the first dimension may vary, got {node.type}")
    if node.op in LEAVES or node.op == "copy":
        return
    if node.op not in OPS:
        raise PlanError(f"{node.op} {node.name}: no such op")
    wanted = OPS[node.op].rule(*(s.type for s in node.src), **dict(node.args))
    if wanted != node.type:
        raise PlanError(f"{node.op} {node.name}: the shape rule gives {wanted}, the node has {node.type}")


def _verify_in_place(order: Sequence[Node]) -> None:
    place = {node: i for i, node in enumerate(order)}
    writer: dict[Node, Node] = {}
    for node in order:
        made_by = op_of(node)
        for old in made_by.written(node) if made_by else ():
            if old in writer and writer[old] is not node:
                raise PlanError(f"{node.op} {node.name}: {old.op} {old.name} is overwritten twice")
            writer[old] = node
    for node in order:
        for source in node.src:
            change = writer.get(source)
            known = change is node or change in node.src  # it takes the new value
            if change is not None and not known and place[change] < place[node]:
                raise PlanError(
                    f"{node.op} {node.name} reads {source.name} after {change.op} has overwritten it"
                )


def verify_plan(plan: Plan) -> None:
    """Every view lies inside its buffer, and every table index is within range."""
    if not plan.segments:
        raise PlanError("the plan has no step")
    for segment in plan.segments:
        _verify_tables(segment)
        for i, view in enumerate(segment.view_table):
            end = int(view["offset"]) + _extent(view)
            buffer = segment.buffers[int(view["buffer"])]
            if view["format"] & PACKED and (view["stride"] or view["offset"] % ALIGN):
                raise PlanError(f"view {i} on {segment.device}: a packed weight at {view}")
            if end > buffer.size:
                raise PlanError(
                    f"view {i} on {segment.device}: ends at {end}, {buffer.name} has {buffer.size} bytes"
                )


def _verify_tables(segment: Segment) -> None:
    for row, step in zip(segment.step_table, segment.steps, strict=True):
        if int(row["op"]) >= len(segment.op_table) or int(row["view"]) + 1 + int(row["n_in"]) > len(
            segment.view_table
        ):
            raise PlanError(f"{step.label} {step.op}: its row points outside the tables")
        if int(row["arg"]) > len(segment.args):
            raise PlanError(f"{step.label} {step.op}: its arguments lie outside the table")


def _extent(view: np.void) -> int:
    """Bytes from a view's offset to the end of its last row; 1 for a packed weight, whose size only the
    device knows.
    """
    if view["format"] & PACKED:
        return 1
    fmt, shape = BY_ID[int(view["format"])], [int(d) for d in view["shape"][: int(view["ndim"])]]
    if 0 in shape:
        return 0
    inner = fmt.row_bytes(int(np.prod(shape[1:], dtype=np.int64))) if len(shape) > 1 else fmt.block_bytes
    return (shape[0] - 1) * int(view["stride"]) + inner
