"""Checkpoints in Hugging Face's layout, created in memory: tensors under its names, config.json,
tokenizer.json.

The files are written without a library, so that malformed ones can be made too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import toy_vocab

VOCAB, WIDTH, FFN, LAYERS, HEADS, KV_HEADS = 288, 64, 96, 2, 4, 2
EXPERTS, EXPERT_FFN = 4, 48
CLASSES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "mistral": ("MistralForCausalLM", "mistral"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
}
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
NAMES = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I32": "<i4",
    "I64": "<i8",
    "I8": "i1",
    "U8": "u1",
    "F8_E4M3": "u1",
}
Tensors = dict[str, tuple[str, npt.NDArray[Any]]]


def config(arch: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model; a change of ... removes the key."""
    name, kind = CLASSES[arch]
    values: dict[str, Any] = {
        "architectures": [name],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    }
    if arch == "mistral":
        values["sliding_window"] = 16
    if arch in ("qwen3", "qwen3moe"):
        values["head_dim"] = 32
    if arch == "qwen3moe":
        values |= {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": EXPERT_FFN,
            "norm_topk_prob": True,
        }
    return {key: value for key, value in (values | changes).items() if value is not ...}


def tensors(
    arch: str, seed: int = 0, scale: float = 0.2, *, width: int = WIDTH, ffn: int = FFN
) -> dict[str, npt.NDArray[np.float32]]:
    """Random tensors under the names of the architecture, in the order of a checkpoint."""
    rng = np.random.default_rng(seed)
    dim = 32 if arch in ("qwen3", "qwen3moe") else width // HEADS
    made: dict[str, npt.NDArray[np.float32]] = {}

    def put(name: str, *shape: int) -> None:
        shift = 1 if len(shape) == 1 and name.endswith("weight") else 0
        made[name] = (rng.standard_normal(shape) * scale + shift).astype(np.float32)

    put("model.embed_tokens.weight", VOCAB, width)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            put(f"{p}{name}.weight", width)
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            put(f"{p}self_attn.{name}_proj.weight", rows * dim, width)
            if arch == "qwen2":
                put(f"{p}self_attn.{name}_proj.bias", rows * dim)
        put(f"{p}self_attn.o_proj.weight", width, HEADS * dim)
        if arch in ("qwen3", "qwen3moe"):
            put(f"{p}self_attn.q_norm.weight", dim)
            put(f"{p}self_attn.k_norm.weight", dim)
        if arch == "qwen3moe":
            put(f"{p}mlp.gate.weight", EXPERTS, width)
        size = EXPERT_FFN if arch == "qwen3moe" else ffn
        for part in [f"experts.{e}." for e in range(EXPERTS)] if arch == "qwen3moe" else [""]:
            put(f"{p}mlp.{part}gate_proj.weight", size, width)
            put(f"{p}mlp.{part}up_proj.weight", size, width)
            put(f"{p}mlp.{part}down_proj.weight", width, size)
    put("model.norm.weight", width)
    put("lm_head.weight", VOCAB, width)
    return made


def stored(values: Mapping[str, npt.NDArray[np.float32]], dtype: str = "F32") -> Tensors:
    """Tensors as a file of this dtype stores them."""
    if dtype == "BF16":
        from satchel.quant import FORMATS

        encode = FORMATS["bf16"].encode
        assert encode is not None
        return {name: (dtype, encode(value, None)) for name, value in values.items()}
    return {name: (dtype, value.astype(NAMES[dtype])) for name, value in values.items()}


def safetensors(values: Tensors, header: dict[str, Any] | None = None) -> bytes:
    """A file's bytes. header: replaces the right one."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, array) in values.items():
        raw = np.ascontiguousarray(array).tobytes()
        entries[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(entries if header is None else header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def tokenizer() -> dict[str, Any]:
    """tokenizer.json of toy_vocab's byte-level vocabulary, with qwen2's pre-tokenizer."""
    meta = toy_vocab.byte_level()
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"].tolist()
    added = [
        {"id": i, "content": text, "special": kinds[i] == toy_vocab.CONTROL, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, text in enumerate(tokens)
        if kinds[i] != toy_vocab.NORMAL
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": QWEN2_PATTERN},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: i for i, text in enumerate(tokens) if kinds[i] == toy_vocab.NORMAL},
            "merges": meta["tokenizer.ggml.merges"],
        },
    }


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    settings = {
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "chat_template": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write(
    folder: Path, arch: str = "llama", dtype: str = "F32", values: Tensors | None = None, **changes: Any
) -> Path:
    """Writes a complete checkpoint. values: its tensors, random ones by default. changes: of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(arch, **changes)))
    (folder / "model.safetensors").write_bytes(safetensors(values or stored(tensors(arch), dtype)))
    write_tokenizer(folder)
    return folder
