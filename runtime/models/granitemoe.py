"""Granite 3 mixture of experts: Granite's layer with a few of many SwiGLUs for each token, in some beside one
that all tokens share.
"""

from satchel.formats.convert.mapping import (
    ATTENTION_NEIGHBOURS,
    DENSE_GUARDS,
    DENSE_KEYS,
    FACTOR_KEYS,
    LOCAL_EXPERT_KEYS,
    NORMS,
    OUTSIDE,
    ArchMapping,
    Key,
    Rule,
    unneeded,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.mixture import wide_experts
from satchel.runtime.models.granite import Granite

_LAYER = "model.layers.{i}."
_HALVES = (("first_rows", "gate"), ("second_rows", "up"))


def halves_of(part: str, ending: str = "") -> tuple[Rule, ...]:
    """Gate and up, which a checkpoint has in one tensor, as ffn_gate and ffn_up with this ending."""
    source = f"{_LAYER}{part}.input_linear"
    return tuple(
        Rule(source, f"blk.{{i}}.ffn_{name}{ending}", suffixes=("weight",), made=made)
        for made, name in _HALVES
    )


FEED = (
    Rule(f"{_LAYER}block_sparse_moe.router.layer", "blk.{i}.ffn_gate_inp", suffixes=("weight",)),
    *halves_of("block_sparse_moe", "_exps"),
    Rule(f"{_LAYER}block_sparse_moe.output_linear", "blk.{i}.ffn_down_exps", suffixes=("weight",)),
    *unneeded(
        *halves_of("shared_mlp", "_shexp"),
        Rule(f"{_LAYER}shared_mlp.output_linear", "blk.{i}.ffn_down_shexp", suffixes=("weight",)),
    ),
)
MAPPING = ArchMapping(
    classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    model_type="granitemoe",
    arch="granitemoe",
    rules=(
        *OUTSIDE,
        *NORMS,
        *ATTENTION_NEIGHBOURS,
        *FEED,
    ),
    keys=(
        *DENSE_KEYS,
        *FACTOR_KEYS,
        *LOCAL_EXPERT_KEYS,
        Key("expert_shared_feed_forward_length", ("shared_intermediate_size",), optional=True),
    ),
    guards=DENSE_GUARDS,
)


class GraniteMoe(Granite):
    def feed(self, a: Arch, x: Node, i: int) -> Node:
        return wide_experts(a, x, i)
