"""Gemma 3 (text): norms before and after both parts of a layer, GeGLU, and QK-norm per head. Five of six
layers have a sliding window and a RoPE base of their own.
"""

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_KEYS,
    FOUR_NORMS,
    HEAD_NORMS,
    OUTSIDE,
    SWIGLU,
    ArchMapping,
    ConfigCheck,
    ConfigReader,
    Key,
    plus_one,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import alternating, attention, capped, geglu, post_norm_layer, scaled

LARGEST = 62  # layers of the 27B, whose scores are scaled by the width per head, not by the head size
PERIOD = 6


def _extra(reader: ConfigReader) -> None:
    """The scale of the scores, and the layers with a sliding window if they are not the usual ones."""
    config = reader.config
    size = reader.number(config.get("query_pre_attn_scalar", 256), "query_pre_attn_scalar", float, 1e-6)
    reader.put("attention.scale", size**-0.5)
    period = reader.number(config.get("sliding_window_pattern") or PERIOD, "sliding_window_pattern", int, 1)
    layers = reader.number(config.get("num_hidden_layers"), "num_hidden_layers", int, 1)
    kinds = config.get("layer_types")
    if kinds is not None:
        fitting = [p for p in range(1, layers + 2) if kinds == _kinds(layers, p)]
        if not fitting:
            raise reader.fault("layer_types", "sliding_attention with full_attention every few layers", kinds)
        period = PERIOD if PERIOD in fitting else fitting[0]
    if period != PERIOD:
        reader.put("attention.sliding_window_pattern", period)


def _kinds(layers: int, period: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]


MAPPING = ArchMapping(
    classes=("Gemma3ForCausalLM",),
    model_type="gemma3_text",
    arch="gemma3",
    rules=(*plus_one((*OUTSIDE, *FOUR_NORMS, *HEAD_NORMS)), *ATTENTION, *SWIGLU),
    keys=(
        *DENSE_KEYS,
        Key("attention.sliding_window", ("sliding_window",)),
        Key("final_logit_softcapping", ("final_logit_softcapping",), float, optional=True),
    ),
    guards=(
        ConfigCheck("hidden_activation", ("gelu_pytorch_tanh", None), None),
        ConfigCheck("attn_logit_softcapping", (None,), None),
        ConfigCheck("use_bidirectional_attention", (False, None)),
    ),
    extra=_extra,
    multimodal=("Gemma3ForConditionalGeneration",),
    defaults={  # published configs leave these out
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": True,
    },
)


class Gemma3(Arch):
    def embed(self, ids: Node) -> Node:
        return scaled(self, super().embed(ids), self.width**0.5)

    def layer(self, x: Node, i: int) -> Node:
        return post_norm_layer(self, x, i, feed=geglu, attend=self._attend)

    def _attend(self, a: Arch, x: Node, i: int) -> Node:
        size = self.width // self.heads[i] if self.layers == LARGEST else self.head_dim
        return attention(a, x, i, scale=size**-0.5)

    def window(self, i: int) -> int:
        seen = self.hp.uint("attention.sliding_window", 0, low=0, high=1 << 30)
        return seen if alternating(self, i, PERIOD) else 0

    def rope_base(self, i: int) -> float:
        return self.hp.real("rope.freq_base_swa", 10000.0, low=1e-6) if self.window(i) else 0.0

    def head(self, x: Node) -> Node:
        return capped(self, super().head(x))
