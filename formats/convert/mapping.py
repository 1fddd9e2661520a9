"""How a Hugging Face checkpoint of one architecture becomes GGUF: tables that the architecture's own file
states, made of the parts that stand here.

A table holds names alone. {i} in a name is a layer's number, {e} an expert's or
a head's.
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
    """A number of config.json under GGUF's name: `sources` are its spellings, the first that is there counts.

    target: after "<arch>.". default: GGUF's target whose value stands in for a missing one; optional: may be
    absent.
    """

    target: str
    sources: tuple[str, ...]
    kind: type[int] | type[float] = int
    default: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ConfigCheck:
    """A key of config.json whose value changes what the model computes: only `allowed` is known. A key that
    is missing means `absent`."""

    key: str
    allowed: tuple[Any, ...]
    absent: Any = None


class ConfigReader(Protocol):
    """The config.json being converted, as the function of an architecture sees it (see config.py)."""

    config: Config
    values: dict[str, Any]
    factors: dict[str, Any]  # divisors of rotary frequencies, by GGUF's name of the tensor

    def number(self, value: object, key: str, kind: type[int] | type[float], low: float = 0.0) -> Any: ...

    def put(self, key: str, value: Any) -> None: ...

    def check(self, guard: ConfigCheck) -> None: ...

    def fault(self, key: str, expected: str, got: object, do: str = ...) -> Exception: ...


@dataclass(frozen=True)
class Rule:
    """Tensors `source`.weight and `source`.bias become `target`.weight and .bias.

    heads: GGUF's key of the number of heads whose rows go from rotary halves to rotary neighbours. needed:
    the weight must be there. suffixes: what of the two there may be; ("",): both names are whole. made: a
    change of the numbers or their order, by its name in shaping.py. stack: GGUF's key of how many {e} there
    are.
    """

    source: str
    target: str
    heads: str = ""
    needed: bool = True
    suffixes: tuple[str, ...] = ("weight", "bias")
    made: str = ""
    stack: str = "expert_count"

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
    """The target of a checkpoint's tensor: its name in GGUF, the rule that maps it, and the expert's number
    where it is one of a stack.
    """

    name: str
    rule: Rule
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class ArchMapping:
    """What an architecture's file states as MAPPING.

    classes: of config.json's `architectures`; model_type: its other name. arch: what the file calls itself; a
    function where the config decides. ignored: patterns of tensors that hold nothing of the model. left_out:
    of such that hold what answers do without, said in a note. extra: puts what no Key can say. rope: whether
    heads have RoPE; partial: it may rotate a part of a head; partial_rotary_factor: which part, where the
    config is silent. head_dim: whether heads are all of one size, as config.json says or as they divide the
    width. whole: whether the borders of YaRN's ramp are whole pairs. renames: (pattern, replacement) that
    bring names of the checkpoint to those of the rules. seeing: classes that read pictures too and whose text
    model this is (seeing.py); flat: some of these have its configuration in their own. defaults: what their
    configurations leave out. only: of the classes' configurations those that it says.
    """

    classes: tuple[str, ...]
    model_type: str
    arch: str | Callable[[Config], str]
    rules: tuple[Rule, ...]
    keys: tuple[Key, ...]
    guards: tuple[ConfigCheck, ...] = ()
    ignored: tuple[str, ...] = (r".*\.rotary_emb\.inv_freq", r".*\.attn\.(masked_bias|bias)")
    left_out: tuple[str, ...] = ()
    extra: Callable[[ConfigReader], None] | None = None
    rope: bool = True
    partial: bool = False
    partial_rotary_factor: float = 1.0
    head_dim: bool = True
    whole: bool = True
    renames: tuple[tuple[str, str], ...] = ()
    seeing: tuple[str, ...] = ()
    flat: bool = False
    defaults: Config = field(default_factory=dict)
    only: Callable[[Config], bool] = lambda config: True

    def arch_of(self, config: Config) -> str:
        return self.arch if isinstance(self.arch, str) else self.arch(config)

    def renamed(self, name: str) -> str:
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def place(self, name: str) -> MappedTensor | None:
        """Where the checkpoint's tensor of this name goes, the first of its places; None where no rule knows
        it.
        """
        return next(self.places(name), None)

    def places(self, name: str) -> Iterator[MappedTensor]:
        """All places of the checkpoint's tensor of this name: several rules may take their part of it."""
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
        """The names of the weights that a checkpoint of so many layers and experts must have."""
        for rule in self.rules:
            if not rule.needed:
                continue
            for i in range(layers if "{i}" in rule.source else 1):
                for e in range(experts if rule.experts else 1):
                    suffix = ".weight" if rule.suffixes != ("",) else ""
                    yield f"{rule.source.format(i=i, e=e)}{suffix}"


