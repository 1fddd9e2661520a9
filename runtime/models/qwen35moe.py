"""Qwen 3.5 mixture of experts (text): Qwen 3.5's layers with many small experts beside one that all tokens
use.
"""

from satchel.formats.convert.hybrid import (
    DELTA_KEYS,
    DELTA_NORMS,
    GATED_ATTENTION,
    MORE_TOKENS,
    SHARED_EXPERT,
    STACKED_EXPERTS,
    TILED_NET,
    sections_extra,
)
from satchel.formats.convert.mapping import (
    DENSE_GUARDS,
    DENSE_KEYS,
    EXPERT_KEYS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
    plus_one,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.delta import Hybrid
from satchel.runtime.layers.mixture import experts

MAPPING = ArchMapping(
    classes=("Qwen3_5MoeForCausalLM",),
    model_type="qwen3_5_moe_text",
    arch="qwen35moe",
    rules=(
        *plus_one((*OUTSIDE, *DELTA_NORMS)),
        *GATED_ATTENTION,
        *TILED_NET,
        *STACKED_EXPERTS,
        *SHARED_EXPERT,
    ),
    keys=(*(key for key in DENSE_KEYS if key.target != "feed_forward_length"), *EXPERT_KEYS, *DELTA_KEYS),
    guards=(*DENSE_GUARDS, ConfigCheck("attention_bias", (False,), False)),
    left_out=(MORE_TOKENS,),
    extra=sections_extra,
    partial=True,
)


class Qwen35Moe(Hybrid):
    tiled = True

    def layer(self, x: Node, i: int) -> Node:
        return self.hybrid_layer(x, i, feed=experts)
