"""A tiny random model as a GGUF file with a byte-level tokenizer, for tests that start from a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import toy_vocab

from satchel.formats.gguf import TensorSource, write_gguf
from satchel.runtime.api.options import LoadKwargs

# A mixture's experts are computed on the CPU alone: whether another device helps depends on measured speeds.
EXPERTS_STAY: LoadKwargs = {
    "override_tensor": ["_exps=cpu"],
    "prefetch_weights": "off",
    "expert_cache": "off",
}


def write_model(
    path: Path,
    arch: str = "qwen3",
    format: str = "q8_0",
    seed: int = 0,
    markers: tuple[str, ...] = (),
    change: Callable[[tiny.TinyWeights], None] | None = None,
    **keys: Any,
) -> Path:
    """Writes the model. markers: user-defined tokens. change: edits its weights. keys: metadata, with `__`
    for `.`.
    """
    weights, values = tiny.weights(arch, format, seed), tiny.metadata(arch)
    if change is not None:
        change(weights)
    metadata: dict[str, Any] = {key: values.typed(key) for key in values} | toy_vocab.byte_level()
    metadata["tokenizer.ggml.tokens"] += markers
    kinds = metadata["tokenizer.ggml.token_type"]
    marked = np.full(len(markers), toy_vocab.USER_DEFINED, np.int32)
    metadata["tokenizer.ggml.token_type"] = np.r_[kinds, marked]
    spare = tiny.VOCAB - len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] += [f"[PAD{i}]" for i in range(spare)]
    kinds = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = np.r_[kinds, np.full(spare, toy_vocab.UNUSED, np.int32)]
    metadata |= {key.replace("__", "."): value for key, value in keys.items()}
    tensors = [
        TensorSource(name, weights.shapes[name], weights.formats[name], data)
        for name, data in weights.tensors.items()
    ]
    write_gguf(path, metadata, tensors)
    return path