_HEADS, _KV_HEADS = "attention.head_count", "attention.head_count_kv"

# The outside of every decoder: embeddings, last norm, head (which tied embeddings replace).
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
# The same where GGUF's architecture rotates pairs (2i, 2i+1) and the checkpoint pairs (i, i + n_rot/2).
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
# Experts as Mixtral has them, each of the size of a dense feed-forward.
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
# What is added to the router's scores where experts are picked, and only there.
SCORE_BIAS = Rule(
    f"{_MLP}gate.e_score_correction_bias", "blk.{i}.exp_probs_b.bias", needed=False, suffixes=("",)
)


def unneeded(*rules: Rule) -> tuple[Rule, ...]:
    """The same rules for tensors that some layers lack: which, the architecture says when it is built."""
    return tuple(replace(rule, needed=False) for rule in rules)


# Norms around both parts of a layer.
FOUR_NORMS = (
    Rule("model.layers.{i}.input_layernorm", "blk.{i}.attn_norm", suffixes=("weight",)),
    Rule("model.layers.{i}.post_attention_layernorm", "blk.{i}.post_attention_norm", suffixes=("weight",)),
    Rule("model.layers.{i}.pre_feedforward_layernorm", "blk.{i}.ffn_norm", suffixes=("weight",)),
    Rule("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm", suffixes=("weight",)),
)
# Gate and up in one tensor, the gate's rows first, which GGUF keeps as ffn_up.
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
# The same of models whose norms take the mean away.
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
# Granite's factors: on embeddings, on what a layer's parts add, on scores, under the logits.
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
    """Puts which layers have the window: as `layer_types` lists them, else all but the last of each
    `period`.
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
    """Refuses a list of the layers' kinds that says another one of a layer than kind(i), which is
    computed.
    """
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
    """The first layer has the window, the second none, and so on."""
    check_layers(reader, lambda i: ("sliding_attention", "full_attention")[i % 2])


def all_see_all(reader: ConfigReader) -> None:
    """No layer has a window."""
    check_layers(reader, lambda i: "full_attention")


def none_near(reader: ConfigReader) -> None:
    """No window is smaller than the context, in models where nothing else says whether it is used."""
    seen, context = (reader.config.get(key) for key in ("sliding_window", "max_position_embeddings"))
    whole = isinstance(seen, int) and isinstance(context, int) and seen >= context
    if seen is not None and not whole:
        raise reader.fault("sliding_window", "null, or as much as the context", seen, "not supported here")


def with_bias(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The same rules for tensors that may all have a bias, as norms that take the mean away do."""
    kept = (rule.target == "token_embd" for rule in rules)
    return tuple(
        rule if keep else replace(rule, suffixes=("weight", "bias"))
        for rule, keep in zip(rules, kept, strict=True)
    )


def plus_one(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The same rules, where what the checkpoint has of a norm is what its weight is more than 1."""
    return tuple(replace(rule, made="plus_one") if "norm" in rule.target else rule for rule in rules)
