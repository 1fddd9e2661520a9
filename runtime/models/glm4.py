"""GLM 4 (dense, 0414): norms around both parts of a layer, rotary pairs of neighbours over half of each head,
gate and up in one tensor.
"""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_GUARDS,
    DENSE_KEYS,
    FUSED_SWIGLU,
    OUTSIDE,
    ArchMapping,
    Rule,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import post_norm_layer

_LAYER = "model.layers.{i}."

MAPPING = ArchMapping(
    classes=("Glm4ForCausalLM",),
    model_type="glm4",
    arch="glm4",
    rules=(
        *OUTSIDE,
        Rule(f"{_LAYER}input_layernorm", "blk.{i}.attn_norm", suffixes=("weight",)),
        Rule(f"{_LAYER}post_self_attn_layernorm", "blk.{i}.post_attention_norm", suffixes=("weight",)),
        Rule(f"{_LAYER}post_attention_layernorm", "blk.{i}.ffn_norm", suffixes=("weight",)),
        Rule(f"{_LAYER}post_mlp_layernorm", "blk.{i}.post_ffw_norm", suffixes=("weight",)),
        *ATTENTION,
        *FUSED_SWIGLU,
    ),
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
    partial=True,
)


class Glm4(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        return post_norm_layer(self, x, i)
