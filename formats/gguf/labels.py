"""Labels of a GGUF file as used in model names: number of parameters and quantization."""

from __future__ import annotations

import math
from collections import Counter

from satchel.formats.gguf.reader import GGUF
from satchel.quant.recipes import RECIPES


def size_label(count: int) -> str:
    """A number of parameters as in model names: 0.6B, 40M."""
    return f"{count / 1e9:.1f}B" if count >= 1e8 else f"{count / 1e6:.0f}M"


def file_type(gguf: GGUF) -> str:
    """The quantization named by `general.file_type` (Q4_K_M); without it, the format of most bytes."""
    number = gguf.metadata.get_uint("general.file_type", None)
    name = next((r.name for r in RECIPES.values() if r.file_type == number), None)
    if name is not None:
        return name
    sizes: Counter[str] = Counter()
    for tensor in gguf.tensors.values():
        sizes[tensor.format] += tensor.nbytes
    return sizes.most_common(1)[0][0].upper() if sizes else "empty"


def parameters(gguf: GGUF) -> int:
    """The number of elements of all tensors."""
    return sum(math.prod(t.shape) for t in gguf.tensors.values())
