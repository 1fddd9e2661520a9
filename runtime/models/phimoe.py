"""Phi 3.5 mixture of experts: Llama's layer with norms that take the mean away, biases, LongRoPE, and two of
many experts, each of which counts as much as it stands out among those that are left.
"""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_GUARDS,
    DENSE_KEYS,
    LOCAL_EXPERT_KEYS,
    MIXTRAL_EXPERTS,
    NORMS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
    none_near,
    with_bias,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer
from satchel.runtime.layers.mixture import Router, sizes, wide_experts
from satchel.runtime.ops import RIVAL

MAPPING = ArchMapping(
    classes=("PhiMoEForCausalLM", "PhimoeForCausalLM"),
    model_type="phimoe",
    arch="phimoe",
    rules=(*with_bias((*OUTSIDE, *NORMS)), *ATTENTION, *MIXTRAL_EXPERTS),
    keys=(*DENSE_KEYS, *LOCAL_EXPERT_KEYS),
    guards=(
        *DENSE_GUARDS,
        ConfigCheck("router_jitter_noise", (RIVAL / 2,), RIVAL / 2),
        ConfigCheck("num_experts_per_tok", (2,), 2),
    ),
    extra=none_near,
)


class Phimoe(Arch):
    centered = True
    epsilon = "layer_norm_rms_epsilon"

    def layer(self, x: Node, i: int) -> Node:
        if sizes(self)[1] != 2:
            raise self.hp.metadata.fault("phimoe.expert_used_count", "2", sizes(self)[1], "not supported")
        return pre_norm_layer(self, x, i, feed=_feed)


def _feed(a: Arch, x: Node, i: int) -> Node:
    return wide_experts(a, x, i, router=Router(norm=2))
