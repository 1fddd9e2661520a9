"""Qwen 3-Next: three layers of four are gated delta nets, the fourth attends; many small experts beside one
that all tokens use.
"""

from satchel.formats.convert.hybrid import (
    DELTA_KEYS,
    DELTA_NORMS,
    GATED_ATTENTION,
    JOINED_NET,
    MORE_TOKENS,
    SHARED_EXPERT,
    delta_extra,
)
from satchel.formats.convert.mapping import (
    DENSE_GUARDS,
    DENSE_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
    plus_one,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.delta import Hybrid
from satchel.runtime.layers.mixture import experts

MAPPING = ArchMapping(
    classes=("Qwen3NextForCausalLM",),
    model_type="qwen3_next",
    arch="qwen3next",
    rules=(*plus_one((*OUTSIDE, *DELTA_NORMS)), *GATED_ATTENTION, *JOINED_NET, *EXPERTS, *SHARED_EXPERT),
    keys=(*DENSE_KEYS, *EXPERT_KEYS, *DELTA_KEYS),
    guards=(
        *DENSE_GUARDS,
        ConfigCheck("norm_topk_prob", (True,), True),
        ConfigCheck("decoder_sparse_step", (1,), 1),
        ConfigCheck("mlp_only_layers", ([], None), []),
        ConfigCheck("attention_bias", (False,), False),
    ),
    left_out=(MORE_TOKENS,),
    extra=delta_extra,
    partial=True,
)


class Qwen3Next(Hybrid):
    def layer(self, x: Node, i: int) -> Node:
        return self.hybrid_layer(x, i, feed=experts)
