"""What is known of the columns that a file's matrices meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from satchel.quant.format import F32
from satchel.quant.gptq import Hessian


class Calibration(Protocol):
    """What is known of the columns that a tensor meets, by its name; None where nothing is."""

    def diagonal(self, name: str) -> F32 | None:
        """Mean square of each column's inputs, (K,) or, for a stack of matrices, (stack * K,)."""

    def hessian(self, name: str) -> Hessian | None:
        """The Hessian of the inputs, for GPTQ."""


@dataclass(frozen=True, slots=True)
class Diagonals:
    """A calibration that is a table."""

    table: Mapping[str, F32]

    def diagonal(self, name: str) -> F32 | None:
        return self.table.get(name)

    def hessian(self, name: str) -> Hessian | None:
        return None


@dataclass(frozen=True, slots=True)
class WithoutGptq:
    """The diagonals of another calibration: no Hessian, so no GPTQ."""

    whole: Calibration

    def diagonal(self, name: str) -> F32 | None:
        return self.whole.diagonal(name)

    def hessian(self, name: str) -> Hessian | None:
        return None
