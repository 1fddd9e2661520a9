"""The converter reads every configuration key that transformers' code of a class reads, so that it is obeyed
or refused; exceptions are listed here with their reason.

tests/data/convert/make_read_keys.py finds the keys in transformers' sources.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import mixed_families as mixed
import pytest
import toy_checkpoint as toy

from satchel.errors import ModelError
from satchel.formats.convert import config as reading
from satchel.runtime.weights.sources import mappings

KEYS: dict[str, list[str]] = json.loads((families.DATA / "read_keys.json").read_text())
# Keys that say which tensors exist; the checkpoint's own tensors decide.
TENSORS = {
    *("attention_bias", "attention_out_bias", "mlp_bias", "use_bias", "use_qkv_bias", "bias"),
    *("use_conv_bias", "mamba_conv_bias", "lm_head_bias", "norm_bias", "decoder_bias", "classifier_bias"),
    *("vocab_size", "type_vocab_size", "tie_word_embeddings", "num_labels", "num_ln_in_parallel_attn"),
    "use_qk_norm",
}
# Keys of training, of chunking, and of what a call returns.
IDLE = {
    *("attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "residual_dropout"),
    *("mlp_dropout", "classifier_dropout", "projector_dropout", "router_jitter_noise", "problem_type"),
    *("initializer_range", "initializer_cutoff_factor", "rescale_prenorm_residual", "router_aux_loss_coef"),
    *("time_step_floor", "time_step_max", "time_step_min", "time_step_rank", "residual_in_fp32", "dtype"),
    *("chunk_size", "mamba_chunk_size", "chunk_size_feed_forward", "reorder_and_upcast_attn", "return_dict"),
    *("pad_token_id", "use_cache", "output_hidden_states", "output_attentions", "output_router_logits"),
    *("get_text_config", "deterministic_flash_attn", "sparse_prediction", "input_jitter_noise"),
    *("sparse_pred_ignore_index", "is_encoder_decoder", "add_cross_attention"),
}
SEEING = {
    *("text_config", "vision_config", "mm_tokens_per_image", "image_size", "num_channels", "patch_size"),
    *("pixel_shuffle_ratio", "projector_input_dim", "projector_output_dim", "pooling_kernel_size"),
    *("attention_chunk_size", "attention_context_left", "attention_context_right", "attention_logit_cap"),
    *("attention_invalid_logits_value", "position_embedding_size", "use_clipped_linears", "standardize"),
}
LATENT = {"head_dim", "num_key_value_heads"}  # all heads share the latent; the configuration sets the size
OTHERS: dict[str, set[str]] = {
    "DeepseekV2ForCausalLM": LATENT,
    "DeepseekV3ForCausalLM": LATENT,
    "DeepseekV32ForCausalLM": LATENT,
    # Other names of n_embd and so on.
    "GPT2LMHeadModel": {
        *("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers"),
    },
    "Gemma3ForCausalLM": SEEING,
    # Made of num_kv_shared_layers and layer_types; a tensor's shape.
    "Gemma4ForCausalLM": SEEING | {"kv_sharing_modes", "vocab_size_per_layer_input"},
    "Llama4ForCausalLM": SEEING - {"attention_chunk_size"},
    "Mamba2ForCausalLM": {"layer_types"},  # all alike
    # Made of local_attention; what a reranker does is read apart.
    "ModernBertModel": {"sliding_window", "classifier_activation", "classifier_pooling"},
    # Used where use_sliding_window is true, which is refused.
    "Qwen2ForCausalLM": {"sliding_window"},
    "Qwen2MoeForCausalLM": {"sliding_window"},
    "Qwen3ForCausalLM": {"sliding_window"},
    "Qwen3MoeForCausalLM": {"sliding_window"},
    "SmolLM3ForCausalLM": {"sliding_window"},
}


class Recorded(dict[str, Any]):
    """A configuration that records which keys are read."""

    def __init__(self, values: dict[str, Any], seen: set[str]) -> None:
        super().__init__(values)
        self.seen = seen

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)


def settings() -> dict[str, list[dict[str, Any]]]:
    """Small configurations by class."""
    found: dict[str, list[dict[str, Any]]] = {}
    known = [families.config(case) for case in families.CASES]
    known += [mixed.config(case) for case in (*mixed.CASES, *mixed.ENCODERS)]
    for one in [*known, *map(toy.config, toy.CLASSES)]:
        found.setdefault(one["architectures"][0], []).append(one)
    return found


SETTINGS = settings()


MINISTRAL = mixed.config("ministral3")["rope_parameters"]
FULL, NEAR = "full_attention", "sliding_attention"
# Values of unsupported variants, and the error's text.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma2", {"layer_types": [FULL] * 3}, "layer_types: expected 'sliding_attention' for layer 0"),
    ("gemma2", {"layer_types": [NEAR]}, "layer_types: expected a list of 3"),
    ("gpt_oss", {"layer_types": [NEAR] * 3}, "layer_types: expected 'full_attention' for layer 1"),
    ("qwen2", {"layer_types": [FULL, NEAR]}, "layer_types: expected 'full_attention' for layer 1"),
    ("smollm3", {"layer_types": [NEAR] * 4}, "layer_types"),
    ("mistral", {"layer_types": [NEAR] * 3}, "layer_types"),
    ("mamba2", {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
    ("phimoe", {"sliding_window": 16}, "sliding_window"),
    ("olmoe", {"sliding_window": 16}, "sliding_window"),
    ("ministral3", {"sliding_window": 16}, "sliding_window"),
    (
        "ministral3",
        {"rope_parameters": {**MINISTRAL, "original_max_position_embeddings": 1, "rope_theta": 500.0}},
        "original_max_position_embeddings: expected at least 6",
    ),
    ("deepseek_v32", {"mlp_layer_types": ["sparse"] * 3}, "mlp_layer_types: expected 'dense' for layer 0"),
    ("llama4", {"moe_layers": [0]}, "moe_layers"),
    ("llama4", {"no_rope_layers": None, "no_rope_layer_interval": 2}, "no_rope_layer_interval"),
    ("llama4", {"no_rope_layers": [1, 0, 1, 0]}, "no_rope_layers: expected 1 for layer"),
    (
        "llama4",
        {"layer_types": ["chunked_attention"] * 4},
        "layer_types: expected 'full_attention' for layer 3",
    ),
    ("llama4", {"attention_chunk_size": None}, "attention_chunk_size"),
    ("llama4", {"attention_chunk_size": 0}, "attention_chunk_size"),
    ("llama4", {"attn_temperature_tuning": False}, "attn_temperature_tuning"),
    ("llama4", {"floor_scale": 4096}, "floor_scale"),
    ("llama4", {"attn_scale": 0.2}, "attn_scale"),
    ("llama4", {"use_qk_norm": False}, "use_qk_norm"),
]


def configured(case: str) -> dict[str, Any]:
    if case in toy.CLASSES:
        return toy.config(case)
    return families.config(case) if case in families.CASES else mixed.config(case)


@pytest.mark.parametrize(("case", "changes", "said"), REFUSED)
def test_another_value_is_refused_by_name(
    case: str, changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = configured(case)
    monkeypatch.setattr(reading, "read_json", lambda path: values)
    reading.read_config(Path("config.json"), mappings())
    values |= changes
    with pytest.raises(ModelError, match=f"config.json: {said}"):
        reading.read_config(Path("config.json"), mappings())


@pytest.mark.parametrize("name", sorted(KEYS.keys() & SETTINGS.keys()))
def test_no_key_that_changes_numbers_goes_unread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    for values in SETTINGS[name]:
        monkeypatch.setattr(reading, "read_json", lambda path, values=values: Recorded(values, seen))
        reading.read_config(Path("config.json"), mappings())
    unread = set(KEYS[name]) - seen - TENSORS - IDLE - OTHERS.get(name, set())
    assert not unread, f"{name}: {sorted(unread)}: obey it, refuse it, or say here why it changes nothing"


def test_nearly_every_class_was_looked_at() -> None:
    """Heads of encoders are read by the encoder's own mapping."""
    heads = ("ForMaskedLM", "ForSequenceClassification")
    assert {name for name in KEYS.keys() - SETTINGS.keys() if not name.endswith(heads)} <= {"RobertaModel"}
    listed = {key for keys in KEYS.values() for key in keys}
    assert listed | {"dtype"} >= TENSORS | IDLE, "a key that nothing reads any more"
