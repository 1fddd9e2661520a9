"""ERNIE 4.5 (dense): Llama's layer, in checkpoints too with rotary pairs of neighbours."""

from satchel.formats.convert.mapping import DENSE_BODY, DENSE_GUARDS, DENSE_KEYS, ArchMapping
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer

MAPPING = ArchMapping(
    classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    model_type="ernie4_5",
    arch="ernie4_5",
    rules=DENSE_BODY,
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
)


class Ernie(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)
