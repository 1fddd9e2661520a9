"""Command R and R+, Aya: attention and feed-forward side by side behind one norm that takes the mean away,
rotary pairs of neighbours in checkpoints too, logits times a factor; in R+ a norm for each head of queries
and keys.
"""

from satchel.formats.convert.mapping import (
    COHERE_KEYS,
    COHERE_RULES,
    DENSE_GUARDS,
    HEAD_NORMS,
    ArchMapping,
    unneeded,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import parallel_layer, scaled, swiglu

MAPPING = ArchMapping(
    classes=("CohereForCausalLM",),
    model_type="cohere",
    arch="command-r",
    rules=(*COHERE_RULES, *unneeded(*HEAD_NORMS)),
    keys=COHERE_KEYS,
    guards=DENSE_GUARDS,
)


class CommandR(Arch):
    rope_style = 0
    centered = True

    def layer(self, x: Node, i: int) -> Node:
        return parallel_layer(self, x, i, feed=swiglu)

    def head(self, x: Node) -> Node:
        return scaled(self, super().head(x), self.hp.real("logit_scale", 1.0))
