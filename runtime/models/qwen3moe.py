"""Qwen 3 mixture of experts: Qwen 3's layer with a few of many small SwiGLUs for each token."""

from satchel.runtime.arch import Arch
from satchel.runtime.blocks import experts, pre_norm_layer
from satchel.runtime.graph import Node


class Qwen3Moe(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, feed=experts)
