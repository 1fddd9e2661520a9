"""Pass: inserts `quantize` where a product wants quantized activations. Nodes are hash-consed, so Q, K and V
share one.

Activations stay float32 where the weights have no blocks, where the device has no such product (a GPU
quantizes within its kernels), and where a row is not a whole number of blocks. 16-bit activations, if
requested, are bfloat16.
"""

from __future__ import annotations

from satchel.errors import RequestError
from satchel.quant import FORMATS, Format
from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.graph import Node, Roots, rewrite
from satchel.runtime.ops.op import op_of

WIDE = "bf16"  # the format of 16-bit activations


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
                    f"16-bit activations: {device} cannot multiply {fmt.name} with {WIDE} ({refusal}); use 8"
                )
        return None

    return rewrite(roots, rule)


def _choices(fmt: Format, bits: int) -> tuple[str | None, ...]:
    """Candidate activation formats for these weights; the first that the device supports is taken."""
    return (WIDE, fmt.act) if bits == 16 and fmt.block > 1 else (fmt.act,)
