"""Checkpoints of families with unusual layers; plain decoders are in families.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import toy_checkpoint as toy
import toy_sentences

_BASE: dict[str, Any] = {
    "vocab_size": toy.VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
}
_YARN = {
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    }
}
_PLAIN_YARN = {
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": 1.2079441541679836,
    }
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepseek_v2_lite": (
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        _BASE
        | _LATENT
        | _YARN
        | {
            "q_lora_rank": None,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
        },
    ),
    "deepseek_v2": (
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        _BASE
        | _LATENT
        | {
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "routed_scaling_factor": 16.0,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        _BASE
        | _LATENT
        | _YARN
        | {
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "num_nextn_predict_layers": 0,
        },
    ),
}
# All but the first few of 24 tokens select among earlier tokens (sparse attention).
CASES["deepseek_v32"] = (
    "deepseek_v32",
    "DeepseekV32ForCausalLM",
    CASES["deepseek_v3"][2] | {"index_n_heads": 3, "index_head_dim": 32, "index_topk": 6},
)
CASES |= {
    "mixtral": (
        "mixtral",
        "MixtralForCausalLM",
        _BASE | {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "gpt_oss": (
        "gpt_oss",
        "GptOssForCausalLM",
        _BASE
        | {
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            "swiglu_limit": 7.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "llama4": (
        "llama4_text",
        "Llama4ForCausalLM",
        {
            **_BASE,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 48,
            "intermediate_size_mlp": 96,
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8,
            "floor_scale": 8192,
            "attn_scale": 0.1,
            "use_qk_norm": True,
            "rms_norm_eps": 1e-5,
        },
    ),
}
CASES |= {  # cases that llama.cpp computes equally
    "gpt_oss_unscaled": (
        *CASES["gpt_oss"][:2],
        CASES["gpt_oss"][2] | {"rope_scaling": None, "rope_parameters": {"rope_type": "default"}},
    ),
    "llama4_near": (*CASES["llama4"][:2], CASES["llama4"][2] | {"attention_chunk_size": 8192}),
}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
CASES |= {
    "qwen2_moe": (
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        _BASE | _MOE | {"num_experts": 6, "shared_expert_intermediate_size": 48, "norm_topk_prob": False},
    ),
    "glm4_moe": (
        "glm4_moe",
        "Glm4MoeForCausalLM",
        _BASE
        | _MOE
        | {"num_key_value_heads": 2, "head_dim": 32, "n_routed_experts": 6, "n_shared_experts": 1}
        | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
        | {"use_qk_norm": True, "attention_bias": True, "num_nextn_predict_layers": 1},
    ),
    "glm4_moe_plain": (
        "glm4_moe",
        "Glm4MoeForCausalLM",
        _BASE
        | _MOE
        | {"partial_rotary_factor": 0.5, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 4}
        | {"topk_group": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
    ),
    "glm": ("glm", "GlmForCausalLM", _BASE | {"num_key_value_heads": 2, "head_dim": 32}),
    "olmo3": (
        "olmo3",
        "Olmo3ForCausalLM",
        _BASE | {"num_hidden_layers": 5, "sliding_window": 9, "rope_theta": 500000.0} | _PLAIN_YARN,
    ),
    "olmo3_listed": (
        "olmo3",
        "Olmo3ForCausalLM",
        _BASE
        | {"sliding_window": 9, "layer_types": ["full_attention", *2 * ["sliding_attention"]]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            }
        },
    ),
    "ministral3": (
        "ministral3",
        "Ministral3ForCausalLM",
        _BASE
        | {
            "num_key_value_heads": 2,
            "head_dim": 32,
            "rope_parameters": {
                "type": "yarn",
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 8,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
}
CASES |= {  # every key that affects the result, at a value that no published model has
    "ministral3_other": (
        *CASES["ministral3"][:2],
        CASES["ministral3"][2]
        | {
            "rope_parameters": CASES["ministral3"][2]["rope_parameters"]
            | {"factor": 5.0, "original_max_position_embeddings": 14, "beta_fast": 20.0, "beta_slow": 2.0}
            | {"mscale": 0.7, "mscale_all_dim": 1.3, "llama_4_scaling_beta": 0.35, "rope_theta": 500.0},
            "rms_norm_eps": 1e-3,
        },
    ),
    "glm4_moe_other": (
        *CASES["glm4_moe"][:2],
        CASES["glm4_moe"][2]
        | {"norm_topk_prob": False, "routed_scaling_factor": 0.4, "n_group": 3, "topk_group": 2}
        | {"use_qk_norm": False, "attention_bias": False, "first_k_dense_replace": 2}
        | {
            "partial_rotary_factor": 0.25,
            "rope_theta": 300.0,
            "num_experts_per_tok": 4,
            "rms_norm_eps": 1e-3,
        },
    ),
    "llama4_other": (
        *CASES["llama4"][:2],
        CASES["llama4"][2]
        | {"interleave_moe_layer_step": 1, "attention_chunk_size": 5, "no_rope_layers": [1, 1, 1, 0]}
        | {"rope_theta": 300.0, "num_local_experts": 3, "rms_norm_eps": 1e-3, "moe_layers": [0, 1, 2, 3]},
    ),
}
_FACTORS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0156,
    "logits_scaling": 8.0,
}
_LOCAL = {"num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 2}
_NETS = {
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "position_embedding_type": "nope",
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_chunk_size": 8,
}
# Beyond this length the published model's own code uses the long factors, transformers the short ones.
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
    "short_mscale": 1.25,
    "long_mscale": 1.25,
    "original_max_position_embeddings": 128,
}
CASES |= {
    "phimoe": (
        "phimoe",
        "PhimoeForCausalLM",
        _BASE | _LOCAL | {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.01},
    ),
    "phimoe_long": (
        "phimoe",
        "PhimoeForCausalLM",
        _BASE
        | _LOCAL
        | {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.01}
        | {"rope_scaling": _LONGROPE, "original_max_position_embeddings": 128},
    ),
    "granitemoe": ("granitemoe", "GraniteMoeForCausalLM", _BASE | _LOCAL | _FACTORS),
    "granitemoe_shared": (
        "granitemoeshared",
        "GraniteMoeSharedForCausalLM",
        _BASE | _LOCAL | _FACTORS | {"shared_intermediate_size": 48, "tie_word_embeddings": True},
    ),
    "granitehybrid": (
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        _BASE | _LOCAL | _FACTORS | _NETS | {"shared_intermediate_size": 48},
    ),
    "granitehybrid_dense": (
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        _BASE
        | _FACTORS
        | _NETS
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 112}
        | {"mamba_n_groups": 2, "mamba_conv_bias": False, "tie_word_embeddings": True},
    ),
    "granite4": (
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        _BASE
        | _FACTORS
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 96}
        | {"layer_types": 3 * ["attention"], "position_embedding_type": "rope", "mamba_n_heads": 8},
    ),
    # small families with their published settings
    "gemma": (
        "gemma",
        "GemmaForCausalLM",
        _BASE
        | {"num_key_value_heads": 1, "head_dim": 32, "hidden_act": "gelu_pytorch_tanh"}
        | {"tie_word_embeddings": True},
    ),
    "olmoe": (
        "olmoe",
        "OlmoeForCausalLM",
        _BASE | {"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": False, "clip_qkv": None},
    ),
    "hunyuan_dense": (
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        _BASE
        | {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}
        | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    ),
    "ernie45": (
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        _BASE | {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True, "use_bias": False},
    ),
    "seed_oss": (
        "seed_oss",
        "SeedOssForCausalLM",
        _BASE | {"num_key_value_heads": 2, "head_dim": 32, "attention_bias": True, "mlp_bias": False},
    ),
    "exaone4": (
        "exaone4",
        "Exaone4ForCausalLM",
        _BASE
        | {"num_hidden_layers": 5, "sliding_window": 9, "sliding_window_pattern": "LLLG"}
        | {"layer_types": [*3 * ["sliding_attention"], "full_attention", "sliding_attention"]},
    ),
    "exaone4_whole": (
        "exaone4",
        "Exaone4ForCausalLM",
        _BASE
        | {"sliding_window": None, "sliding_window_pattern": None, "tie_word_embeddings": True}
        | {"layer_types": 3 * ["full_attention"]},
    ),
    "cohere": (
        "cohere",
        "CohereForCausalLM",
        _BASE | {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": True},
    ),
    "cohere_heads": (
        "cohere",
        "CohereForCausalLM",
        _BASE
        | {"layer_norm_eps": 1e-5, "logit_scale": 0.8, "use_qk_norm": True, "num_key_value_heads": 2}
        | {"tie_word_embeddings": True},
    ),
    "cohere2": (
        "cohere2",
        "Cohere2ForCausalLM",
        _BASE
        | {"num_hidden_layers": 5, "head_dim": 16, "num_key_value_heads": 2, "sliding_window": 9}
        | {"layer_norm_eps": 1e-5, "logit_scale": 0.25, "tie_word_embeddings": True}
        | {"sliding_window_pattern": 4, "rotary_pct": 1.0, "rope_theta": 50000.0},
    ),
}
_BERT: dict[str, Any] = {
    "vocab_size": toy.VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_SHORT = {key: value for key, value in _BERT.items() if key not in ("type_vocab_size", "pad_token_id")}
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("bert", "BertModel", _BERT),
    "xlm_roberta": (
        "xlm-roberta",
        "XLMRobertaModel",
        _BERT | {"type_vocab_size": 1, "pad_token_id": 4, "max_position_embeddings": 133},
    ),
    "nomic_bert": ("nomic_bert", "NomicBertModel", _BERT | {"hidden_act": "silu"}),
    "jina_bert_v2": (
        "bert",
        "JinaBertForMaskedLM",
        _BERT
        | {"num_attention_heads": 6, "hidden_size": 96, "head_dim": 16}
        | {"position_embedding_type": "alibi", "feed_forward_type": "geglu"},
    ),
    "modern_bert": (
        "modernbert",
        "ModernBertModel",
        {key: value for key, value in _SHORT.items() if key not in ("hidden_act", "layer_norm_eps")}
        | {"num_hidden_layers": 4, "local_attention": 8, "norm_eps": 1e-5, "hidden_activation": "gelu"}
        | {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "pad_token_id": 0}
        | {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
}
ENCODERS["modern_bert_silu"] = (
    *ENCODERS["modern_bert"][:2],
    ENCODERS["modern_bert"][2] | {"hidden_activation": "silu"},
)
# Encoders with a classifier, and the tokenizer of each.
RERANKERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert_reranker": ("bert", "BertForSequenceClassification", ENCODERS["bert"][2] | {"num_labels": 1}),
    "xlm_roberta_reranker": (
        "xlm-roberta",
        "XLMRobertaForSequenceClassification",
        ENCODERS["xlm_roberta"][2] | {"num_labels": 1, "pad_token_id": 1, "max_position_embeddings": 130},
    ),
    "modern_bert_reranker": (
        "modernbert",
        "ModernBertForSequenceClassification",
        ENCODERS["modern_bert"][2] | {"num_labels": 1, "classifier_pooling": "mean"},
    ),
}
TOKENIZERS = {"xlm_roberta_reranker": toy_sentences.unigram}
STEM = families.DATA / "mixed"


def config(case: str) -> dict[str, Any]:
    """config.json of a case."""
    kind, name, values = (CASES | ENCODERS | RERANKERS)[case]
    return {"architectures": [name], "model_type": kind} | values


def with_tokenizer(folder: Path, case: str) -> Path:
    """Adds a reranker's tokenizer to the folder."""
    toy_sentences.write(folder, TOKENIZERS.get(case, toy_sentences.wordpiece)(toy.VOCAB))
    return folder


# Llama.cpp knows V2 lite by its 27 layers, V2's groups as V3 has them, YaRN with whole borders alone, Llama
# 4's chunks as 8192 tokens and EXAONE 4's windows by its 64 layers; it turns all of OLMo 3's layers by one
# base, weighs Phi 3.5's experts by a softmax, ends where Granite's convolutions have no bias, and has no
# deepseek32 in the version that is compared. Keys at other values are compared with transformers alone.
UNKNOWN_TO_PEER = (
    *("deepseek_v2_lite", "deepseek_v2", "deepseek_v32", "gpt_oss", "llama4"),
    *("exaone4", "olmo3_listed", "phimoe", "phimoe_long", "granitehybrid_dense"),
    *("ministral3_other", "glm4_moe_other", "llama4_other"),
)
