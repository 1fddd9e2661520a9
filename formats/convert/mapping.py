"""Mappings from Hugging Face checkpoints to GGUF. Each architecture's file defines one as MAPPING, from the
parts in this module.

In tensor names, {i} is the number of a layer, {e} that of an expert or head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """A number of config.json and its GGUF key."""

    target: str  # the GGUF key after "<arch>."
    sources: tuple[str, ...]  # names in config.json; the first that is present counts
    kind: type[int] | type[float] = int
    default: str = ""  # the target whose value is used where the number is missing
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ConfigCheck:
    """A key of config.json that changes the model's computation. Only the values `allowed` are supported; a
    missing key means `absent`.
    """

    key: str
    allowed: tuple[Any, ...]
    absent: Any = None


class ConfigReader(Protocol):
    """The interface of config.py's reader for an architecture's `extra` function."""

    config: Config
    values: dict[str, Any]
    factors: dict[str, Any]  # divisors of rotary frequencies, by GGUF's name of the tensor

    def number(self, value: object, key: str, kind: type[int] | type[float], low: float = 0.0) -> Any: ...

    def put(self, key: str, value: Any) -> None: ...

    def check(self, guard: ConfigCheck) -> None: ...

    def fault(self, key: str, expected: str, got: object, do: str = ...) -> Exception: ...


@dataclass(frozen=True)
class Rule:
    """Maps the tensors `source`.weight and `source`.bias to `target`.weight and `target`.bias."""

    source: str
    target: str
    # GGUF's key of the head count, where RoPE pairs (i, i + n_rot/2) are permuted to (2i, 2i + 1).
    heads: str = ""
    needed: bool = True  # whether the weight is required
    suffixes: tuple[str, ...] = ("weight", "bias")  # possible suffixes; ("",): the names are complete
    made: str = ""  # the transformation of the tensor, by its name in shaping.py
    stack: str = "expert_count"  # GGUF's key of the number of {e}

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"\{([ie])\}", self.source)
        body = "".join(
            f"(?P<{p}>0|[1-9][0-9]{{0,5}})" if n % 2 else re.escape(p) for n, p in enumerate(parts)
        )
        dot = "" if self.suffixes == ("",) else r"\."
        return re.compile(rf"{body}{dot}(?P<suffix>{'|'.join(self.suffixes)})")

    @property
    def experts(self) -> bool:
        return "{e}" in self.source


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """The GGUF name of a checkpoint's tensor, the rule that maps it, and the expert's number in a stack."""

    name: str
    rule: Rule
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class ArchMapping:
    """The conversion of one architecture's checkpoints."""

    classes: tuple[str, ...]  # in config.json's `architectures`
    model_type: str  # used where config.json has no `architectures`
    arch: str | Callable[[Config], str]  # general.architecture; a function where it depends on the config
    rules: tuple[Rule, ...]
    keys: tuple[Key, ...]
    guards: tuple[ConfigCheck, ...] = ()
    # Patterns of tensors that are not weights.
    ignored: tuple[str, ...] = (r".*\.rotary_emb\.inv_freq", r".*\.attn\.(masked_bias|bias)")
    left_out: tuple[str, ...] = ()  # patterns of weights that generation does not need; a note reports them
    extra: Callable[[ConfigReader], None] | None = None  # converts what no Key can express
    rope: bool = True
    partial: bool = False  # RoPE may rotate a part of each head
    partial_rotary_factor: float = 1.0  # that part, where the config does not say
    head_dim: bool = True  # all heads have one size: head_dim of the config, or hidden_size / heads
    whole: bool = True  # the ends of YaRN's ramp are rounded to whole pairs
    renames: tuple[tuple[str, str], ...] = ()  # (pattern, replacement) for names before the rules apply
    multimodal: tuple[str, ...] = ()  # multimodal classes with this text model (multimodal.py)
    flat: bool = False  # some of them have the text model's configuration at the top level
    defaults: Config = field(default_factory=dict)  # values that their configurations omit
    # whether the mapping applies to a config of its classes
    only: Callable[[Config], bool] = lambda config: True

    def arch_of(self, config: Config) -> str:
        return self.arch if isinstance(self.arch, str) else self.arch(config)

    def renamed(self, name: str) -> str:
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def place(self, name: str) -> MappedTensor | None:
        """The first target of a checkpoint's tensor; None where no rule matches."""
        return next(self.places(name), None)

    def places(self, name: str) -> Iterator[MappedTensor]:
        """All targets of a checkpoint's tensor: several rules may each take a part of it."""
        name = self.renamed(name)
        for rule in self.rules:
            if match := rule.pattern.fullmatch(name):
                groups = match.groupdict()
                target = rule.target.format(i=groups.get("i"))
                expert = int(groups["e"]) if "e" in groups else None
                yield MappedTensor(f"{target}.{groups['suffix']}".removesuffix("."), rule, expert)

    def is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def is_left_out(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.left_out)

    def needed(self, layers: int, experts: int) -> Iterator[str]:
        """The names of the weights that a checkpoint with this many layers and experts must have."""
        for rule in self.rules:
            if not rule.needed:
                continue
            for i in range(layers if "{i}" in rule.source else 1):
                for e in range(experts if rule.experts else 1):
                    suffix = ".weight" if rule.suffixes != ("",) else ""
                    yield f"{rule.source.format(i=i, e=e)}{suffix}"


