"""Qwen 3 mixture of experts: Qwen 3's layer with a few of many small SwiGLUs for each token."""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_GUARDS,
    DENSE_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    NORMS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer
from satchel.runtime.layers.mixture import experts

MAPPING = ArchMapping(
    classes=("Qwen3MoeForCausalLM",),
    model_type="qwen3_moe",
    arch="qwen3moe",
    rules=(*OUTSIDE, *NORMS, *ATTENTION, *HEAD_NORMS, *EXPERTS),
    keys=(*DENSE_KEYS, *EXPERT_KEYS),
    guards=(
        *DENSE_GUARDS,
        ConfigCheck("norm_topk_prob", (True,), False),
        ConfigCheck("decoder_sparse_step", (1,), 1),
        ConfigCheck("mlp_only_layers", ([],), []),
    ),
)


class Qwen3Moe(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, feed=experts)
