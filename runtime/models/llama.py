"""Llama 1, 2 and 3.x (and what is shaped like it): grouped-query attention, SwiGLU, rotary pairs of
neighbours.
"""

from satchel.formats.convert.mapping import DENSE_GUARDS, DENSE_KEYS, LLAMA_BODY, ArchMapping
from satchel.runtime.arch import Arch
from satchel.runtime.blocks import pre_norm_layer
from satchel.runtime.graph import Node

MAPPING = ArchMapping(
    classes=("LlamaForCausalLM", "LLaMAForCausalLM"),
    model_type="llama",
    arch="llama",
    rules=LLAMA_BODY,
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
)


class Llama(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)
