"""GLM 4 9B (chatglm): Llama's layer with rotary pairs of neighbours over half of each head, biases on Q, K
and V, gate and up in one tensor.
"""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_GUARDS,
    DENSE_KEYS,
    FUSED_SWIGLU,
    NORMS,
    OUTSIDE,
    ArchMapping,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer

MAPPING = ArchMapping(
    classes=("GlmForCausalLM",),
    model_type="glm",
    arch="chatglm",
    rules=(*OUTSIDE, *NORMS, *ATTENTION, *FUSED_SWIGLU),
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
    partial=True,
    partial_rotary_factor=0.5,
)


class ChatGlm(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)