_HEADS, _KV_HEADS = "attention.head_count", "attention.head_count_kv"

# Tensors outside of layers: embeddings, final norm, head (missing with tied embeddings).
OUTSIDE = (
    Rule("model.embed_tokens", "token_embd", suffixes=("weight",)),
    Rule("model.norm", "output_norm", suffixes=("weight",)),
    Rule("lm_head", "output", needed=False),
)
NORMS = (
    Rule("model.layers.{i}.input_layernorm", "blk.{i}.attn_norm", suffixes=("weight",)),
    Rule("model.layers.{i}.post_attention_layernorm", "blk.{i}.ffn_norm", suffixes=("weight",)),
)
_ATTENTION = "model.layers.{i}.self_attn."
ATTENTION = (
    Rule(f"{_ATTENTION}q_proj", "blk.{i}.attn_q"),
    Rule(f"{_ATTENTION}k_proj", "blk.{i}.attn_k"),
    Rule(f"{_ATTENTION}v_proj", "blk.{i}.attn_v"),
    Rule(f"{_ATTENTION}o_proj", "blk.{i}.attn_output"),
)
# For architectures whose RoPE pairs are (2i, 2i+1) in GGUF and (i, i + n_rot/2) in the checkpoint.
ATTENTION_NEIGHBOURS = (
    Rule(f"{_ATTENTION}q_proj", "blk.{i}.attn_q", heads=_HEADS),
    Rule(f"{_ATTENTION}k_proj", "blk.{i}.attn_k", heads=_KV_HEADS),
    *ATTENTION[2:],
)
HEAD_NORMS = (
    Rule(f"{_ATTENTION}q_norm", "blk.{i}.attn_q_norm", suffixes=("weight",)),
    Rule(f"{_ATTENTION}k_norm", "blk.{i}.attn_k_norm", suffixes=("weight",)),
)
_MLP = "model.layers.{i}.mlp."
SWIGLU = tuple(Rule(f"{_MLP}{name}_proj", f"blk.{{i}}.ffn_{name}") for name in ("gate", "up", "down"))
EXPERTS = (
    Rule(f"{_MLP}gate", "blk.{i}.ffn_gate_inp", suffixes=("weight",)),
    *(
        Rule(f"{_MLP}experts.{{e}}.{name}_proj", f"blk.{{i}}.ffn_{name}_exps", suffixes=("weight",))
        for name in ("gate", "up", "down")
    ),
)
# Mixtral's experts, each of the size of a dense feed-forward.
_SPARSE = "model.layers.{i}.block_sparse_moe."
MIXTRAL_EXPERTS = (
    Rule(f"{_SPARSE}gate", "blk.{i}.ffn_gate_inp", suffixes=("weight",)),
    *(
        Rule(f"{_SPARSE}experts.{{e}}.{a}", f"blk.{{i}}.ffn_{b}_exps", suffixes=("weight",))
        for a, b in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
    ),
)
SHARED_EXPERTS = tuple(
    Rule(f"{_MLP}shared_experts.{name}_proj", f"blk.{{i}}.ffn_{name}_shexp")
    for name in ("gate", "up", "down")
)
# The bias of the router's scores for the selection of experts; it does not change their weights.
SCORE_BIAS = Rule(
    f"{_MLP}gate.e_score_correction_bias", "blk.{i}.exp_probs_b.bias", needed=False, suffixes=("",)
)


def unneeded(*rules: Rule) -> tuple[Rule, ...]:
    """The rules with needed=False, for tensors that only some layers have."""
    return tuple(replace(rule, needed=False) for rule in rules)


# Norms before and after both attention and feed-forward.
FOUR_NORMS = (
    Rule("model.layers.{i}.input_layernorm", "blk.{i}.attn_norm", suffixes=("weight",)),
    Rule("model.layers.{i}.post_attention_layernorm", "blk.{i}.post_attention_norm", suffixes=("weight",)),
    Rule("model.layers.{i}.pre_feedforward_layernorm", "blk.{i}.ffn_norm", suffixes=("weight",)),
    Rule("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm", suffixes=("weight",)),
)
# Gate and up fused in one tensor, the gate's rows first; GGUF stores it as ffn_up.
FUSED_SWIGLU = (Rule(f"{_MLP}gate_up_proj", "blk.{i}.ffn_up"), Rule(f"{_MLP}down_proj", "blk.{i}.ffn_down"))
LLAMA_BODY = (*OUTSIDE, *NORMS, *ATTENTION_NEIGHBOURS, *SWIGLU)
DENSE_BODY = (*OUTSIDE, *NORMS, *ATTENTION, *SWIGLU)

