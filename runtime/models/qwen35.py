"""Qwen 3.5 (dense, text): three layers of four are gated delta nets, the fourth attends."""

from satchel.formats.convert.hybrid import (
    DELTA_KEYS,
    DELTA_NORMS,
    GATED_ATTENTION,
    MORE_TOKENS,
    TILED_NET,
    sections_extra,
)
from satchel.formats.convert.mapping import (
    DENSE_GUARDS,
    DENSE_KEYS,
    OUTSIDE,
    SWIGLU,
    ArchMapping,
    ConfigCheck,
    plus_one,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.blocks import swiglu
from satchel.runtime.layers.delta import Hybrid

MAPPING = ArchMapping(
    classes=("Qwen3_5ForCausalLM",),
    model_type="qwen3_5_text",
    arch="qwen35",
    rules=(*plus_one((*OUTSIDE, *DELTA_NORMS)), *GATED_ATTENTION, *TILED_NET, *SWIGLU),
    keys=(*DENSE_KEYS, *DELTA_KEYS),
    guards=(*DENSE_GUARDS, ConfigCheck("attention_bias", (False,), False)),
    left_out=(MORE_TOKENS,),
    extra=sections_extra,
    partial=True,
)


class Qwen35(Hybrid):
    tiled = True

    def layer(self, x: Node, i: int) -> Node:
        return self.hybrid_layer(x, i, feed=swiglu)
