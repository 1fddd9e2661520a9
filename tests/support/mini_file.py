"""The smallest complete models: one layer of width 32 and a vocabulary of a few tokens, some kilobytes on
disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import toy_vocab

from satchel.formats.gguf import TENSOR_TYPES, TensorSource, Typed, ValueType, write_gguf
from satchel.quant import FORMATS

WIDTH, HEADS, DIM, FFN = 32, 2, 16, 64
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def keys(arch: str = "llama", tokenizer: str = "t5") -> dict[str, Any]:
    values: dict[str, Any] = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    found = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in values.items()}}
    return found | toy_vocab.KINDS[tokenizer]() | {"tokenizer.chat_template": TEMPLATE}


def tensors(vocab: int, format: str = "f32", seed: int = 0) -> dict[str, TensorSource]:
    """The tensors of a llama, by name."""
    shapes = {
        "token_embd.weight": (vocab, WIDTH),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (HEADS * DIM, WIDTH),
        "blk.0.attn_k.weight": (DIM, WIDTH),
        "blk.0.attn_v.weight": (DIM, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, HEADS * DIM),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (FFN, WIDTH),
        "blk.0.ffn_up.weight": (FFN, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, FFN),
        "output_norm.weight": (WIDTH,),
    }
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        fmt = FORMATS["f32" if len(shape) == 1 else format]
        assert fmt.encode is not None
        values = rng.standard_normal(shape).astype(np.float32)
        found[name] = TensorSource(name, shape, fmt.name, fmt.encode(values, None))
    return found


def write_mini(
    path: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    tokenizer: str = "t5",
    format: str = "q8_0",
    replace: Mapping[str, TensorSource | None] | None = None,
    max_size: int | None = None,
) -> Path:
    """Writes a complete model; the first part of a split one. changes: metadata over the usual, None removes
    a key. replace: tensors by name, None removes one.
    """
    metadata = keys(tokenizer=tokenizer) | dict(changes or {})
    metadata = {key: value for key, value in metadata.items() if value is not None}
    vocab = len(metadata.get("tokenizer.ggml.tokens", "x" * 12))
    chosen = tensors(vocab, format) | dict(replace or {})
    kept = [tensor for tensor in chosen.values() if tensor is not None]
    return write_gguf(path, metadata, kept, max_size=max_size)[0]


def write_every_format(path: Path, seed: int = 0) -> Path:
    """A GGUF file that is not a model: one row of random blocks per tensor type."""
    rng = np.random.default_rng(seed)
    blocks = [
        TensorSource(kind.name, (kind.block,), number, rng.integers(0, 256, kind.size, dtype=np.uint8))
        for number, kind in TENSOR_TYPES.items()
    ]
    kind = Typed(ValueType.STRING, "adapter")
    write_gguf(path, {"general.architecture": "llama", "general.type": kind, "general.alignment": 8}, blocks)
    return path
