"""Checkpoints of the model families: published configurations scaled down, and random tensors whose values
are a function of their names. The shapes are those that transformers creates; see make_families.py.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import toy_checkpoint as toy

DATA = Path(__file__).parents[1] / "data" / "convert"
IDS = [7, 200, 3, 99, 258, 41, 41, 8, 120, 263, 5, 66, 177, 230, 12, 1, 250, 33, 90, 64, 2, 19, 77, 140]
KEPT = (5, -1)  # positions whose logits are stored

_BASE: dict[str, Any] = {
    "vocab_size": toy.VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GEMMA2 = {
    "head_dim": 32,
    "sliding_window": 9,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 10.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
}
_GEMMA3 = {
    "head_dim": 32,
    "sliding_window": 9,
    "query_pre_attn_scalar": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "num_hidden_layers": 7,
    "sliding_window_pattern": 6,
}
_GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "num_hidden_layers": 6,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 9,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 10.0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
        },
    },
    "tie_word_embeddings": True,
}
_SHARED = {
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": False,
    "num_global_key_value_heads": None,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": toy.VOCAB,
}
_LONG = {
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [1.0 + i for i in range(8)],
    },
    "original_max_position_embeddings": 64,
}
_FALCON = {
    "vocab_size": toy.VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "alibi": False,
    "bias": False,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 128,
}
_GPT2 = {
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "layer_norm_epsilon": 1e-5,
    "vocab_size": toy.VOCAB,
}
_MAMBA2 = {
    "vocab_size": toy.VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 20,
    "n_groups": 2,
    "conv_kernel": 4,
    "expand": 2,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
_DELTA = {
    "head_dim": 32,
    "num_hidden_layers": 5,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
}
_DELTA_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
# Case name -> (model_type, class, configuration).
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma2": ("gemma2", "Gemma2ForCausalLM", _BASE | _GEMMA2),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", _BASE | _GEMMA3),
    "gemma3_scaled": (
        "gemma3_text",
        "Gemma3ForCausalLM",
        _BASE | _GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "gemma4": ("gemma4_text", "Gemma4ForCausalLM", _BASE | _GEMMA4),
    "gemma4_shared": ("gemma4_text", "Gemma4ForCausalLM", _BASE | _GEMMA4 | _SHARED),
    "gemma4_moe": (
        "gemma4_text",
        "Gemma4ForCausalLM",
        _BASE
        | _GEMMA4
        | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32},
    ),
    "phi3": ("phi3", "Phi3ForCausalLM", _BASE | {"sliding_window": 9}),
    "phi3_long": ("phi3", "Phi3ForCausalLM", _BASE | _LONG),
    "phi3_beyond": ("phi3", "Phi3ForCausalLM", _BASE | _LONG | {"original_max_position_embeddings": 16}),
    "phi4_mini": (
        "phi3",
        "Phi3ForCausalLM",
        _BASE | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    ),
    "glm4": (
        "glm4",
        "Glm4ForCausalLM",
        _BASE | {"head_dim": 32, "partial_rotary_factor": 0.5, "attention_bias": True},
    ),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", _BASE | {"rms_norm_eps": 1e-6}),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", _BASE | {"num_hidden_layers": 4}),
    "granite": (
        "granite",
        "GraniteForCausalLM",
        _BASE
        | {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0156,
            "logits_scaling": 8.0,
        },
    ),
    "starcoder2": (
        "starcoder2",
        "Starcoder2ForCausalLM",
        _BASE
        | {
            "sliding_window": 9,
            "use_bias": True,
            "norm_epsilon": 1e-5,
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
        },
    ),
    "falcon": ("falcon", "FalconForCausalLM", _FALCON | {"multi_query": True, "parallel_attn": True}),
    "falcon_grouped": (
        "falcon",
        "FalconForCausalLM",
        _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False},
    ),
    "falcon_alibi": (
        "falcon",
        "FalconForCausalLM",
        _FALCON | {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
    ),
    "gpt2": ("gpt2", "GPT2LMHeadModel", _GPT2),
    "mamba2": ("mamba2", "Mamba2ForCausalLM", _MAMBA2),
    "qwen3next": ("qwen3_next", "Qwen3NextForCausalLM", _BASE | _DELTA | _DELTA_EXPERTS),
    "qwen35": ("qwen3_5_text", "Qwen3_5ForCausalLM", _BASE | _DELTA),
    "qwen35moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", _BASE | _DELTA | _DELTA_EXPERTS),
    "stablelm": (
        "stablelm",
        "StableLmForCausalLM",
        _BASE | {"partial_rotary_factor": 0.25, "use_qkv_bias": True, "layer_norm_eps": 1e-5},
    ),
    "stablelm_parallel": (
        "stablelm",
        "StableLmForCausalLM",
        _BASE | {"partial_rotary_factor": 0.5, "use_parallel_residual": True, "layer_norm_eps": 1e-5},
    ),
    "stablelm_heads": (
        "stablelm",
        "StableLmForCausalLM",
        _BASE
        | {"partial_rotary_factor": 0.25, "use_parallel_residual": True, "qk_layernorm": True}
        | {"layer_norm_eps": 1e-5},
    ),
    "qwen15": (
        "qwen2",
        "Qwen2ForCausalLM",
        _BASE | {"num_key_value_heads": 4, "use_sliding_window": False, "max_window_layers": 3},
    ),
}
# llama.cpp has the size of a head in Gemma 2's scale, no window in Phi 3 and StarCoder 2, takes LongRoPE's
# factors by a context of at least 256, and GELU's tanh from a table of f16.
PEER: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "phi3": {"sliding_window": None},
    "phi3_long": {"original_max_position_embeddings": 16},
    "starcoder2": {"sliding_window": None},
}
UNKNOWN_TO_PEER = ("falcon_alibi",)
Arrays = dict[str, npt.NDArray[np.float32]]


def config(case: str) -> dict[str, Any]:
    """config.json of a case."""
    kind, name, values = CASES[case]
    return {"architectures": [name], "model_type": kind} | values


def values_of(shapes: Mapping[str, Sequence[int]]) -> Arrays:
    """Random values for tensors of these names and shapes. The same name always gives the same values."""
    made: Arrays = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        shift = 1 if len(shape) == 1 and name.endswith("weight") else 0
        made[name] = (rng.standard_normal(shape) * 0.2 + shift).astype(np.float32)
    return made


def tensors(case: str, shapes: Mapping[str, Sequence[int]]) -> Arrays:
    """The tensor values of a case. Gemma 4's norms are small: it does not scale its attention scores, so with
    norms of the usual size a rounding error of GELU would grow a hundredfold.
    """
    made = values_of(shapes)
    tame = 0.1 if case.startswith("gemma4") else 1.0
    return {n: v * np.float32(tame) if n.endswith("q_norm.weight") else v for n, v in made.items()}


def shapes() -> dict[str, dict[str, list[int]]]:
    """The names and shapes of each case's tensors, as transformers saves them."""
    found: dict[str, dict[str, list[int]]] = json.loads((DATA / "families.json").read_text())
    return found


def write(folder: Path, settings: Mapping[str, Any], tensors: Arrays) -> Path:
    """Writes a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes(toy.safetensors(toy.stored(tensors)))
    toy.write_tokenizer(folder)
    return folder
