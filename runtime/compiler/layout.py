"""Pass: converts activations to the format that the weights' products want. Equal nodes are one, so Q, K and
V share it. Where the device has no such product (a GPU quantizes within its kernels), or a row is no whole
number of the format's blocks, activations stay float32, which weights without blocks meet too. Activations of
16 bits, where they are asked for, are bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from satchel.errors import RequestError
from satchel.quant import FORMATS, Format
from satchel.runtime import ops
from satchel.runtime.graph import Node, Roots, rewrite
from satchel.runtime.ops.op import op_of

if TYPE_CHECKING:
    from satchel.runtime.compiler import Context

WIDE = "bf16"  # activations of 16 bits


def layout(roots: Roots, context: Context) -> Roots:
    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        made_by = op_of(node)
        if made_by is None or not made_by.product or src[0].type.format != "f32":
            return None
        fmt, device = FORMATS[src[1].type.format], context.wanted(node)
        node.graph.label = node.name
        for act in _choices(fmt, context.activations):
            if act is None or src[0].width % FORMATS[act].block:
                return None
            made = made_by(ops.quantize(src[0], format=act), *src[1:])
            refusal = context.target(device).refusal(made)
            if not refusal:
                return made
            if act == WIDE and fmt.block > 1 and context.demanded:
                raise RequestError(
                    f"activations of 16 bits: {device} cannot multiply {fmt.name} with {WIDE} ({refusal});"
                    " take 8"
                )
        return None

    return rewrite(roots, rule)


def _choices(fmt: Format, bits: int) -> tuple[str | None, ...]:
    """Formats of activations for these weights, the first that the device multiplies with counts."""
    return (WIDE, fmt.act) if bits == 16 and fmt.block > 1 else (fmt.act,)
