"""Qwen 1.5 and 2 mixture of experts: Qwen 2's layer with a few of many small SwiGLUs for each token, beside
one that all tokens share under a gate of its own.
"""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_GUARDS,
    DENSE_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    NORMS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
    Key,
    Rule,
    all_see_all,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer
from satchel.runtime.layers.mixture import experts, router_of

_MLP = "model.layers.{i}.mlp."
MAPPING = ArchMapping(
    classes=("Qwen2MoeForCausalLM",),
    model_type="qwen2_moe",
    arch="qwen2moe",
    rules=(
        *OUTSIDE,
        *NORMS,
        *ATTENTION,
        *EXPERTS,
        *(
            Rule(f"{_MLP}shared_expert.{name}_proj", f"blk.{{i}}.ffn_{name}_shexp", suffixes=("weight",))
            for name in ("gate", "up", "down")
        ),
        Rule(f"{_MLP}shared_expert_gate", "blk.{i}.ffn_gate_inp_shexp", suffixes=("weight",), made="flat"),
    ),
    keys=(
        *DENSE_KEYS,
        *EXPERT_KEYS,
        Key("expert_shared_feed_forward_length", ("shared_expert_intermediate_size",)),
    ),
    guards=(
        *DENSE_GUARDS,
        ConfigCheck("norm_topk_prob", (False,), False),
        ConfigCheck("decoder_sparse_step", (1,), 1),
        ConfigCheck("mlp_only_layers", ([], None), []),
        ConfigCheck("qkv_bias", (True,), True),
    ),
    extra=all_see_all,
)


class Qwen2Moe(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, feed=_feed)


def _feed(a: Arch, x: Node, i: int) -> Node:
    return experts(a, x, i, router=router_of(a))
