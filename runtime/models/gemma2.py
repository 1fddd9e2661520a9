"""Gemma 2: norms around both parts of a layer, GeGLU, soft caps on scores and logits, and a sliding window in
every other layer.
"""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_KEYS,
    FOUR_NORMS,
    OUTSIDE,
    SWIGLU,
    ArchMapping,
    ConfigCheck,
    ConfigReader,
    Key,
    every_second_near,
    plus_one,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import alternating, attention, capped, geglu, post_norm_layer, scaled

LARGEST = 46  # layers of the 27B, whose scores are scaled by the width instead of the heads' size


def _extra(reader: ConfigReader) -> None:
    """The scale of scores, which files of the 27B alone do not take from the heads' size."""
    size = reader.number(
        reader.config.get("query_pre_attn_scalar", 256), "query_pre_attn_scalar", float, 1e-6
    )
    reader.put("attention.scale", size**-0.5)
    every_second_near(reader)


MAPPING = ArchMapping(
    classes=("Gemma2ForCausalLM",),
    model_type="gemma2",
    arch="gemma2",
    rules=(*plus_one((*OUTSIDE, *FOUR_NORMS)), *ATTENTION, *SWIGLU),
    keys=(
        *DENSE_KEYS,
        Key("attention.sliding_window", ("sliding_window",)),
        Key("attn_logit_softcapping", ("attn_logit_softcapping",), float, optional=True),
        Key("final_logit_softcapping", ("final_logit_softcapping",), float, optional=True),
    ),
    guards=(
        ConfigCheck("hidden_activation", ("gelu_pytorch_tanh", None), None),
        ConfigCheck("use_bidirectional_attention", (False, None)),
    ),
    extra=_extra,
)


class Gemma2(Arch):
    def embed(self, ids: Node) -> Node:
        return scaled(self, super().embed(ids), self.width**0.5)

    def layer(self, x: Node, i: int) -> Node:
        return post_norm_layer(self, x, i, feed=geglu, attend=self._attend)

    def _attend(self, a: Arch, x: Node, i: int) -> Node:
        size = self.width // self.heads[i] if self.layers == LARGEST else self.head_dim
        return attention(a, x, i, scale=size**-0.5, cap=self.hp.real("attn_logit_softcapping", 0.0))

    def window(self, i: int) -> int:
        seen = self.hp.uint("attention.sliding_window", 4096, low=0, high=1 << 30)
        return seen if alternating(self, i, 2) else 0

    def head(self, x: Node) -> Node:
        return capped(self, super().head(x))
