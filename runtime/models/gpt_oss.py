"""gpt-oss: experts with biases and a limited SwiGLU, attention with sinks that sees a window in every second
layer.
"""

from functools import partial

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_KEYS,
    OUTSIDE,
    ArchMapping,
    ConfigCheck,
    Key,
    Rule,
    every_second_near,
)
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import alternating, attention
from satchel.runtime.layers.mixture import experts

_LAYER = "model.layers.{i}."
_EXPERTS = f"{_LAYER}mlp.experts."


def _stacks(source: str, targets: dict[str, str]) -> tuple[Rule, ...]:
    """Rules of a tensor of all experts and its biases; targets: GGUF's name by what it takes of them."""
    return tuple(
        Rule(
            f"{_EXPERTS}{source}{end}",
            f"blk.{{i}}.ffn_{name}_exps.{suffix}",
            suffixes=("",),
            made=made,
            needed=False,
        )
        for made, name in targets.items()
        for end, suffix in (("", "weight"), ("_bias", "bias"))
    )


MAPPING = ArchMapping(
    classes=("GptOssForCausalLM",),
    model_type="gpt_oss",
    arch="gpt-oss",
    rules=(
        *OUTSIDE,
        Rule(f"{_LAYER}input_layernorm", "blk.{i}.attn_norm", suffixes=("weight",)),
        *ATTENTION,
        Rule(f"{_LAYER}self_attn.sinks", "blk.{i}.attn_sinks.weight", suffixes=("",)),
        Rule(f"{_LAYER}post_attention_layernorm", "blk.{i}.post_attention_norm", suffixes=("weight",)),
        Rule(f"{_LAYER}mlp.router", "blk.{i}.ffn_gate_inp"),
        *_stacks("gate_up_proj", {"even": "gate", "odd": "up"}),
        *_stacks("down_proj", {"transposed_stack": "down"}),
        *(
            Rule(
                f"{_EXPERTS}{source}_blocks",
                f"blk.{{i}}.ffn_{name}_exps.weight",
                suffixes=("",),
                made=made,
                needed=False,
            )
            for source, name, made in (
                ("gate_up_proj", "gate", "even_rows"),
                ("gate_up_proj", "up", "odd_rows"),
                ("down_proj", "down", ""),
            )
        ),
    ),
    keys=(
        *DENSE_KEYS,
        Key("expert_count", ("num_local_experts", "num_experts")),
        Key("expert_used_count", ("num_experts_per_tok", "experts_per_token")),
        Key("expert_feed_forward_length", ("intermediate_size",)),
        Key("attention.sliding_window", ("sliding_window",)),
    ),
    guards=(
        ConfigCheck("hidden_act", ("silu",), "silu"),
        ConfigCheck("swiglu_limit", (7.0,), 7.0),
        ConfigCheck("swiglu_alpha", (1.702,), 1.702),
    ),
    whole=False,
    extra=every_second_near,
)


class GptOss(Arch):
    whole_ramp = False

    def layer(self, x: Node, i: int) -> Node:
        gate = partial(ops.swiglu_limited, limit=7.0, alpha=1.702)
        x = ops.add(x, attention(self, self.norm(x, f"blk.{i}.attn_norm"), i))
        y = self.norm(x, f"blk.{i}.post_attention_norm")
        return ops.add(x, experts(self, y, i, gate=gate))

    def window(self, i: int) -> int:
        return self.hp.uint("attention.sliding_window", high=1 << 30) if alternating(self, i, 2) else 0
