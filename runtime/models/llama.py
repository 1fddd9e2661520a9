"""Llama 1, 2 and 3.x (and what is shaped like it): grouped-query attention, SwiGLU, rotary pairs of
neighbours; and Mixtral, which is the same with experts.
"""

from satchel.formats.convert.mapping import (
    ATTENTION_NEIGHBOURS,
    DENSE_GUARDS,
    DENSE_KEYS,
    LLAMA_BODY,
    LOCAL_EXPERT_KEYS,
    MIXTRAL_EXPERTS,
    NORMS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer
from satchel.runtime.layers.mixture import wide_experts

MAPPING = ArchMapping(
    classes=("LlamaForCausalLM", "LLaMAForCausalLM"),
    model_type="llama",
    arch="llama",
    rules=LLAMA_BODY,
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
)
MIXTRAL = ArchMapping(
    classes=("MixtralForCausalLM",),
    model_type="mixtral",
    arch="llama",
    rules=(
        *OUTSIDE,
        *NORMS,
        *ATTENTION_NEIGHBOURS,
        *MIXTRAL_EXPERTS,
    ),
    keys=(*DENSE_KEYS, *LOCAL_EXPERT_KEYS),
    guards=(*DENSE_GUARDS, ConfigCheck("sliding_window", (None,), None)),
)
MAPPINGS = (MAPPING, MIXTRAL)


class Llama(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        if self.hp.uint("expert_count", 0, low=0):
            return pre_norm_layer(self, x, i, feed=wide_experts)
        return pre_norm_layer(self, x, i)
