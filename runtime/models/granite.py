"""Granite 3 (dense): Llama's layer with four factors: on embeddings, on what a layer's parts add, on scores
and under the logits.
"""

from satchel.formats.convert.mapping import DENSE_GUARDS, DENSE_KEYS, FACTOR_KEYS, LLAMA_BODY, ArchMapping
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer, scaled, swiglu

MAPPING = ArchMapping(
    classes=("GraniteForCausalLM",),
    model_type="granite",
    arch="granite",
    rules=LLAMA_BODY,
    keys=(*DENSE_KEYS, *FACTOR_KEYS),
    guards=DENSE_GUARDS,
)


class Granite(Arch):
    rope_style = 0

    def embed(self, ids: Node) -> Node:
        return scaled(self, super().embed(ids), self.hp.real("embedding_scale", 1.0))

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, feed=self.feed, residual=self.hp.real("residual_scale", 1.0))

    def feed(self, a: Arch, x: Node, i: int) -> Node:
        return swiglu(a, x, i)

    def rotates(self, i: int) -> bool:
        """Files of this family switch their rotary embedding off by this key."""
        return self.hp.flag("rope.scaling.finetuned", True)

    def head(self, x: Node) -> Node:
        return scaled(self, super().head(x), 1 / self.hp.real("logit_scale", 1.0, low=1e-30))
