"""Granite 3 (dense): Llama's layer with four factors: on embeddings, on what a layer's parts add, on scores
and under the logits.
"""

from satchel.formats.convert.mapping import DENSE_GUARDS, DENSE_KEYS, LLAMA_BODY, ArchMapping, Key
from satchel.runtime.arch import Arch
from satchel.runtime.blocks import pre_norm_layer, scaled
from satchel.runtime.graph import Node

MAPPING = ArchMapping(
    classes=("GraniteForCausalLM",),
    model_type="granite",
    arch="granite",
    rules=LLAMA_BODY,
    keys=(
        *DENSE_KEYS,
        Key("embedding_scale", ("embedding_multiplier",), float, optional=True),
        Key("residual_scale", ("residual_multiplier",), float, optional=True),
        Key("attention.scale", ("attention_multiplier",), float, optional=True),
        Key("logit_scale", ("logits_scaling",), float, optional=True),
    ),
    guards=DENSE_GUARDS,
)


class Granite(Arch):
    rope_style = 0

    def embed(self, ids: Node) -> Node:
        return scaled(self, super().embed(ids), self.hp.real("embedding_scale", 1.0))

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, residual=self.hp.real("residual_scale", 1.0))

    def head(self, x: Node) -> Node:
        return scaled(self, super().head(x), 1 / self.hp.real("logit_scale", 1.0, low=1e-30))
