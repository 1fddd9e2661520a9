"""DeepSeek V2, V3 and R1: latent attention, some dense layers, then experts in groups beside shared ones."""

from collections.abc import Mapping

from satchel.formats.convert.mapping import (
    DENSE_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    NORMS,
    OUTSIDE,
    SCORE_BIAS,
    SHARED_EXPERTS,
    SWIGLU,
    ArchMapping,
    ConfigCheck,
    ConfigReader,
    Key,
    Rule,
    unneeded,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch, Cache
from satchel.runtime.layers.blocks import pre_norm_layer, swiglu
from satchel.runtime.layers.latent import latent_attention, mla_dims
from satchel.runtime.layers.mixture import experts, router_of


def read_sizes(reader: ConfigReader) -> None:
    """Sizes of latent heads, the router, and YaRN, whose factor DeepSeek has on the scores alone."""
    config = reader.config
    rank, nope, rope, value = (
        reader.number(config.get(key), key, int)
        for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    for name, number in (
        ("head_count_kv", 1),
        ("kv_lora_rank", rank),
        ("key_length", rank + rope),
        ("value_length", rank),
        ("key_length_mla", nope + rope),
        ("value_length_mla", value),
    ):
        reader.put(f"attention.{name}", number)
    reader.put("rope.dimension_count", rope)
    third = (
        config.get("model_type") in ("deepseek_v3", "deepseek_v32") or config.get("scoring_func") == "sigmoid"
    )
    reader.put("expert_gating_func", 2 if third else 1)
    reader.put("expert_weights_norm", bool(config.get("norm_topk_prob", True)) and third)
    grouped = third or config.get("topk_method") == "group_limited_greedy"
    for key, name in (("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")):
        if grouped and config.get(key) is not None:
            reader.put(name, reader.number(config[key], key, int))
    _rope(reader)


def _rope(reader: ConfigReader) -> None:
    stated = reader.config.get("rope_parameters") or reader.config.get("rope_scaling") or {}
    if not isinstance(stated, Mapping):
        raise reader.fault("rope_parameters or rope_scaling", "an object", stated)
    base = stated.get("rope_theta", reader.config.get("rope_theta", 10000.0))
    reader.put("rope.freq_base", reader.number(base, "rope_theta", float, 1e-6))
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind == "default":
        return
    if kind != "yarn" or stated.get("mscale", 1.0) != stated.get("mscale_all_dim", 1.0):
        raise reader.fault(
            "rope_scaling", "yarn with mscale equal to mscale_all_dim", stated, "not supported"
        )
    reader.put("rope.scaling.type", "yarn")
    factor = reader.number(stated.get("factor"), "rope factor", float, 1e-6)
    trained = stated.get("original_max_position_embeddings", reader.config.get("max_position_embeddings"))
    reader.put("rope.scaling.factor", factor)
    reader.put(
        "rope.scaling.original_context_length",
        reader.number(trained, "original_max_position_embeddings", int),
    )
    for ours, theirs in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if stated.get(theirs) is not None:
            reader.put(f"rope.scaling.{ours}", reader.number(stated[theirs], theirs, float, 1e-6))
    if stated.get("mscale_all_dim"):
        dim = reader.number(stated["mscale_all_dim"], "mscale_all_dim", float, 1e-6)
        reader.put("rope.scaling.yarn_log_multiplier", 0.1 * dim)


_ATTENTION = "model.layers.{i}.self_attn."
MAPPING = ArchMapping(
    classes=("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    model_type="deepseek_v3",
    arch="deepseek2",
    rules=(
        *OUTSIDE,
        *NORMS,
        Rule(f"{_ATTENTION}q_proj", "blk.{i}.attn_q", needed=False),
        Rule(f"{_ATTENTION}q_a_proj", "blk.{i}.attn_q_a", needed=False),
        Rule(f"{_ATTENTION}q_a_layernorm", "blk.{i}.attn_q_a_norm", needed=False),
        Rule(f"{_ATTENTION}q_b_proj", "blk.{i}.attn_q_b", needed=False),
        Rule(f"{_ATTENTION}kv_a_proj_with_mqa", "blk.{i}.attn_kv_a_mqa"),
        Rule(f"{_ATTENTION}kv_a_layernorm", "blk.{i}.attn_kv_a_norm"),
        Rule(f"{_ATTENTION}kv_b_proj", "blk.{i}.attn_k_b", suffixes=("weight",), made="latent_keys"),
        Rule(f"{_ATTENTION}kv_b_proj", "blk.{i}.attn_v_b", suffixes=("weight",), made="latent_values"),
        Rule(f"{_ATTENTION}o_proj", "blk.{i}.attn_output"),
        *unneeded(*SWIGLU, *EXPERTS, *SHARED_EXPERTS),
        SCORE_BIAS,
    ),
    keys=(
        *(key for key in DENSE_KEYS if key.target != "attention.head_count_kv"),
        *EXPERT_KEYS,
        Key("attention.q_lora_rank", ("q_lora_rank",), optional=True),
        Key("leading_dense_block_count", ("first_k_dense_replace",), optional=True),
        Key("expert_shared_count", ("n_shared_experts",), optional=True),
        Key("expert_weights_scale", ("routed_scaling_factor",), float, optional=True),
    ),
    guards=(
        ConfigCheck("hidden_act", ("silu",), "silu"),
        ConfigCheck("moe_layer_freq", (1,), 1),
        ConfigCheck("rope_interleave", (True, None), True),
        ConfigCheck("topk_method", ("greedy", "group_limited_greedy", "noaux_tc"), "noaux_tc"),
    ),
    extra=read_sizes,
    rope=False,
    head_dim=False,
)


def feed(a: Arch, x: Node, i: int) -> Node:
    if i < a.hp.uint("leading_dense_block_count", 0, low=0):
        return swiglu(a, x, i)
    return experts(a, x, i, router=router_of(a))


class DeepSeek2(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, attend=latent_attention, feed=feed)

    def kept(self, i: int, cache: Cache) -> tuple[tuple[int, int, str], ...]:
        rows = super().kept(i, cache)
        return rows[:1] if mla_dims(self).absorbed else rows
