"""Keys of published files of each architecture, as converters write them: all are accepted and known.

The tables have such files' keys by architecture, beside the sizes that every tiny model has. Values are the
published ones, except sizes.
"""

from __future__ import annotations

from typing import Any

import pytest
import tiny

from satchel.errors import ModelError
from satchel.formats.gguf import Metadata
from satchel.runtime.layers.arch import Arch, Cache, HParams, architectures, find_arch

Keys = dict[str, Any]
SIZES: Keys = {"vocab_size": tiny.VOCAB, "attention.key_length": tiny.HEAD_DIM}
YARN: Keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
YARN_WHOLE = YARN | {
    "rope.scaling.original_context_length": 32768,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.1386294361119891,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
LINEAR: Keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
NONE: Keys = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
ROPE: Keys = {"rope.freq_base": 1000000.0, "rope.dimension_count": 64}
DENSE = SIZES | ROPE
ENCODED: Keys = {"vocab_size": tiny.VOCAB, "attention.causal": False, "pooling_type": 2}
ROUTED: Keys = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
LATENT: Keys = ROUTED | {
    "vocab_size": tiny.VOCAB,
    "expert_shared_count": 1,
    "attention.q_lora_rank": 128,
    "rope.freq_base": 10000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096,
    "rope.scaling.yarn_log_multiplier": 0.1,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
DELTA: Keys = {"vocab_size": tiny.VOCAB, "rope.dimension_sections": [11, 11, 10, 0]}
PUBLISHED: dict[str, list[Keys]] = {
    "bert": [ENCODED, {"classifier.output_labels": ["LABEL_0"], "pooling_type": 4}],
    "chatglm": [{"vocab_size": tiny.VOCAB, "rope.freq_base": 5000000.0, "rope.dimension_count": 32}],
    "cohere2": [{"vocab_size": tiny.VOCAB, "rope.freq_base": 50000.0, "rope.scaling.type": "none"}],
    "command_r": [{"vocab_size": tiny.VOCAB, "rope.freq_base": 8000000.0, "rope.scaling.type": "none"}],
    "deepseek2": [LATENT, {"expert_group_count": 8, "expert_group_used_count": 4}],
    "deepseek32": [LATENT],
    "ernie4_5": [DENSE],
    "exaone4": [SIZES | {"attention.sliding_window_pattern": [True, True, False]}, NONE],
    "falcon": [{"tensor_data_layout": "jploski", "vocab_size": tiny.VOCAB}],
    "gemma": [SIZES],
    "gemma2": [SIZES],
    "gemma3": [DENSE | LINEAR | {"rope.freq_base_swa": 10000.0}],
    "gemma4": [{"rope.freq_base_swa": 10000.0, "rope.dimension_count": 128, "rope.dimension_count_swa": 64}],
    "glm4": [{"rope.dimension_count": 32}, {"rope.dimension_sections": [8, 12, 12, 0]}],
    "glm4moe": [ROUTED | {"expert_shared_count": 1, "expert_group_count": 1, "expert_group_used_count": 1}],
    "gpt2": [{"vocab_size": tiny.VOCAB}],
    "gpt_oss": [YARN | {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}],
    "granite": [DENSE | {"rope.scaling.finetuned": True}],
    "granitehybrid": [
        {"vocab_size": tiny.VOCAB, "rope.scaling.finetuned": False, "context_length": 1 << 20}
        | {"expert_shared_feed_forward_length": 256, "rope.dimension_count": 64, "rope.freq_base": 10000.0}
    ],
    "granitemoe": [DENSE | {"rope.scaling.finetuned": True, "expert_shared_feed_forward_length": 256}],
    "hunyuan_dense": [DENSE | NONE | {"rope.scaling.original_context_length": 262144}],
    "jina_bert_v2": [ENCODED | {"attention.max_alibi_bias": 8.0}],
    "llama": [
        DENSE | {"tensor_data_layout": "Meta AI original pth"},
        DENSE | {"expert_count": 0, "expert_used_count": 0},
        DENSE | YARN_WHOLE,
        DENSE | LINEAR,
        {"rope.scale_linear": 4.0},
    ],
    "llama4": [{"vocab_size": tiny.VOCAB, "rope.freq_base": 500000.0, "rope.dimension_count": 64}],
    "mamba2": [{"vocab_size": tiny.VOCAB, "feed_forward_length": 0, "attention.head_count": 0}],
    "mistral": [DENSE | {"attention.sliding_window": 4096}],
    "mistral3": [YARN_WHOLE | {"rope.scaling.yarn_attn_factor": 1.0, "attention.temperature_scale": 0.1}],
    "modern_bert": [
        ENCODED | {"hidden_activation": kind, "rope.scaling.type": "none"} for kind in ("gelu", "silu")
    ]
    + [ENCODED | {"attention.sliding_window_pattern": 3}],
    "nomic_bert": [ENCODED | {"rope.freq_base": 1000.0, "moe_every_n_layers": 0}],
    "olmo2": [
        {"rope.freq_base": 500000.0},
        YARN_WHOLE
        | {"attention.sliding_window": 4096, "attention.sliding_window_pattern": [True, True, False]},
    ],
    "olmoe": [SIZES],
    "phi3": [
        {"attention.sliding_window": 0},
        {"attention.sliding_window": 262144, "rope.scaling.original_context_length": 4096}
        | {"rope.scaling.attn_factor": 1.190238},
    ],
    "phimoe": [{"rope.scaling.original_context_length": 4096, "rope.scaling.attn_factor": 1.243163}],
    "qwen2": [DENSE, DENSE | YARN_WHOLE, {"pooling_type": 3}],
    "qwen2moe": [DENSE | {"expert_shared_feed_forward_length": 256}],
    "qwen3": [DENSE | YARN_WHOLE, {"pooling_type": 3}],
    "qwen35": [DELTA],
    "qwen35moe": [DELTA | {"expert_shared_feed_forward_length": 256}],
    "qwen3moe": [DENSE | YARN_WHOLE],
    "qwen3next": [{"vocab_size": tiny.VOCAB, "expert_shared_feed_forward_length": 256}],
    "seed_oss": [DENSE],
    "smollm3": [DENSE],
    "stablelm": [{"use_parallel_residual": True, "vocab_size": tiny.VOCAB}],
    "starcoder2": [{"rope.freq_base": 999999.0, "vocab_size": tiny.VOCAB}],
}
ROWS = [(arch, keys) for arch, tables in PUBLISHED.items() for keys in tables]


def build(arch: str, keys: Keys) -> Arch:
    values = dict(tiny.metadata(arch).items()) | {f"{arch}.{key}": value for key, value in keys.items()}
    built = find_arch(arch)(
        HParams(Metadata.of(values, "x.gguf"), arch), tiny.weights(arch), Cache(context=tiny.CONTEXT)
    )
    built.build()
    return built


@pytest.mark.parametrize(("arch", "keys"), ROWS, ids=[f"{arch}-{n}" for n, (arch, _) in enumerate(ROWS)])
def test_keys_of_published_files_are_known(arch: str, keys: Keys) -> None:
    assert build(arch, keys).notes == ()


def test_every_architecture_has_its_keys_listed() -> None:
    assert set(PUBLISHED) == set(architectures())


def test_another_factor_of_yarn_is_refused() -> None:
    with pytest.raises(ModelError, match=r"yarn_attn_factor: expected 1\.13863, .* got 1\.3"):
        build("llama", YARN_WHOLE | {"rope.scaling.yarn_attn_factor": 1.3})


def test_an_activation_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="hidden_activation: expected gelu or silu, got relu"):
        build("modern_bert", {"hidden_activation": "relu"})


@pytest.mark.parametrize("arch", ["deepseek2", "glm4moe", "qwen35", "qwen35moe", "qwen3next"])
def test_layers_that_predict_further_tokens_are_left_out_and_told(arch: str) -> None:
    """Published files have MTP layers after the others, under the next number."""
    values, w = dict(tiny.metadata(arch).items()), tiny.weights(arch)
    layers = int(values[f"{arch}.block_count"])  # type: ignore[arg-type]
    values |= {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
    for name in ("nextn.eh_proj", "nextn.enorm", "nextn.shared_head_norm", "attn_norm", "ffn_down_exps"):
        w.put(f"blk.{layers}.{name}.weight", w.array("output_norm.weight"))
    built = find_arch(arch)(HParams(Metadata.of(values), arch), w, Cache(context=tiny.CONTEXT))
    built.build()
    assert built.layers == layers
    assert built.notes == ("1 of the file's layers are for multi-token prediction: they are not run",)
