"""How a Hugging Face checkpoint of one architecture becomes GGUF: tables that the architecture's own file
states, made of the parts that stand here.

A table holds names alone. {i} in a name is a layer's number, {e} an expert's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
class Guard:
    """A key of config.json whose value changes what the model computes: only `allowed` is known. A key that
    is missing means `absent`."""

    key: str
    allowed: tuple[Any, ...]
    absent: Any = None


@dataclass(frozen=True)
class Rule:
    """Tensors `source`.weight and `source`.bias become `target`.weight and .bias.

    heads: GGUF's key of the number of heads whose rows go from rotary halves to rotary neighbours. needed:
    the weight must be there. suffix: what of the two there may be.
    """

    source: str
    target: str
    heads: str = ""
    needed: bool = True
    suffixes: tuple[str, ...] = ("weight", "bias")

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"\{([ie])\}", self.source)
        body = "".join(
            f"(?P<{p}>0|[1-9][0-9]{{0,5}})" if n % 2 else re.escape(p) for n, p in enumerate(parts)
        )
        return re.compile(rf"{body}\.(?P<suffix>{'|'.join(self.suffixes)})")

    @property
    def experts(self) -> bool:
        return "{e}" in self.source


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor of a checkpoint goes: name in GGUF, the rule, and the expert's number where it is one of
    a stack."""

    name: str
    rule: Rule
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class ArchMapping:
    """What an architecture's file states as MAPPING.

    classes: of config.json's `architectures`; model_type: its other name. arch: what the file calls itself;
    a function where the config decides. ignored: patterns of tensors that hold nothing of the model.
    """

    classes: tuple[str, ...]
    model_type: str
    arch: str | Callable[[Config], str]
    rules: tuple[Rule, ...]
    keys: tuple[Key, ...]
    guards: tuple[Guard, ...] = ()
    ignored: tuple[str, ...] = (r".*\.rotary_emb\.inv_freq", r".*\.attn\.(masked_bias|bias)")

    def arch_of(self, config: Config) -> str:
        return self.arch if isinstance(self.arch, str) else self.arch(config)

    def place(self, name: str) -> Place | None:
        """Where the checkpoint's tensor of this name goes; None where no rule knows it."""
        for rule in self.rules:
            if match := rule.pattern.fullmatch(name):
                groups = match.groupdict()
                target = rule.target.format(i=groups.get("i"))
                expert = int(groups["e"]) if "e" in groups else None
                return Place(f"{target}.{groups['suffix']}", rule, expert)
        return None

    def is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def needed(self, layers: int, experts: int) -> Iterator[str]:
        """The names of the weights that a checkpoint of so many layers and experts must have."""
        for rule in self.rules:
            if not rule.needed:
                continue
            for i in range(layers if "{i}" in rule.source else 1):
                for e in range(experts if rule.experts else 1):
                    yield f"{rule.source.format(i=i, e=e)}.weight"


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
# The same where GGUF's architecture turns neighbours and the checkpoint the two halves of a head.
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
EXPERT_KEYS = (
    Key("expert_count", ("num_experts", "num_local_experts")),
    Key("expert_used_count", ("num_experts_per_tok",)),
    Key("expert_feed_forward_length", ("moe_intermediate_size",)),
)
DENSE_GUARDS = (
    Guard("hidden_act", ("silu", "swish"), "silu"),
    Guard("use_sliding_window", (False, None)),
)
