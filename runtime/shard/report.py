"""What groups of devices divide and what their members meet for, for `satchel plan`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from satchel.quant import FORMATS
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.graph import Node
from satchel.runtime.ops.op import OPS, op_of
from satchel.runtime.shard.division import Division
from satchel.runtime.shard.pieces import Piece
from satchel.runtime.shard.sharding import Sharding

FEW_ROWS = "it has few rows"


class GroupReport(NamedTuple):
    """A group of devices that has layers of a model. Bytes are those that one member brings."""

    name: str
    members: int
    reduces: int  # all-reduces of a step
    reduce_bytes: int  # per token
    gathers: int  # of logits and the like
    gather_bytes: int  # per sampled token, of all members together
    blocks: int  # caches that are divided by blocks
    block_gathers: int  # gathers for these
    block_gather_bytes: int  # per token, of all members together
    divided: float  # percentage of the matrices' bytes that is divided
    whole: dict[str, str]  # why a kind of matrix is not divided


def report(optimized: Optimized, division: Division) -> list[GroupReport]:
    """The groups that have a part of the model."""
    return [_of_group(name, optimized, sharding) for name, sharding in division.shardings.items()]


def _of_group(name: str, optimized: Optimized, sharding: Sharding) -> GroupReport:
    members = optimized.groups[name]
    nodes = [_on(own, member) for own, member in zip(optimized.ranks, members, strict=False)]
    reduces = [node for node in nodes[0] if node.op == "reduce_add"]
    every = [node for node in nodes[0] if node.op == "gather_columns"]
    of_blocks = [node for node in every if node.name.startswith("blk.")]
    gathers = [node for node in every if node not in of_blocks]
    held = [_matrices(own) for own in nodes]
    names = {w.name for own in held for w in own}
    whole = {n for n in names if all(n in {w.name for w in own} for own in held)}
    sizes = {w.name: _nbytes(w) for own in held for w in own}
    # A border block that two members have counts twice.
    total = sum(sizes.values())
    reasons = {kind_of(name): sharding.whole.get(name, FEW_ROWS) for name in sorted(whole)}
    return GroupReport(
        name,
        sharding.ranks,
        len(reduces),
        sum(4 * node.width for node in reduces),
        len(gathers),
        sum(4 * node.width for node in gathers),
        len(sharding.blocks),
        len(of_blocks),
        sum(4 * node.width for node in of_blocks),
        100 * (total - sum(sizes[name] for name in whole)) / max(1, total),
        reasons,
    )


def _on(optimized: Optimized, device: str) -> list[Node]:
    """The nodes that a device computes."""
    return [node for node, where in optimized.assignment.device.items() if where == device]


def _matrices(nodes: Sequence[Node]) -> set[Node]:
    """Weights of products and look-ups."""
    found = (n for n in nodes if op_of(n) is not None)
    return {s for n in found for s in n.src[OPS[n.op].weights] if s.op == "weight"}


def _nbytes(weight: Node) -> int:
    rows = prod(d for d in weight.shape[:-1] if isinstance(d, int))
    return FORMATS[weight.type.format].row_bytes(weight.width) * rows


def kind_of(name: str) -> str:
    """A tensor's name without the number of its layer."""
    tensor = Piece.of(name).tensor.removesuffix(".weight")
    return tensor.split(".", 2)[2] if tensor.startswith("blk.") else tensor
