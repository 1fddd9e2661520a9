"""Gemma 4 (text, dense and mixture of experts): Gemma 3's layer with two head sizes, last layers that share
the KV cache of earlier ones, and per-layer embeddings; some models have experts beside the dense
feed-forward.

Layers with a sliding window have the smaller heads. A layer without V uses K before its norm and RoPE.
"""

from __future__ import annotations

import numpy as np

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
    Rule,
    unneeded,
)
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch, Cache, HParams, Weights
from satchel.runtime.layers.blocks import (
    attend,
    capped,
    geglu,
    geglu_of,
    head_norm,
    linear,
    post_norm_layer,
    rope_frequencies,
    scaled,
    write_cache,
)
from satchel.runtime.layers.mixture import experts

STILL = 1e30  # RoPE factor of pairs that are not rotated
PERIOD = 6
_LAYER = "model.layers.{i}."
_EXPERT_KEYS = (
    ("expert_count", "num_experts"),
    ("expert_used_count", "top_k_experts"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
)
# Experts beside the dense feed-forward have norms of their own.
_EXPERTS = unneeded(
    *(
        Rule(f"{_LAYER}{source}_layernorm_{n}", f"blk.{{i}}.{target}_{n}", suffixes=("weight",))
        for source, target, n in (
            ("pre_feedforward", "pre_ffw_norm", 2),
            ("post_feedforward", "post_ffw_norm", 1),
            ("post_feedforward", "post_ffw_norm", 2),
        )
    ),
    Rule(f"{_LAYER}router.proj", "blk.{i}.ffn_gate_inp", suffixes=("weight",)),
    Rule(f"{_LAYER}router.scale", "blk.{i}.ffn_gate_inp.scale", suffixes=("",)),
    Rule(f"{_LAYER}router.per_expert_scale", "blk.{i}.ffn_down_exps.scale", suffixes=("",)),
    Rule(f"{_LAYER}experts.gate_up_proj", "blk.{i}.ffn_gate_exps.weight", suffixes=("",), made="first_rows"),
    Rule(f"{_LAYER}experts.gate_up_proj", "blk.{i}.ffn_up_exps.weight", suffixes=("",), made="second_rows"),
    Rule(f"{_LAYER}experts.down_proj", "blk.{i}.ffn_down_exps.weight", suffixes=("",)),
)


def _kinds(reader: ConfigReader) -> list[bool]:
    """Whether each layer has a sliding window."""
    layers = reader.number(reader.config.get("num_hidden_layers"), "num_hidden_layers", int, 1)
    stated = reader.config.get("layer_types")
    if stated is None:
        return [(i + 1) % PERIOD != 0 and i + 1 != layers for i in range(layers)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(stated, list) or len(stated) != layers or any(kind not in known for kind in stated):
        raise reader.fault("layer_types", f"{layers} of {' and '.join(known)}", stated)
    return [kind == known[0] for kind in stated]


def _large(reader: ConfigReader, near: list[bool]) -> tuple[object, object]:
    """Size and number of KV heads of the layers with full attention: from keys of their own, or per layer in
    newer configs.
    """
    config = reader.config
    each = config.get("per_layer_config")
    if each is None:
        few = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
        return config.get("global_head_dim") or 512, few or config.get("num_key_value_heads")
    wanted = {str(i) for i, n in enumerate(near) if not n}
    kinds = {"head_dim", "num_key_value_heads"}
    rows = list(each.values()) if isinstance(each, dict) and set(each) == wanted else []
    first = rows[0] if rows and isinstance(rows[0], dict) else {"": 0}
    if any(row != first for row in rows) or set(first) - kinds:
        raise reader.fault("per_layer_config", "one size of heads for all layers without a window", each)
    return first.get("head_dim"), first.get("num_key_value_heads", config.get("num_key_value_heads"))


def _extra(reader: ConfigReader) -> None:
    """What differs between layers: head sizes and counts, windows, feed-forward sizes, RoPE bases."""
    config, near = reader.config, _kinds(reader)
    dim, few = _large(reader, near)
    small = reader.number(config.get("head_dim") or 256, "head_dim", int, 2)
    large = reader.number(dim, "global_head_dim", int, 2)
    for part in ("key", "value"):
        reader.put(f"attention.{part}_length", large)
        reader.put(f"attention.{part}_length_swa", small)
    reader.put("attention.sliding_window_pattern", near)
    heads = reader.number(config.get("num_key_value_heads"), "num_key_value_heads", int, 1)
    few = reader.number(few, "num_global_key_value_heads", int, 1)
    reader.put("attention.head_count_kv", [heads if n else few for n in near])
    shared = config.get("num_kv_shared_layers") or 0
    if shared:
        shared = reader.number(shared, "num_kv_shared_layers", int, 1)
        reader.put("attention.shared_kv_layers", shared)
    size = reader.number(config.get("intermediate_size"), "intermediate_size", int, 1)
    wide = 2 if config.get("use_double_wide_mlp") else 1
    sizes = [size if i < len(near) - shared else wide * size for i in range(len(near))]
    reader.put("feed_forward_length", sizes if wide == 2 and shared else size)
    own = config.get("hidden_size_per_layer_input") or 0
    own = reader.number(own, "hidden_size_per_layer_input", int, 1) if own else 0
    reader.put("embedding_length_per_layer_input", own)
    _rope_keys(reader, small, large)
    if config.get("enable_moe_block"):
        for key, source in _EXPERT_KEYS:
            reader.put(key, reader.number(config.get(source), source, int, 1))


def _rope_keys(reader: ConfigReader, small: int, large: int) -> None:
    """RoPE bases, and the number of rotated pairs of the large heads."""
    stated = reader.config.get("rope_parameters") or {}
    names = ("full_attention", "sliding_attention")
    if not isinstance(stated, dict) or not all(isinstance(stated.get(name, {}), dict) for name in names):
        raise reader.fault("rope_parameters", f"an object for {' and '.join(names)}", stated)
    full, sliding = (stated.get(name, {}) for name in names)
    for kind, known in ((full, ("proportional", "default")), (sliding, ("default",))):
        if kind.get("rope_type", known[0]) not in known or kind.get("factor", 1.0) != 1.0:
            raise reader.fault("rope_type", " or ".join(known), kind, "other scalings are not supported")
    reader.put("rope.freq_base", reader.number(full.get("rope_theta", 1e6), "rope_theta", float, 1e-6))
    reader.put("rope.freq_base_swa", reader.number(sliding.get("rope_theta", 1e4), "rope_theta", float, 1e-6))
    reader.put("rope.dimension_count", large)
    reader.put("rope.dimension_count_swa", small)
    usual = 0.25 if full.get("rope_type", "proportional") == "proportional" else 1.0
    part = reader.number(full.get("partial_rotary_factor", usual), "partial_rotary_factor", float, 1e-6)
    rotated = min(int(part * large // 2), large // 2)
    divisors = np.where(np.arange(large // 2) < rotated, 1, STILL)
    reader.factors["rope_freqs.weight"] = divisors.astype(np.float32)


MAPPING = ArchMapping(
    classes=("Gemma4ForCausalLM",),
    multimodal=("Gemma4ForConditionalGeneration",),
    model_type="gemma4_text",
    arch="gemma4",
    rules=(
        *OUTSIDE,
        Rule("model.embed_tokens_per_layer", "per_layer_token_embd", needed=False, suffixes=("weight",)),
        Rule("model.per_layer_model_projection", "per_layer_model_proj", needed=False, suffixes=("weight",)),
        Rule("model.per_layer_projection_norm", "per_layer_proj_norm", needed=False, suffixes=("weight",)),
        *FOUR_NORMS,
        ATTENTION[0],
        Rule(f"{_LAYER}self_attn.k_proj", "blk.{i}.attn_k", needed=False),
        Rule(f"{_LAYER}self_attn.v_proj", "blk.{i}.attn_v", needed=False),
        ATTENTION[3],
        HEAD_NORMS[0],
        Rule(f"{_LAYER}self_attn.k_norm", "blk.{i}.attn_k_norm", needed=False, suffixes=("weight",)),
        *SWIGLU,
        *_EXPERTS,
        Rule(f"{_LAYER}per_layer_input_gate", "blk.{i}.inp_gate", needed=False, suffixes=("weight",)),
        Rule(f"{_LAYER}per_layer_projection", "blk.{i}.proj", needed=False, suffixes=("weight",)),
        Rule(f"{_LAYER}post_per_layer_input_norm", "blk.{i}.post_norm", needed=False, suffixes=("weight",)),
        Rule(f"{_LAYER}layer_scalar", "blk.{i}.layer_output_scale.weight", needed=False, suffixes=("",)),
    ),
    keys=(
        *(key for key in DENSE_KEYS if key.target not in ("feed_forward_length", "attention.head_count_kv")),
        Key("attention.sliding_window", ("sliding_window",)),
        Key("final_logit_softcapping", ("final_logit_softcapping",), float, optional=True),
    ),
    guards=(
        ConfigCheck("hidden_activation", ("gelu_pytorch_tanh", None), None),
        ConfigCheck("enable_moe_block", (False, True, None)),
        ConfigCheck("attention_bias", (False, None)),
        ConfigCheck("use_bidirectional_attention", (None, "vision")),  # "vision": image tokens alone
    ),
    extra=_extra,
    rope=False,
    head_dim=False,
)


class Gemma4(Arch):
    def __init__(self, hp: HParams, weights: Weights, cache: Cache) -> None:
        super().__init__(hp, weights, cache)
        self.near = hp.flags("attention.sliding_window_pattern", self.layers)
        self.small = hp.uint("attention.key_length_swa", high=4096)
        self.own = hp.uint("embedding_length_per_layer_input", 0, low=0)
        shared = hp.uint("attention.shared_kv_layers", 0, low=0)
        first = self.layers - shared
        if first <= 0 or not {*self.near[first:]} <= {*self.near[:first]}:
            key = f"{hp.arch}.attention.shared_kv_layers"
            raise hp.metadata.fault(key, "layers to read from for each kind of layer", shared)
        for key, size in (("value_length", self.head_dim), ("value_length_swa", self.small)):
            if hp.uint(f"attention.{key}", size) != size:
                found = hp.uint(f"attention.{key}", size)
                raise hp.metadata.fault(f"{hp.arch}.attention.{key}", f"that of keys, {size}", found)
        for key, size in (("", self.head_dim), ("_swa", self.small)):
            if (found := hp.uint(f"rope.dimension_count{key}", size)) != size:
                raise hp.metadata.fault(f"{hp.arch}.rope.dimension_count{key}", f"the heads' {size}", found)
        known = [(n, [j for j in range(first) if self.near[j] == n]) for n in (False, True)]
        latest = {n: found[-1] for n, found in known if found}
        self.source = tuple(i if i < first else latest[self.near[i]] for i in range(self.layers))
        self.caches: dict[int, tuple[Node, ...]] = {}
        self.inputs: Node | None = None

    def dim(self, i: int) -> int:
        """Head size of layer i."""
        return self.small if self.near[i] else self.head_dim

    def kept(self, i: int, cache: Cache) -> tuple[tuple[int, int, str], ...]:
        if self.source[i] != i:
            return ()
        return tuple((self.kv_heads[i], self.dim(i), format) for format in (cache.keys, cache.values))

    def window(self, i: int) -> int:
        seen = self.hp.uint("attention.sliding_window", high=1 << 30)
        return seen if self.near[i] else 0

    def embed(self, ids: Node) -> Node:
        x = scaled(self, super().embed(ids), self.width**0.5)
        if self.own:
            size = self.layers * self.own
            rows = ops.get_rows(self.weight("per_layer_token_embd.weight", None, size), ids)
            y = scaled(self, linear(self, x, "per_layer_model_proj", size), self.width**-0.5)
            y = self.norm(ops.reshape(y, shape=(self.layers, self.own)), "per_layer_proj_norm")
            y = ops.add(ops.reshape(y, shape=(size,)), scaled(self, rows, self.own**0.5))
            self.inputs = ops.reshape(scaled(self, y, 0.5**0.5), shape=(1, size))
        return x

    def layer(self, x: Node, i: int) -> Node:
        if self.weights.type(f"blk.{i}.ffn_gate_inp.weight") is None:
            x = post_norm_layer(self, x, i, feed=geglu, attend=self._attend)
        else:
            x = self._with_experts(x, i)
        if self.inputs is not None:
            gate = ops.gelu(linear(self, x, f"blk.{i}.inp_gate", self.own), style=0)
            # A copy, not a view: layers may be on different devices.
            one = ops.take(self.inputs, start=i * self.own, size=self.own)
            y = linear(self, ops.mul(gate, ops.reshape(one, shape=(self.own,))), f"blk.{i}.proj", self.width)
            x = ops.add(x, self.norm(y, f"blk.{i}.post_norm"))
        name = f"blk.{i}.layer_output_scale.weight"
        if self.optional(name, 1) is None:
            return x
        return scaled(self, x, float(self.weights.array(name).reshape(())))

    def _with_experts(self, x: Node, i: int) -> Node:
        """Layer with experts: norms around attention, around the dense feed-forward, around the experts, and
        after the sum of these two. The router's input is the residual stream under a norm with its own
        factors.
        """
        p = f"blk.{i}."
        y = self._attend(self, self.norm(x, f"{p}attn_norm"), i)
        x = ops.add(x, self.norm(y, f"{p}post_attention_norm"))
        dense = self.norm(geglu(self, self.norm(x, f"{p}ffn_norm"), i), f"{p}post_ffw_norm_1")
        self.weight(f"{p}ffn_gate_inp.scale", self.width)
        factors = self.weights.array(f"{p}ffn_gate_inp.scale") * self.width**-0.5
        asked = ops.rms_norm(x, self.graph.const(factors.astype(np.float32), "f32", "asked"), eps=self.eps)
        few = experts(self, self.norm(x, f"{p}pre_ffw_norm_2"), i, gate=geglu_of, asked=asked)
        y = ops.add(dense, self.norm(few, f"{p}post_ffw_norm_2"))
        return ops.add(x, self.norm(y, f"{p}post_ffw_norm"))

    def _rotate(self, x: Node, i: int) -> Node:
        base = self.hp.real("rope.freq_base_swa", 10000.0, low=1e-6) if self.near[i] else 0.0
        freq, scale = rope_frequencies(self, self.dim(i), base)
        cos_sin = ops.rope_table(self.pos, self.graph.const(freq, "f32", "rope_freq"), scale=scale)
        return ops.rope(x, cos_sin, style=self.rope_style)

    def _keys_and_values(self, x: Node, i: int) -> tuple[Node, ...]:
        """The caches of layer i, with this step's tokens written."""
        p, heads, dim = f"blk.{i}.attn_", self.kv_heads[i], self.dim(i)
        raw = linear(self, x, f"{p}k", heads * dim)
        same = self.weights.type(f"{p}v.weight") is None and not self.near[i]
        value = raw if same else linear(self, x, f"{p}v", heads * dim)
        ones = self.graph.const(np.ones(dim, np.float32), "f32", "one")
        value = ops.rms_norm(ops.reshape(value, shape=(heads, dim)), ones, eps=self.eps)
        return write_cache(self, self._rotate(head_norm(self, raw, f"{p}k_norm", heads), i), value, i)

    def _attend(self, a: Arch, x: Node, i: int) -> Node:
        heads, source = self.heads[i], self.source[i]
        if source == i:
            self.caches[i] = self._keys_and_values(x, i)
        q = linear(self, x, f"blk.{i}.attn_q", heads * self.dim(i))
        q = self._rotate(head_norm(self, q, f"blk.{i}.attn_q_norm", heads), i)
        return attend(self, q, self.caches[source], i, scale=1.0)

    def head(self, x: Node) -> Node:
        return capped(self, super().head(x))
