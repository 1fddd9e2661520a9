"""Gemma 1: Llama's layer with GeGLU, rotary pairs of halves and embeddings times the root of their width."""

from satchel.formats.convert.mapping import DENSE_BODY, DENSE_KEYS, ArchMapping, ConfigCheck, plus_one
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import geglu, pre_norm_layer, scaled

MAPPING = ArchMapping(
    classes=("GemmaForCausalLM",),
    model_type="gemma",
    arch="gemma",
    rules=plus_one(DENSE_BODY),
    keys=DENSE_KEYS,
    guards=(
        # The first files said gelu, and meant it by tanh.
        ConfigCheck("hidden_act", ("gelu_pytorch_tanh", "gelu"), "gelu_pytorch_tanh"),
        ConfigCheck("hidden_activation", ("gelu_pytorch_tanh", None)),
        ConfigCheck("use_bidirectional_attention", (False, None)),
    ),
)


class Gemma(Arch):
    def embed(self, ids: Node) -> Node:
        return scaled(self, super().embed(ids), self.width**0.5)

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, feed=geglu)
