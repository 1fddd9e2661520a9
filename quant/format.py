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
    """A block format: how tensors of this type are stored."""

    name: str
    id: int  # GGUF's number of the type, above 1000 where GGUF has none
    block: int  # elements per block
    dtype: np.dtype[Any]  # numpy record of one block; its itemsize is the block's bytes
    decode: Callable[[Blocks], F32]  # (..., n) blocks -> float32 (..., n * block), exact
    # Float32 (..., n * block) [, importance of the same last dimension] -> (..., n) blocks; None: the format
    # is read only.
    encode: Callable[[F32, F32 | None], Blocks] | None = None
    act: str | None = None  # name of the format to which a product quantizes its other operand; None: float32
    weights: bool = True  # False: only activations have this format, never a tensor of a file

    @property
    def block_bytes(self) -> int:
        return int(self.dtype.itemsize)

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` numbers; ValueError if the row is not a whole number of blocks."""
        if elements % self.block:
            raise ValueError(f"{elements} elements are no multiple of the {self.name} block of {self.block}")
        return elements // self.block * self.block_bytes
