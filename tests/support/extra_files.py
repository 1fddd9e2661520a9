"""Adapter files and control-vector files for the tiny models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tiny

from satchel.formats.gguf import TensorSource, write_gguf
from satchel.quant import FORMATS
from satchel.runtime.graph import Array

TARGETS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def factors(
    seed: int,
    rank: int = 4,
    targets: tuple[str, ...] = TARGETS,
    *,
    embedding: bool = False,
    scale: float = 0.1,
    arch: str = "llama",
) -> dict[str, Array]:
    """Random lora_a and lora_b for these weights in every layer that has them."""
    rng, shapes = np.random.default_rng(seed), tiny.weights(arch).shapes
    found: dict[str, Array] = {}
    names = [n for i in range(tiny.LAYERS) for t in targets if (n := f"blk.{i}.{t}.weight") in shapes]
    for name in names:
        rows, columns = shapes[name]
        found[f"{name}.lora_a"] = rng.standard_normal((rank, columns)) * scale
        found[f"{name}.lora_b"] = rng.standard_normal((rows, rank)) * scale
    if embedding:
        found["token_embd.weight.lora_a"] = rng.standard_normal((tiny.VOCAB, rank)) * scale
        found["token_embd.weight.lora_b"] = rng.standard_normal((tiny.WIDTH, rank)) * scale
    return {name: values.astype(np.float32) for name, values in found.items()}


def write_adapter(
    path: Path,
    tensors: Mapping[str, Array],
    alpha: Any = 8.0,
    arch: str = "llama",
    format: str = "f32",
    **keys: Any,
) -> Path:
    """Writes an adapter file. keys: metadata with `__` for `.`, over the usual metadata; None removes a
    key.
    """
    metadata: dict[str, Any] = {
        "general.architecture": arch,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
    } | {key.replace("__", "."): value for key, value in keys.items()}
    return write(path, metadata, tensors, format)


def write_vector(path: Path, directions: Mapping[str, Array], **keys: Any) -> Path:
    metadata: dict[str, Any] = {"general.architecture": "controlvector"} | {
        key.replace("__", "."): value for key, value in keys.items()
    }
    return write(path, metadata, directions, "f32")


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Array], format: str) -> Path:
    encode = FORMATS[format].encode
    assert encode is not None
    found = [
        TensorSource(name, values.shape, format, encode(np.ascontiguousarray(values, np.float32), None))
        for name, values in tensors.items()
    ]
    write_gguf(path, {k: v for k, v in metadata.items() if v is not None}, found)
    return path


def directions(seed: int, layers: tuple[int, ...] = (1, 2), scale: float = 0.5) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {f"direction.{i}": (rng.standard_normal(tiny.WIDTH) * scale).astype(np.float32) for i in layers}
