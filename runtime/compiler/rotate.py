"""Pass: Hadamard rotation of the heads in quantized KV caches (formats in ROTATED), which spreads outliers.

Keys and values are rotated before they are written. Queries of such keys are rotated as well, which keeps the
scores; what attention sums of such values is rotated back: the rotation is its own inverse.
"""

from __future__ import annotations

from satchel.errors import RequestError
from satchel.quant.cache import ROTATED
from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import Node, Roots, rewrite
from satchel.runtime.ops.op import op_of


def rotate(roots: Roots, context: Context) -> Roots:
    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        made_by = op_of(node)
        caches = () if made_by is None else src[made_by.cache]
        rotated = [cache.type.format in ROTATED for cache in caches]
        if made_by is None or not any(rotated):
            return None
        node.graph.label = node.name
        if made_by.alias:
            return made_by(src[0], ops.hadamard(src[1]), *src[2:], **dict(node.args))
        first = ops.hadamard(src[0]) if rotated[0] else src[0]
        y = made_by(first, *src[1:], **dict(node.args))
        return _back(y, caches[1]) if rotated[1:] == [True] else y

    return rewrite(roots, rule)


def _back(y: Node, values: Node) -> Node:
    """y (T, N), what attention sums of rotated values, rotated back in the blocks of ops.hadamard."""
    block = values.width & -values.width
    if (rank := y.arg("value")) % block:
        raise RequestError(f"a {values.type.format} cache cannot hold latents of {rank} elements: take f16")
    heads = ops.reshape(y, shape=(y.width // block, block))
    return ops.reshape(ops.hadamard(heads), shape=(y.width,))
