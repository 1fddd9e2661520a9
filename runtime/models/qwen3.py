"""Qwen 3: Llama's layer with QK-norm per head and NeoX RoPE."""

from satchel.formats.convert.mapping import (
    DENSE_BODY,
    DENSE_GUARDS,
    DENSE_KEYS,
    HEAD_NORMS,
    ArchMapping,
    all_see_all,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer

MAPPING = ArchMapping(
    classes=("Qwen3ForCausalLM",),
    multimodal=("Qwen3VLForConditionalGeneration",),
    model_type="qwen3",
    arch="qwen3",
    rules=(*DENSE_BODY, *HEAD_NORMS),
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
    extra=all_see_all,
)


class Qwen3(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)
