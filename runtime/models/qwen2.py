"""Qwen 1.5, 2 and 2.5 (and R1 distills): Llama's layer with NeoX RoPE and biases on Q, K and V, used if the
file has them.
"""

from satchel.formats.convert.mapping import DENSE_BODY, DENSE_GUARDS, DENSE_KEYS, ArchMapping, all_see_all
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer

MAPPING = ArchMapping(
    classes=("Qwen2ForCausalLM",),
    model_type="qwen2",
    arch="qwen2",
    rules=DENSE_BODY,
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
    multimodal=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    flat=True,
    extra=all_see_all,
)


class Qwen2(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)
