"""Mapping rules of hybrid models: gated delta nets between layers of gated attention (Qwen 3-Next and 3.5),
and Mamba-2 layers.
"""

from __future__ import annotations

from satchel.formats.convert.mapping import (
    ATTENTION,
    EXPERTS,
    HEAD_NORMS,
    ConfigReader,
    Key,
    Rule,
    plus_one,
    unneeded,
)

_LAYER = "model.layers.{i}."
DELTA_NORMS = (
    Rule(f"{_LAYER}input_layernorm", "blk.{i}.attn_norm", suffixes=("weight",)),
    Rule(f"{_LAYER}post_attention_layernorm", "blk.{i}.post_attention_norm", suffixes=("weight",)),
)
GATED_ATTENTION = unneeded(*ATTENTION, *plus_one(HEAD_NORMS))
SHARED_EXPERT = (
    *(
        Rule(f"{_LAYER}mlp.shared_expert.{name}_proj", f"blk.{{i}}.ffn_{name}_shexp", suffixes=("weight",))
        for name in ("gate", "up", "down")
    ),
    Rule(f"{_LAYER}mlp.shared_expert_gate", "blk.{i}.ffn_gate_inp_shexp", suffixes=("weight",), made="flat"),
)
_EXPERTS = f"{_LAYER}mlp.experts."
STACKED_EXPERTS = (
    Rule(f"{_LAYER}mlp.gate", "blk.{i}.ffn_gate_inp", suffixes=("weight",)),
    *unneeded(
        Rule(f"{_EXPERTS}gate_up_proj", "blk.{i}.ffn_gate_exps.weight", suffixes=("",), made="first_rows"),
        Rule(f"{_EXPERTS}gate_up_proj", "blk.{i}.ffn_up_exps.weight", suffixes=("",), made="second_rows"),
        Rule(f"{_EXPERTS}down_proj", "blk.{i}.ffn_down_exps.weight", suffixes=("",)),
        *EXPERTS[1:],
    ),
)
DELTA_KEYS = (
    Key("ssm.conv_kernel", ("linear_conv_kernel_dim",)),
    Key("ssm.state_size", ("linear_key_head_dim",)),
    Key("ssm.group_count", ("linear_num_key_heads",)),
    Key("ssm.time_step_rank", ("linear_num_value_heads",)),
    Key("expert_shared_feed_forward_length", ("shared_expert_intermediate_size",), optional=True),
)


def delta_extra(reader: ConfigReader) -> None:
    """Puts ssm.inner_size and full_attention_interval."""
    config = reader.config
    heads, size, layers = (
        reader.number(config.get(key), key, int, 1)
        for key in ("linear_num_value_heads", "linear_value_head_dim", "num_hidden_layers")
    )
    reader.put("ssm.inner_size", heads * size)
    stated = config.get("full_attention_interval") or 4
    interval, kinds = reader.number(stated, "full_attention_interval", int, 1), config.get("layer_types")
    if kinds is not None:
        fitting = [p for p in (interval, *range(1, layers + 2)) if kinds == _kinds(layers, p)]
        if not fitting:
            raise reader.fault("layer_types", "linear_attention with full_attention every few layers", kinds)
        interval = fitting[0]
    reader.put("full_attention_interval", interval)


def _kinds(layers: int, period: int) -> list[str]:
    return ["linear_attention" if (i + 1) % period else "full_attention" for i in range(layers)]


_NET = f"{_LAYER}linear_attn."
# Qwen 3.5's delta nets: one matrix per part. GGUF stores their heads in tiled order (see nets.py).
TILED_NET = unneeded(
    Rule(f"{_NET}in_proj_qkv", "blk.{i}.attn_qkv", suffixes=("weight",), made="tiled_mix"),
    Rule(f"{_NET}in_proj_z", "blk.{i}.attn_gate", suffixes=("weight",), made="tiled"),
    Rule(f"{_NET}in_proj_b", "blk.{i}.ssm_beta", suffixes=("weight",), made="tiled"),
    Rule(f"{_NET}in_proj_a", "blk.{i}.ssm_alpha", suffixes=("weight",), made="tiled"),
    Rule(f"{_NET}conv1d.weight", "blk.{i}.ssm_conv1d.weight", suffixes=("",), made="tiled_mix"),
    Rule(f"{_NET}dt_bias", "blk.{i}.ssm_dt.bias", suffixes=("",), made="tiled"),
    Rule(f"{_NET}A_log", "blk.{i}.ssm_a", suffixes=("",), made="tiled_decay"),
    Rule(f"{_NET}norm", "blk.{i}.ssm_norm", suffixes=("weight",)),
    Rule(f"{_NET}out_proj", "blk.{i}.ssm_out", suffixes=("weight",), made="tiled_columns"),
)
# Qwen 3-Next's delta nets: the fused projections are split, and heads keep their order.
JOINED_NET = unneeded(
    Rule(f"{_NET}in_proj_qkvz", "blk.{i}.attn_qkv", suffixes=("weight",), made="joined_mix"),
    Rule(f"{_NET}in_proj_qkvz", "blk.{i}.attn_gate", suffixes=("weight",), made="joined_gate"),
    Rule(f"{_NET}in_proj_ba", "blk.{i}.ssm_ba", suffixes=("weight",)),
    Rule(f"{_NET}conv1d.weight", "blk.{i}.ssm_conv1d.weight", suffixes=("",), made="taps"),
    Rule(f"{_NET}dt_bias", "blk.{i}.ssm_dt.bias", suffixes=("",)),
    Rule(f"{_NET}A_log", "blk.{i}.ssm_a", suffixes=("",), made="decay"),
    Rule(f"{_NET}norm", "blk.{i}.ssm_norm", suffixes=("weight",)),
    Rule(f"{_NET}out_proj", "blk.{i}.ssm_out", suffixes=("weight",)),
)


def mamba_net_rules(prefix: str) -> tuple[Rule, ...]:
    """The rules of a Mamba-2 layer. prefix: of its tensors' names."""
    return (
        Rule(f"{prefix}in_proj", "blk.{i}.ssm_in"),
        Rule(f"{prefix}conv1d.weight", "blk.{i}.ssm_conv1d.weight", suffixes=("",), made="taps"),
        Rule(f"{prefix}conv1d.bias", "blk.{i}.ssm_conv1d.bias", suffixes=("",), needed=False),
        Rule(f"{prefix}dt_bias", "blk.{i}.ssm_dt.bias", suffixes=("",)),
        Rule(f"{prefix}A_log", "blk.{i}.ssm_a", suffixes=("",), made="decay_column"),
        Rule(f"{prefix}D", "blk.{i}.ssm_d", suffixes=("",), made="column"),
        Rule(f"{prefix}norm", "blk.{i}.ssm_norm", suffixes=("weight",), made="by_group"),
        Rule(f"{prefix}out_proj", "blk.{i}.ssm_out"),
    )


MORE_TOKENS = r"mtp\..*"  # layers that predict further tokens


def sections_extra(reader: ConfigReader) -> None:
    """As delta_extra, and puts rope.dimension_sections: the RoPE pairs for time, height and width (M-RoPE),
    which are equal for text.
    """
    delta_extra(reader)
    stated = reader.config.get("rope_parameters") or reader.config.get("rope_scaling") or {}
    sections = stated.get("mrope_section") or [11, 11, 10]
    if not isinstance(sections, list) or len(sections) != 3 or not all(isinstance(n, int) for n in sections):
        raise reader.fault("mrope_section", "three numbers", sections)
    reader.put("rope.dimension_sections", [*sections, 0])
