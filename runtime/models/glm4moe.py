"""GLM 4.5, 4.6 and 4.7 (mixture of experts): some dense layers, then experts beside shared ones, picked as
DeepSeek V3 picks them; rotary halves over half of each head.
"""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_GUARDS,
    DENSE_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    OUTSIDE,
    SCORE_BIAS,
    SHARED_EXPERTS,
    SWIGLU,
    ArchMapping,
    ConfigReader,
    Key,
    Rule,
    unneeded,
)
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import attention, swiglu
from satchel.runtime.layers.mixture import experts, router_of


def _extra(reader: ConfigReader) -> None:
    reader.put("expert_gating_func", 2)
    reader.put("expert_weights_norm", bool(reader.config.get("norm_topk_prob", True)))


MAPPING = ArchMapping(
    classes=("Glm4MoeForCausalLM",),
    model_type="glm4_moe",
    arch="glm4moe",
    rules=(
        *OUTSIDE,
        Rule("model.layers.{i}.input_layernorm", "blk.{i}.attn_norm", suffixes=("weight",)),
        Rule(
            "model.layers.{i}.post_attention_layernorm", "blk.{i}.post_attention_norm", suffixes=("weight",)
        ),
        *ATTENTION,
        *unneeded(*HEAD_NORMS, *SWIGLU, *EXPERTS, *SHARED_EXPERTS),
        SCORE_BIAS,
    ),
    keys=(
        *DENSE_KEYS,
        *EXPERT_KEYS,
        Key("leading_dense_block_count", ("first_k_dense_replace",)),
        Key("expert_shared_count", ("n_shared_experts",)),
        Key("expert_weights_scale", ("routed_scaling_factor",), float, optional=True),
        Key("expert_group_count", ("n_group",)),
        Key("expert_group_used_count", ("topk_group",)),
    ),
    guards=DENSE_GUARDS,
    extra=_extra,
    partial=True,
    partial_rotary_factor=0.5,
)


class Glm4Moe(Arch):
    def layer(self, x: Node, i: int) -> Node:
        x = ops.add(x, attention(self, self.norm(x, f"blk.{i}.attn_norm"), i))
        y = self.norm(x, f"blk.{i}.post_attention_norm")
        return ops.add(x, self._feed(y, i))

    def _feed(self, x: Node, i: int) -> Node:
        if i < self.hp.uint("leading_dense_block_count", 0, low=0):
            return swiglu(self, x, i)
        return experts(self, x, i, router=router_of(self, sigmoid=True))
