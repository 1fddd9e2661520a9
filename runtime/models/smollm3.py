"""SmolLM3: Llama's layer, of which every fourth has no RoPE (NoPE)."""

from satchel.formats.convert.mapping import (
    DENSE_GUARDS,
    DENSE_KEYS,
    LLAMA_BODY,
    ArchMapping,
    ConfigReader,
    all_see_all,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer

PERIOD = 4


def _check_layers(reader: ConfigReader) -> None:
    """GGUF has no key for the layers with RoPE; all of this family's models agree."""
    all_see_all(reader)
    layers = reader.number(reader.config.get("num_hidden_layers"), "num_hidden_layers", int, 1)
    usual = [int((i + 1) % PERIOD != 0) for i in range(layers)]
    if reader.config.get("no_rope_layers") not in (None, usual):
        raise reader.fault("no_rope_layers", f"0 for every {PERIOD}th layer", reader.config["no_rope_layers"])
    if reader.config.get("no_rope_layer_interval", PERIOD) != PERIOD:
        raise reader.fault("no_rope_layer_interval", str(PERIOD), reader.config["no_rope_layer_interval"])


MAPPING = ArchMapping(
    classes=("SmolLM3ForCausalLM",),
    model_type="smollm3",
    arch="smollm3",
    rules=LLAMA_BODY,
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
    extra=_check_layers,
)


class SmolLm3(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)

    def rotates(self, i: int) -> bool:
        return (i + 1) % PERIOD != 0
