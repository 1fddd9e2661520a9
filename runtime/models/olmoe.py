"""OLMoE: Llama's layer with Q and K normed over all heads together and a few of many SwiGLUs for each
token, weighed by a softmax over all.
"""

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
    none_near,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer
from satchel.runtime.layers.mixture import router_of, wide_experts

MAPPING = ArchMapping(
    classes=("OlmoeForCausalLM",),
    model_type="olmoe",
    arch="olmoe",
    rules=(*OUTSIDE, *NORMS, *ATTENTION, *HEAD_NORMS, *EXPERTS),
    keys=(*DENSE_KEYS, *EXPERT_KEYS[:2]),
    guards=(*DENSE_GUARDS, ConfigCheck("norm_topk_prob", (False,), False), ConfigCheck("clip_qkv", (None,))),
    extra=none_near,
)


class Olmoe(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, feed=_feed)


def _feed(a: Arch, x: Node, i: int) -> Node:
    return wide_experts(a, x, i, router=router_of(a))
