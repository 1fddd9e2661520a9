"""Seed-OSS: Qwen 2's layer, whose second norm is named as the one behind the attention."""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_GUARDS,
    DENSE_KEYS,
    FOUR_NORMS,
    OUTSIDE,
    SWIGLU,
    ArchMapping,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer

MAPPING = ArchMapping(
    classes=("SeedOssForCausalLM",),
    model_type="seed_oss",
    arch="seed_oss",
    rules=(*OUTSIDE, *FOUR_NORMS[:2], *ATTENTION, *SWIGLU),
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
)


class SeedOss(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, second="post_attention_norm")
