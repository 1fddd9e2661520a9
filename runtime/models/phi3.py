"""Phi 3, 3.5 and 4 (Phi 4 mini too): Llama's layer with Q, K and V in one tensor and gate and up in another,
rotary pairs of halves over a part of each head, LongRoPE, and maybe a sliding window.
"""

from satchel.formats.convert.mapping import (
    DENSE_GUARDS,
    DENSE_KEYS,
    FUSED_SWIGLU,
    NORMS,
    OUTSIDE,
    ArchMapping,
    Key,
    Rule,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer

MAPPING = ArchMapping(
    classes=("Phi3ForCausalLM",),
    model_type="phi3",
    arch="phi3",
    rules=(
        *OUTSIDE,
        *NORMS,
        Rule("model.layers.{i}.self_attn.qkv_proj", "blk.{i}.attn_qkv"),
        Rule("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output"),
        *FUSED_SWIGLU,
    ),
    keys=(*DENSE_KEYS, Key("attention.sliding_window", ("sliding_window",), optional=True)),
    guards=DENSE_GUARDS,
    partial=True,
)


class Phi3(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)

    def window(self, i: int) -> int:
        return self.hp.uint("attention.sliding_window", 0, low=0, high=1 << 30)
