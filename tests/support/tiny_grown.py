"""Tiny random models of the architectures whose tensors differ from Llama's: each tensor is created, in the
shape that is requested, when the architecture's definition asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from satchel.formats.gguf import Metadata
from satchel.quant.recipes import fit_format
from satchel.runtime.graph import Array, Node, Type
from satchel.runtime.layers.arch import Arch, Cache, HParams, find_arch


@dataclass(frozen=True)
class Spec:
    """What a tiny model of an architecture needs beyond the defaults."""

    metadata: dict[str, object] = field(default_factory=dict)  # keys beyond those of all tiny models
    # Shapes of tensors that determine what the architecture does; {i} is a layer. Other tensors are created
    # on request.
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    biases: tuple[str, ...] = ()  # a tensor whose name ends so has a bias


W, QKV, FFN, DIM, VOCAB, CONTEXT = 256, 512, 512, 64, 288, 96
HEAD_NORMS: dict[str, tuple[int, ...]] = {
    "blk.{i}.attn_q_norm.weight": (DIM,),
    "blk.{i}.attn_k_norm.weight": (DIM,),
}
WIDE_NORMS: dict[str, tuple[int, ...]] = {
    "blk.{i}.attn_q_norm.weight": (4 * DIM,),
    "blk.{i}.attn_k_norm.weight": (2 * DIM,),
}
FUSED = {"blk.{i}.attn_qkv.weight": (QKV, W)}
DOUBLE = {"blk.{i}.ffn_up.weight": (2 * FFN, W)}
CENTERED: dict[str, object] = {"attention.layer_norm_epsilon": 1e-5}
ENCODER: dict[str, object] = {"attention.head_count_kv": 4, "attention.causal": False}
FUSED_ALL = {"blk.{i}.attn_qkv.weight": (3 * W, W)}
ALL = ("norm", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_up", "ffn_down")
YARN: dict[str, object] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
LATENT: dict[str, object] = {
    "attention.head_count_kv": 1,
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.key_length_mla": 96,
    "attention.value_length_mla": 64,
    "attention.kv_lora_rank": 64,
    "rope.dimension_count": 32,
    "rope.scaling.yarn_log_multiplier": 0.1,
}
EXPERTS: dict[str, object] = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 256,
}
GROUPS: dict[str, object] = {
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 0.9,
}
# top_k is smaller than a test's text, so attention is sparse.
INDEXER: dict[str, object] = {
    "attention.indexer.head_count": 3,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 7,
}
# Two layers with a sliding window and small heads, between them one without V; the last one shares the first
# one's KV cache.
TWO_SIZES: dict[str, object] = {
    "attention.key_length": 128,
    "attention.value_length": 128,
    "attention.key_length_swa": DIM,
    "attention.value_length_swa": DIM,
    "attention.sliding_window": 4096,
    "attention.sliding_window_pattern": [True, False, True],
    "attention.shared_kv_layers": 1,
    "embedding_length_per_layer_input": 256,
}
OWN_SIZES: dict[str, tuple[int, ...]] = {
    **{f"blk.{i}.attn_{n}_norm.weight": (d,) for i, d in ((0, DIM), (1, 128)) for n in "qk"},
    "blk.2.attn_q_norm.weight": (DIM,),
    "blk.{i}.layer_output_scale.weight": (1,),
}
DELTA: dict[str, object] = {
    "full_attention_interval": 2,
    "ssm.inner_size": 256,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "ssm.state_size": 64,
    "ssm.conv_kernel": 4,
    "rope.dimension_count": 16,
}
HEAD_NORMS_OF_ONE: dict[str, tuple[int, ...]] = {f"blk.1.attn_{n}_norm.weight": (DIM,) for n in "qk"}
HEADS_OWN_NORMS: dict[str, tuple[int, ...]] = {
    "blk.{i}.attn_q_norm.weight": (4, DIM),
    "blk.{i}.attn_k_norm.weight": (2, DIM),
}
FUSED_EXPERTS_OF_ONE: dict[str, tuple[int, ...]] = {
    "blk.1.ffn_gate_inp.weight": (8, W),
    "blk.1.ffn_gate_up_exps.weight": (8, 512, W),
    "blk.1.ffn_down_exps.scale": (8,),
}
FACTORS: dict[str, object] = {
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "attention.scale": 0.1,
    "logit_scale": 8.0,
}
SHARED = {"blk.{i}.ffn_gate_shexp.weight": (256, W), "blk.{i}.ffn_gate_inp_shexp.weight": (W,)}
SPECS: dict[str, Spec] = {
    "deepseek2": Spec(
        LATENT | YARN | EXPERTS | GROUPS | {"leading_dense_block_count": 1},
        {
            "blk.{i}.attn_q_a.weight": (128, W),
            "blk.1.ffn_gate_shexp.weight": (256, W),
            "blk.2.ffn_gate_shexp.weight": (256, W),
        },
        ("exp_probs_b",),
    ),
    "deepseek32": Spec(
        LATENT | YARN | EXPERTS | GROUPS | INDEXER | {"leading_dense_block_count": 1},
        {
            "blk.{i}.attn_q_a.weight": (128, W),
            "blk.1.ffn_gate_shexp.weight": (256, W),
            "blk.2.ffn_gate_shexp.weight": (256, W),
        },
        ("exp_probs_b", "indexer.k_norm"),
    ),
    "gpt_oss": Spec(
        YARN | EXPERTS | {"attention.sliding_window": 4096},
        {"blk.{i}.attn_sinks.weight": (4,)},
        ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "_exps"),
    ),
    "llama4": Spec(
        EXPERTS
        | {"expert_used_count": 1, "attention.sliding_window": 20, "interleave_moe_layer_step": 2}
        | {"block_count": 4},
        {f"blk.{i}.ffn_gate_shexp.weight": (256, W) for i in (1, 3)},
    ),
    "chatglm": Spec({"rope.dimension_count": 32}, FUSED | DOUBLE, ("attn_qkv",)),
    "mistral3": Spec(
        YARN
        | {"attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0}
        | {"rope.scaling.original_context_length": 16}
    ),
    "qwen2moe": Spec(
        EXPERTS,
        {"blk.{i}.ffn_gate_shexp.weight": (256, W), "blk.{i}.ffn_gate_inp_shexp.weight": (W,)},
        ("attn_q", "attn_k", "attn_v"),
    ),
    "bert": Spec(
        CENTERED | ENCODER,
        {"token_types.weight": (2, W), "position_embd.weight": (CONTEXT, W)},
        (*ALL, "embd_norm", "output_norm"),
    ),
    "nomic_bert": Spec(
        CENTERED | ENCODER, FUSED_ALL | {"token_types.weight": (2, W)}, ("embd_norm", "output_norm")
    ),
    "jina_bert_v2": Spec(
        CENTERED | ENCODER, DOUBLE | {"token_types.weight": (2, W)}, ("attn_q", "attn_k", "attn_v", "norm")
    ),
    "modern_bert": Spec(
        CENTERED | ENCODER | {"attention.sliding_window": 16, "rope.freq_base_swa": 1000.0},
        FUSED_ALL | DOUBLE | {f"blk.{i}.attn_norm.weight": (W,) for i in (1, 2)},
    ),
    "falcon": Spec(CENTERED, FUSED | {"blk.{i}.attn_norm_2.weight": (W,)}, ("norm", "norm_2")),
    "gemma2": Spec({"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}),
    "gemma3": Spec({"attention.sliding_window": 4096, "attention.sliding_window_pattern": 3}, HEAD_NORMS),
    "gemma4": Spec(TWO_SIZES | EXPERTS, OWN_SIZES | FUSED_EXPERTS_OF_ONE),
    "gemma": Spec(),
    "olmoe": Spec(EXPERTS | {"expert_feed_forward_length": 256}, WIDE_NORMS),
    "phimoe": Spec(
        {"expert_count": 8, "expert_used_count": 2},
        {},
        ("attn_q", "attn_k", "attn_v", "attn_output", "norm", "output"),
    ),
    "granitemoe": Spec(FACTORS | EXPERTS, {"blk.{i}.ffn_gate_shexp.weight": (256, W)}),
    "granitehybrid": Spec(
        FACTORS
        | EXPERTS
        | {"attention.head_count_kv": [0, 2, 0], "ssm.inner_size": 512, "ssm.time_step_rank": 8}
        | {"ssm.state_size": 24, "ssm.group_count": 2, "ssm.conv_kernel": 4},
        {"blk.{i}.ffn_gate_shexp.weight": (256, W)},
        ("ssm_conv1d",),
    ),
    "hunyuan_dense": Spec(),
    "ernie4_5": Spec(),
    "seed_oss": Spec({}, {}, ("attn_q", "attn_k", "attn_v")),
    "exaone4": Spec({"attention.sliding_window": 4096, "attention.sliding_window_pattern": 2}, HEAD_NORMS),
    "command_r": Spec(CENTERED | {"logit_scale": 0.25}, HEADS_OWN_NORMS),
    "cohere2": Spec(
        CENTERED
        | {"logit_scale": 0.25, "attention.sliding_window": 4096, "attention.sliding_window_pattern": 2}
    ),
    "glm4": Spec({"rope.dimension_count": 32}, DOUBLE, ("attn_q", "attn_k", "attn_v")),
    "glm4moe": Spec(
        EXPERTS | {"expert_weights_norm": True, "leading_dense_block_count": 1, "rope.dimension_count": 32},
        {**HEAD_NORMS, **{f"blk.{i}.ffn_gate_shexp.weight": (256, W) for i in (1, 2)}},
        ("attn_q", "attn_k", "attn_v", "exp_probs_b"),
    ),
    "gpt2": Spec(CENTERED, FUSED, ALL),
    "granite": Spec(FACTORS),
    "mamba2": Spec(
        {"attention.head_count": 0, "ssm.inner_size": 512, "ssm.time_step_rank": 8, "ssm.state_size": 24}
        | {"ssm.group_count": 2, "ssm.conv_kernel": 4},
        {},
        ("ssm_conv1d",),
    ),
    "olmo2": Spec({}, WIDE_NORMS),
    "phi3": Spec({"rope.dimension_count": 48}, FUSED | DOUBLE),
    "qwen35": Spec(DELTA, HEAD_NORMS_OF_ONE),
    "qwen35moe": Spec(DELTA | EXPERTS, HEAD_NORMS_OF_ONE | SHARED),
    "qwen3next": Spec(
        DELTA | EXPERTS,
        HEAD_NORMS_OF_ONE | SHARED | {f"blk.{i}.ssm_ba.weight": (8, W) for i in (0, 2)},
    ),
    "smollm3": Spec({"block_count": 4}),
    "stablelm": Spec(CENTERED | {"rope.dimension_count": 16}, {}, ("norm", "attn_q", "attn_k", "attn_v")),
    "starcoder2": Spec(CENTERED, {}, ALL),
}


class Sink(Protocol):
    """Receives the tensors: tiny.TinyWeights."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def type(self, name: str) -> Type | None: ...

    def array(self, name: str) -> Array: ...

    def put(self, name: str, values: Array, format: str = "f32") -> None: ...


