"""The checkpoints and the adapter that docs/converting.md names, each a tiny one in a folder of that name.

Their formats and numbers of tensors are those that the page shows, so its outputs can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packed_weights
import toy_checkpoint

WIDE = {"width": 128, "ffn": 128}  # rows of 128 numbers, which FP8's blocks have
SIZES = {"hidden_size": 128, "intermediate_size": 128}
RANK = 4


def plain(folder: Path) -> None:
    toy_checkpoint.write(folder, "llama", "BF16")


def tensorflow(folder: Path) -> None:
    toy_checkpoint.write(folder, "llama")
    (folder / "model.safetensors").rename(folder / "tf_model.h5")


def packed(folder: Path, method: str, make: Callable[..., packed_weights.PackedCheckpoint]) -> None:
    """A checkpoint whose projections a method has packed; the rest is BF16."""
    values = toy_checkpoint.tensors("llama", **WIDE)
    tensors = toy_checkpoint.stored(values, "BF16")
    for name in [name for name in values if "_proj" in name]:
        del tensors[name]
        tensors |= make(name.removesuffix(".weight"), *values[name].shape).tensors
    config = {"quant_method": method, "bits": 4}
    toy_checkpoint.write(folder, "llama", values=tensors, quantization_config=config, **SIZES)


def gptq(folder: Path) -> None:
    def asymmetric(*shape: Any) -> packed_weights.PackedCheckpoint:
        return packed_weights.gptq(*shape, symmetric=False)

    packed(folder, "gptq", asymmetric)


def fp8(folder: Path) -> None:
    packed(folder, "fp8", packed_weights.fp8)


def adapter(folder: Path) -> None:
    """Factors of four matrices in each layer, as PEFT writes them."""
    weights, random = toy_checkpoint.tensors("llama"), np.random.default_rng(0)
    factors = {}
    for layer in range(toy_checkpoint.LAYERS):
        for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"):
            rows, columns = weights[f"model.layers.{layer}.{part}.weight"].shape
            for letter, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                name = f"base_model.model.model.layers.{layer}.{part}.lora_{letter}.weight"
                factors[name] = random.standard_normal(shape).astype(np.float32)
    folder.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    content = toy_checkpoint.safetensors(toy_checkpoint.stored(factors))
    (folder / "adapter_model.safetensors").write_bytes(content)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "Llama-1B-shape": plain,
    "tf": tensorflow,
    "Toy-GPTQ": gptq,
    "Toy-FP8": fp8,
    "ADAPTER": adapter,
    "MODEL": plain,
}


def write(folder: Path) -> None:
    for name, make in FOLDERS.items():
        make(folder / name)
