"""Granite 4 (hybrid): Granite's layer, where most mix by a Mamba-2 net and a few attend, without positions;
its feed-forward dense, or a few of many SwiGLUs beside one that all tokens share.
"""

from dataclasses import replace

from satchel.formats.convert.hybrid import mamba_net_rules
from satchel.formats.convert.mapping import (
    ATTENTION_NEIGHBOURS,
    DENSE_GUARDS,
    DENSE_KEYS,
    FACTOR_KEYS,
    LOCAL_EXPERT_KEYS,
    NORMS,
    OUTSIDE,
    ArchMapping,
    Config,
    ConfigCheck,
    ConfigReader,
    Key,
    Rule,
    unneeded,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import attention, pre_norm_layer, swiglu
from satchel.runtime.layers.mixture import wide_experts
from satchel.runtime.layers.recurrent import mamba_net, ssm_dims
from satchel.runtime.models.granite import Granite
from satchel.runtime.models.granitemoe import FEED, halves_of

_LAYER = "model.layers.{i}."
_KINDS = {"mamba": False, "linear_attention": False, "attention": True, "full_attention": True}


def _attending(config: Config) -> object:
    """Which layers attend, None where the configuration does not say so."""
    stated = config.get("layer_types", config.get("layers_block_type"))
    if not isinstance(stated, list) or any(kind not in _KINDS for kind in stated):
        return None
    return [_KINDS[kind] for kind in stated]


def _routed(config: Config) -> bool:
    return bool(config.get("num_local_experts", 8))


def _name(config: Config) -> str:
    """Where all layers attend it is Granite 3's, and under that name every runtime of GGUF files reads it."""
    attending = _attending(config)
    if isinstance(attending, list) and all(attending):
        return "granitemoe" if _routed(config) else "granite"
    return "granitehybrid"


def _extra(reader: ConfigReader) -> None:
    config, arch = reader.config, _name(reader.config)
    kind = config.get("position_embedding_type")
    if kind not in (None, "rope", "nope"):
        raise reader.fault("position_embedding_type", "rope or nope", kind, "not supported")
    reader.put("rope.scaling.finetuned", kind == "rope")
    if not _routed(config):
        size = config.get("shared_intermediate_size")
        reader.put("feed_forward_length", reader.number(size, "shared_intermediate_size", int, 1))
    if arch != "granitehybrid":
        return
    attending = _attending(config)
    layers = reader.number(config.get("num_hidden_layers"), "num_hidden_layers", int, 1)
    if not isinstance(attending, list) or len(attending) != layers:
        raise reader.fault("layer_types", f"mamba or attention for each of {layers} layers", attending)
    kv = reader.values[f"{arch}.attention.head_count_kv"]
    reader.put("attention.head_count_kv", [kv if attends else 0 for attends in attending])
    _read_net(reader)


def _read_net(reader: ConfigReader) -> None:
    """Sizes of the Mamba-2 nets."""
    config, found = reader.config, {}
    for target, source, usual in (
        ("conv_kernel", "mamba_d_conv", 4),
        ("state_size", "mamba_d_state", 256),
        ("group_count", "mamba_n_groups", 1),
        ("time_step_rank", "mamba_n_heads", 128),
    ):
        found[target] = reader.number(config.get(source, usual), source, int, 1)
    width = reader.number(config.get("hidden_size"), "hidden_size", int, 1)
    found["inner_size"] = width * reader.number(config.get("mamba_expand", 2), "mamba_expand", int, 1)
    size, heads = config.get("mamba_d_head", "auto"), found["time_step_rank"]
    if found["inner_size"] % heads or size not in ("auto", found["inner_size"] // heads):
        raise reader.fault("mamba_d_head", f"{heads} heads that make up {found['inner_size']}", size)
    for target, number in found.items():
        reader.put(f"ssm.{target}", number)


MAPPING = ArchMapping(
    classes=("GraniteMoeHybridForCausalLM",),
    model_type="granitemoehybrid",
    arch=_name,
    rules=(
        *OUTSIDE,
        *NORMS,
        *unneeded(*ATTENTION_NEIGHBOURS, *mamba_net_rules(f"{_LAYER}mamba."), *FEED),
    ),
    keys=(
        *DENSE_KEYS,
        *FACTOR_KEYS,
        *LOCAL_EXPERT_KEYS,
        Key("expert_shared_feed_forward_length", ("shared_intermediate_size",)),
    ),
    guards=(
        *DENSE_GUARDS,
        ConfigCheck("mamba_proj_bias", (False, None), False),
        ConfigCheck("time_step_limit", (None, [0.0, float("inf")])),
        ConfigCheck("normalization_function", ("rmsnorm",), "rmsnorm"),
    ),
    extra=_extra,
    only=_routed,
)
DENSE = replace(
    MAPPING,
    rules=(
        *MAPPING.rules[: -len(FEED)],
        *halves_of("shared_mlp"),
        Rule(f"{_LAYER}shared_mlp.output_linear", "blk.{i}.ffn_down", suffixes=("weight",)),
    ),
    keys=(*DENSE_KEYS, *FACTOR_KEYS),
    only=lambda config: not _routed(config),
)
MAPPINGS = (MAPPING, DENSE)


class GraniteHybrid(Granite):
    hybrid = True

    def recurrent_states(self, i: int) -> tuple[tuple[int, ...], ...]:
        return () if self.kv_heads[i] else ssm_dims(self).state_shapes

    def layer(self, x: Node, i: int) -> Node:
        part = mamba_net if self.recurrent_states(i) else attention
        share = self.hp.real("residual_scale", 1.0)
        return pre_norm_layer(self, x, i, feed=self.feed, attend=part, residual=share)

    def feed(self, a: Arch, x: Node, i: int) -> Node:
        return (wide_experts if a.hp.uint("expert_count", 0, low=0) else swiglu)(a, x, i)
