"""Reads PyTorch's .bin files with torch.load(weights_only=True), which runs no code of the file.

torch is not part of a base install; without it the error recommends safetensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.convert.stored import DTYPES, Array, Container, Stored, gather
from satchel.formats.gguf.check import quote

NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
# Keys under which training scripts store the weights.
WRAPPERS = ("state_dict", "model", "module")


def open_torch(files: Mapping[Path, set[str] | None]) -> Container:
    """The tensors of PyTorch files. RequestError without torch, ModelError for a file that holds more than
    weights.
    """
    try:
        import torch
    except ImportError:
        raise RequestError(
            f"{min(files)}: PyTorch files need torch: pip install 'satchel[torch]', or give the checkpoint as"
            " safetensors"
        ) from None
    return Container(gather(files, partial(_read, torch)), nullcontext())


def _read(torch: Any, path: Path) -> dict[str, Stored]:
    state = _load(torch, path)
    for key in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping):
        raise ModelError(
            f"{path}: expected tensors by name, got {type(state).__name__}; give the folder that"
            " save_pretrained wrote"
        )
    found: dict[str, Stored] = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ModelError(f"{path}: {quote(str(name))}: expected a tensor, got {type(tensor).__name__}")
        dtype = NAMES.get(str(tensor.dtype).removeprefix("torch."))
        if dtype is None or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ModelError(
                f"{path}: {quote(name)}: expected a dense tensor of {', '.join(NAMES)}, got {tensor.dtype}"
            )
        found[name] = Stored(
            name, tuple(tensor.shape), dtype, str(path), partial(_rows, torch, tensor, dtype)
        )
    return found


def _load(torch: Any, path: Path) -> Any:
    """The file's contents: mapped into memory where its format allows it, else copied."""
    options = {"map_location": "cpu", "weights_only": True}
    try:
        try:
            return torch.load(path, mmap=True, **options)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            return torch.load(path, **options)
    except Exception as error:
        # Any exception of the loader means that the file is malformed.
        reason = str(error).split("\n")[0]
        raise ModelError(
            f"{path}: torch's loader of weights alone refuses it: {quote(reason, 160)}; give safetensors"
        ) from None


def _rows(torch: Any, tensor: Any, dtype: str, first: int, last: int) -> Array:
    part = (tensor[first:last] if tensor.dim() else tensor.reshape(1)).detach().contiguous()
    raw: Array = part.reshape(-1).view(torch.uint8).numpy()
    return np.frombuffer(raw.tobytes(), DTYPES[dtype]).reshape(part.shape)
