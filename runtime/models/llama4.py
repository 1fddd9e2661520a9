"""Llama 4 (text): chunked attention with RoPE in three of four layers, full attention without RoPE (NoPE) in
the fourth; every n-th layer has one routed expert per token beside a shared one.
"""

import numpy as np

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_KEYS,
    NORMS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
    ConfigReader,
    Key,
    Rule,
    check_layers,
    unneeded,
)
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer, swiglu
from satchel.runtime.layers.mixture import Router, experts

_FEED = "model.layers.{i}.feed_forward."
_PARTS = ("gate", "up", "down")
NO_ROPE_STEP, FLOOR, SLOPE = 4, 8192, 0.1  # llama.cpp's constants, which fit every published model
UNNORMED = 128  # experts of Maverick, which has no QK-norm


def has_rope(i: int) -> bool:
    """Whether a layer has RoPE and chunked attention; the others have neither (NoPE)."""
    return (i + 1) % NO_ROPE_STEP != 0


def _extra(reader: ConfigReader) -> None:
    config = reader.config
    layers = int(reader.number(config.get("num_hidden_layers"), "num_hidden_layers", int))
    normed = config.get("use_qk_norm", True)
    if normed is not (config.get("num_local_experts") != UNNORMED):
        raise reader.fault("use_qk_norm", f"false with {UNNORMED} experts, else true", normed)
    step = reader.number(config.get("interleave_moe_layer_step", 1), "interleave_moe_layer_step", int, 1)
    if config.get("moe_layers") not in (None, mixed := [*range(step - 1, layers, step)]):
        raise reader.fault("moe_layers", f"null or {mixed}", config["moe_layers"], "not supported")
    if config.get("no_rope_layers"):
        check_layers(reader, lambda i: int(has_rope(i)), "no_rope_layers")
    else:
        reader.check(ConfigCheck("no_rope_layer_interval", (NO_ROPE_STEP,), NO_ROPE_STEP))
    check_layers(reader, lambda i: "chunked_attention" if has_rope(i) else "full_attention")


MAPPING = ArchMapping(
    classes=("Llama4ForCausalLM",),
    model_type="llama4_text",
    arch="llama4",
    rules=(
        *OUTSIDE,
        *NORMS,
        *ATTENTION,
        *unneeded(
            *(Rule(f"{_FEED}{name}_proj", f"blk.{{i}}.ffn_{name}") for name in _PARTS),
            *(Rule(f"{_FEED}shared_expert.{name}_proj", f"blk.{{i}}.ffn_{name}_shexp") for name in _PARTS),
            Rule(f"{_FEED}router", "blk.{i}.ffn_gate_inp", suffixes=("weight",)),
            *(
                Rule(
                    f"{_FEED}experts.{source}", f"blk.{{i}}.ffn_{name}_exps.weight", suffixes=("",), made=made
                )
                for source, name, made in (
                    ("gate_up_proj", "gate", "first_half"),
                    ("gate_up_proj", "up", "second_half"),
                    ("down_proj", "down", "transposed_stack"),
                )
            ),
        ),
    ),
    keys=(
        *(key for key in DENSE_KEYS if key.target != "feed_forward_length"),
        Key("feed_forward_length", ("intermediate_size_mlp",)),
        Key("expert_feed_forward_length", ("intermediate_size",)),
        Key("expert_count", ("num_local_experts",)),
        Key("expert_used_count", ("num_experts_per_tok",)),
        Key("interleave_moe_layer_step", ("interleave_moe_layer_step",)),
        Key("attention.sliding_window", ("attention_chunk_size",)),
    ),
    guards=(
        ConfigCheck("hidden_act", ("silu",), "silu"),
        ConfigCheck("attn_temperature_tuning", (True, 4, 1), True),
        ConfigCheck("floor_scale", (FLOOR,), FLOOR),
        ConfigCheck("attn_scale", (SLOPE,), SLOPE),
        ConfigCheck("num_experts_per_tok", (1,), 1),
    ),
    extra=_extra,
    multimodal=("Llama4ForConditionalGeneration",),
)


class Llama4(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        step = self.hp.uint("interleave_moe_layer_step", 1)
        return pre_norm_layer(self, x, i, feed=mixture if (i + 1) % step == 0 else swiglu)

    def rotates(self, i: int) -> bool:
        return has_rope(i)

    def chunk(self, i: int) -> int:
        size = self.hp.uint("attention.sliding_window", FLOOR, high=1 << 30)
        return size if self.rotates(i) and size < self.cache.context else 0

    def adjust(self, q: Node, k: Node, i: int) -> tuple[Node, Node]:
        """Layers with RoPE have QK-norm without a weight. In the others, queries past position 8192 are
        scaled by 1 + log(floor(p / 8192) + 1) * 0.1 (Llama 4 temperature tuning).
        """
        if self.rotates(i):
            if self.hp.uint("expert_count", 0, low=0) == UNNORMED:
                return q, k
            ones = self.graph.const(np.ones(self.head_dim, np.float32), "f32", "ones")
            return ops.rms_norm(q, ones, eps=self.eps), ops.rms_norm(k, ones, eps=self.eps)
        share = ops.position_scale(self.pos, step=FLOOR, slope=SLOPE)
        return ops.mul(q, ops.reshape(share, shape=(1, 1))), k


def mixture(a: Arch, x: Node, i: int) -> Node:
    return experts(a, x, i, router=Router(norm=False, sigmoid=True, early=True))