def grow(metadata: Metadata, arch: str, w: Sink, format: str, seed: int, tied: bool, other: str) -> None:
    """Adds every tensor that the architecture asks for to w. other: the format of V and the down
    projection.
    """
    rng, spec = np.random.default_rng(seed), SPECS[arch]

    def make(name: str, shape: tuple[int, ...]) -> None:
        vector = len(shape) == 1 or name.startswith(("position", "token_types"))
        part = name.split(".")[-2]
        vector = vector or part in ("ffn_gate_inp", "ssm_conv1d") or name.endswith((".bias", "_norm.weight"))
        kind = "f32" if vector else fit_format(other if part in ("attn_v", "ffn_down") else format, shape[-1])
        shift = 1.0 if len(shape) == 1 and name.endswith("norm.weight") else 0.0
        scale = 0.1 if vector else 0.05
        w.put(name, (rng.standard_normal(shape) * scale + shift).astype(np.float32), kind)

    class Growing(find_arch(arch)):  # type: ignore[misc]
        def weight(self: Arch, name: str, *shape: int | None) -> Node:
            if w.type(name) is None:
                make(name, tuple(VOCAB if size is None else size for size in shape))
            return super().weight(name, *shape)  # type: ignore[no-any-return, misc]

        def optional(self: Arch, name: str, *shape: int | None) -> Node | None:
            part, suffix = name.split(".")[-2:]
            wanted = suffix == "bias" and any(part.endswith(end) for end in spec.biases)
            known = wanted or w.type(name) is not None
            return self.weight(name, *shape) if known else None

    hp = HParams(metadata, arch)
    for i in range(hp.uint("block_count")):
        for name, shape in spec.tensors.items():
            make(name.format(i=i), shape)
    if not tied:
        make("output.weight", (VOCAB, W))
    Growing(hp, w, Cache(context=CONTEXT)).build()
