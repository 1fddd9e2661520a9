"""The class of block formats: a numpy record of one block, its decoder, and its encoder if it has one.

One module per format, named as the format; `decode` is the definition that every kernel is tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Blocks = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Format:
    """A block format: how tensors of this type are stored.

    id: GGUF's number of the type, above 1000 where GGUF has none. block: elements per block. dtype: numpy
    record of one block (its itemsize is the block's bytes). act: name of the format that the other operand of
    a product is quantized to, or None for float32. decode: (..., n) blocks -> float32 (..., n * block),
    exact. encode: float32 (..., n * block) [, importance of the same last dimension] -> (..., n) blocks, or
    None where the format is read only. weights: False where only activations have this format, never a tensor
    of a file.
    """

    name: str
    id: int
    block: int
    dtype: np.dtype[Any]
    decode: Callable[[Blocks], F32]
    encode: Callable[[F32, F32 | None], Blocks] | None = None
    act: str | None = None
    weights: bool = True

    @property
    def block_bytes(self) -> int:
        return int(self.dtype.itemsize)

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` numbers; ValueError if the row is not a whole number of blocks."""
        if elements % self.block:
            raise ValueError(f"{elements} elements are no multiple of the {self.name} block of {self.block}")
        return elements // self.block * self.block_bytes
