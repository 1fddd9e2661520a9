"""Calibration data of a file's matrices: statistics of the inputs that multiply their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from satchel.quant.calibration.gptq import Hessian
from satchel.quant.format import F32


class Calibration(Protocol):
    """Statistics of a tensor's inputs, by its name; None where there are none."""

    def diagonal(self, name: str) -> F32 | None:
        """The mean square of each column's inputs: (K,), or (stack * K,) for a stack of matrices."""

    def hessian(self, name: str) -> Hessian | None:
        """The Hessian of the inputs, for GPTQ."""


@dataclass(frozen=True, slots=True)
class Diagonals:
    """Calibration with mean squares only, such as an importance matrix."""

    table: Mapping[str, F32]

    def diagonal(self, name: str) -> F32 | None:
        return self.table.get(name)

    def hessian(self, name: str) -> Hessian | None:
        return None


@dataclass(frozen=True, slots=True)
class WithoutGptq:
    """The mean squares of another calibration without its Hessians, which turns GPTQ off."""

    whole: Calibration

    def diagonal(self, name: str) -> F32 | None:
        return self.whole.diagonal(name)

    def hessian(self, name: str) -> Hessian | None:
        return None
