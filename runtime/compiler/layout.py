"""Pass: activations are brought to the format that the weights' products want. Equal nodes are one, so Q, K
and V share it. Where the device has no such product, or a row is no whole number of the format's blocks,
activations stay float32, which weights without blocks meet too. Activations of 16 bits, where they are asked
for, are bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from satchel.quant import FORMATS, RequestError
from satchel.runtime.graph import Node, Roots, rewrite
from satchel.runtime.ops import OPS

if TYPE_CHECKING:
    from satchel.runtime.compiler import Context

WIDE = "bf16"  # activations of 16 bits
HALVES = "bf16x2"  # which not every backend multiplies: float32 serves there


def layout(roots: Roots, context: Context) -> Roots:
    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op not in ("linear", "expert_linear") or src[0].type.format != "f32":
            return None
        fmt = FORMATS[src[1].type.format]
        wide = context.activations == 16 and fmt.block > 1
        act = WIDE if wide else fmt.act
        if act is None or src[0].width % FORMATS[act].block:
            return None
        node.graph.label = node.name
        made = OPS[node.op](OPS["quantize"](src[0], format=act), *src[1:])
        if not wide and act != HALVES:
            return made
        refusal = context.target(context.wanted(node.name)).refusal(made)
        if refusal and wide:
            raise RequestError(
                f"activations of 16 bits: {context.wanted(node.name)} cannot multiply {fmt.name} with {WIDE}"
                f" ({refusal}); take 8"
            )
        return None if refusal else made

    return rewrite(roots, rule)
