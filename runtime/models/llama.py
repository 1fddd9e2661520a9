"""Llama 1, 2 and 3.x (and what is shaped like it): grouped-query attention, SwiGLU, rotary pairs of
neighbours; and Mixtral, which is the same with experts.
"""

from satchel.formats.convert.mapping import (
    ATTENTION_NEIGHBOURS,
    DENSE_GUARDS,
    DENSE_KEYS,
    LLAMA_BODY,
    NORMS,
    OUTSIDE,
    ArchMapping,
    Guard,
    Key,
    Rule,
)
from satchel.runtime.arch import Arch
from satchel.runtime.blocks import pre_norm_layer
from satchel.runtime.graph import Node
from satchel.runtime.mixture import experts

MAPPING = ArchMapping(
    classes=("LlamaForCausalLM", "LLaMAForCausalLM"),
    model_type="llama",
    arch="llama",
    rules=LLAMA_BODY,
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
)
_MOE = "model.layers.{i}.block_sparse_moe."
_NAMES = (("w1", "gate"), ("w3", "up"), ("w2", "down"))
MIXTRAL = ArchMapping(
    classes=("MixtralForCausalLM",),
    model_type="mixtral",
    arch="llama",
    rules=(
        *OUTSIDE,
        *NORMS,
        *ATTENTION_NEIGHBOURS,
        Rule(f"{_MOE}gate", "blk.{i}.ffn_gate_inp", suffixes=("weight",)),
        *(
            Rule(f"{_MOE}experts.{{e}}.{a}", f"blk.{{i}}.ffn_{b}_exps", suffixes=("weight",))
            for a, b in _NAMES
        ),
    ),
    keys=(
        *DENSE_KEYS,
        Key("expert_count", ("num_local_experts",)),
        Key("expert_used_count", ("num_experts_per_tok",)),
    ),
    guards=(*DENSE_GUARDS, Guard("sliding_window", (None,), None)),
)
MAPPINGS = (MAPPING, MIXTRAL)


def mixture(a: Arch, x: Node, i: int) -> Node:
    """Mixtral's experts are of the dense feed-forward's size."""
    size = a.hp.each_layer("feed_forward_length", a.layers)[i]
    return experts(a, x, i, size=a.hp.uint("expert_feed_forward_length", size))


class Llama(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        if self.hp.uint("expert_count", 0, low=0):
            return pre_norm_layer(self, x, i, feed=mixture)
        return pre_norm_layer(self, x, i)
