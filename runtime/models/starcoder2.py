"""StarCoder 2: norms that take the mean away, biases everywhere, a feed-forward of two products with GELU,
and maybe a sliding window.
"""

from satchel.formats.convert.mapping import (
    ATTENTION,
    CENTERED_KEYS,
    NORMS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
    Key,
    Rule,
    with_bias,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import mlp_tanh, pre_norm_layer

MAPPING = ArchMapping(
    classes=("Starcoder2ForCausalLM",),
    model_type="starcoder2",
    arch="starcoder2",
    rules=(
        *with_bias((*OUTSIDE, *NORMS)),
        *ATTENTION,
        Rule("model.layers.{i}.mlp.c_fc", "blk.{i}.ffn_up"),
        Rule("model.layers.{i}.mlp.c_proj", "blk.{i}.ffn_down"),
    ),
    keys=(*CENTERED_KEYS, Key("attention.sliding_window", ("sliding_window",), optional=True)),
    guards=(
        ConfigCheck("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh"),
        ConfigCheck("norm_type", ("layer_norm",), "layer_norm"),
        ConfigCheck("mlp_type", ("default",), "default"),
    ),
)


class Starcoder2(Arch):
    centered = True

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, feed=mlp_tanh)

    def window(self, i: int) -> int:
        return self.hp.uint("attention.sliding_window", 0, low=0, high=1 << 30)
