"""What a group of devices divides and what its members meet for, for `satchel plan`."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from satchel.quant import FORMATS
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.graph import LEAVES, Node, Roots, toposort
from satchel.runtime.ops.op import OPS, op_of
from satchel.runtime.shard.pieces import Piece
from satchel.runtime.shard.sharding import Sharding

FEW_ROWS = "it has few rows"


class GroupReport(NamedTuple):
    """A model on a group of devices. Bytes are those that one member brings."""

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


def report(optimized: Optimized, sharding: Sharding) -> GroupReport:
    reduces = _collectives(optimized, "reduce_add")
    every = _collectives(optimized, "gather_columns")
    of_blocks = [node for node in every if node.name.startswith("blk.")]
    gathers = [node for node in every if node not in of_blocks]
    held = [_matrices(own.roots) for own in optimized.all]
    names = {w.name for own in held for w in own}
    whole = {n for n in names if all(n in {w.name for w in own} for own in held)}
    sizes = {w.name: _nbytes(w) for own in held for w in own}
    # A border block that two members have counts twice.
    total = sum(sizes.values())
    reasons = {kind_of(name): sharding.whole.get(name, FEW_ROWS) for name in sorted(whole)}
    return GroupReport(
        optimized.group,
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


def _collectives(optimized: Optimized, op: str) -> list[Node]:
    return [node for node in toposort(optimized.roots) if node.op == op]


def _matrices(roots: Roots) -> set[Node]:
    """Weights of products and look-ups."""
    found = (n for n in toposort(roots) if n.op not in LEAVES and op_of(n) is not None)
    return {s for n in found for s in n.src[OPS[n.op].weights] if s.op == "weight"}


def _nbytes(weight: Node) -> int:
    rows = prod(d for d in weight.shape[:-1] if isinstance(d, int))
    return FORMATS[weight.type.format].row_bytes(weight.width) * rows


def kind_of(name: str) -> str:
    """A tensor's name without the number of its layer."""
    tensor = Piece.of(name).tensor.removesuffix(".weight")
    return tensor.split(".", 2)[2] if tensor.startswith("blk.") else tensor
