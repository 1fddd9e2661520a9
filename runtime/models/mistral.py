"""Mistral with its own architecture name: Llama's layer with a sliding window, `attention.sliding_window`."""

from satchel.formats.convert.mapping import (
    DENSE_GUARDS,
    DENSE_KEYS,
    LLAMA_BODY,
    ArchMapping,
    Config,
    ConfigCheck,
    Key,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer


def _name(config: Config) -> str:
    """A Mistral without a sliding window is a Llama, a name that every GGUF runtime knows."""
    return "mistral" if config.get("sliding_window") else "llama"


MAPPING = ArchMapping(
    classes=("MistralForCausalLM",),
    model_type="mistral",
    arch=_name,
    rules=LLAMA_BODY,
    keys=(*DENSE_KEYS, Key("attention.sliding_window", ("sliding_window",), optional=True)),
    guards=(*DENSE_GUARDS, ConfigCheck("layer_types", (None,))),
    multimodal=("Mistral3ForConditionalGeneration",),
)


class Mistral(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)

    def window(self, i: int) -> int:
        return self.hp.uint("attention.sliding_window", 0, low=0, high=1 << 30)