DENSE_KEYS = (
    Key("block_count", ("num_hidden_layers",)),
    Key("context_length", ("max_position_embeddings",)),
    Key("embedding_length", ("hidden_size",)),
    Key("feed_forward_length", ("intermediate_size",)),
    Key(_HEADS, ("num_attention_heads",)),
    Key(_KV_HEADS, ("num_key_value_heads",), default=_HEADS),
    Key("attention.layer_norm_rms_epsilon", ("rms_norm_eps",), float),
)
# DENSE_KEYS for models with LayerNorm.
CENTERED_KEYS = (
    *DENSE_KEYS[:-1],
    Key(
        "attention.layer_norm_epsilon",
        ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        float,
    ),
)
EXPERT_KEYS = (
    Key("expert_count", ("num_experts", "num_local_experts", "n_routed_experts")),
    Key("expert_used_count", ("num_experts_per_tok",)),
    Key("expert_feed_forward_length", ("moe_intermediate_size",)),
)
LOCAL_EXPERT_KEYS = (
    Key("expert_count", ("num_local_experts",)),
    Key("expert_used_count", ("num_experts_per_tok",)),
)
# Granite's factors: of embeddings, residual branches, attention scores, and the divisor of logits.
FACTOR_KEYS = (
    Key("embedding_scale", ("embedding_multiplier",), float, optional=True),
    Key("residual_scale", ("residual_multiplier",), float, optional=True),
    Key("attention.scale", ("attention_multiplier",), float, optional=True),
    Key("logit_scale", ("logits_scaling",), float, optional=True),
)
DENSE_GUARDS = (
    ConfigCheck("hidden_act", ("silu", "swish"), "silu"),
    ConfigCheck("use_sliding_window", (False, None)),
)


# Command R: one norm before both parts of a layer.
COHERE_RULES = (*OUTSIDE, NORMS[0], *ATTENTION, *SWIGLU)
COHERE_KEYS = (*CENTERED_KEYS, Key("logit_scale", ("logit_scale",), float))


def listed_windows(reader: ConfigReader, period: object) -> None:
    """Puts the layers with a sliding window: those in `layer_types`, else all but the last of
    each `period`.
    """
    layers = reader.number(reader.config.get("num_hidden_layers"), "num_hidden_layers", int, 1)
    names = ("full_attention", "sliding_attention")
    listed = reader.config.get("layer_types")
    if listed is None:
        every = reader.number(period, "sliding_window_pattern", int, 1)
        listed = [names[(i + 1) % every != 0] for i in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers or any(kind not in names for kind in listed):
        raise reader.fault("layer_types", f"{' or '.join(names)} for each of {layers} layers", listed)
    reader.put("attention.sliding_window_pattern", [kind == names[1] for kind in listed])


def check_layers(reader: ConfigReader, kind: Callable[[int], object], key: str = "layer_types") -> None:
    """Refuses a config whose list of layer types differs from kind(i), which the runtime computes."""
    listed = reader.config.get(key)
    if listed is None:
        return
    layers = reader.number(reader.config.get("num_hidden_layers"), "num_hidden_layers", int, 1)
    if not isinstance(listed, list) or len(listed) != layers:
        raise reader.fault(key, f"a list of {layers}", listed)
    for i, found in enumerate(listed):
        if found != kind(i):
            raise reader.fault(key, f"{kind(i)!r} for layer {i}", found, "other orders are not supported")


def every_second_near(reader: ConfigReader) -> None:
    """Checks that layers alternate between sliding-window and full attention, beginning with the window."""
    check_layers(reader, lambda i: ("sliding_attention", "full_attention")[i % 2])


def all_see_all(reader: ConfigReader) -> None:
    """Checks that all layers have full attention."""
    check_layers(reader, lambda i: "full_attention")


def none_near(reader: ConfigReader) -> None:
    """Checks that the sliding window, if any, is not smaller than the context."""
    seen, context = (reader.config.get(key) for key in ("sliding_window", "max_position_embeddings"))
    whole = isinstance(seen, int) and isinstance(context, int) and seen >= context
    if seen is not None and not whole:
        raise reader.fault("sliding_window", "null, or as much as the context", seen, "not supported here")


def with_bias(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules with optional biases for all tensors except the embeddings, as LayerNorm has them."""
    kept = (rule.target == "token_embd" for rule in rules)
    return tuple(
        rule if keep else replace(rule, suffixes=("weight", "bias"))
        for rule, keep in zip(rules, kept, strict=True)
    )


def plus_one(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules for checkpoints that store the weights of norms minus 1."""
    return tuple(replace(rule, made="plus_one") if "norm" in rule.target else rule for rule in rules)
