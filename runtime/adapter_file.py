"""A file of a LoRA adapter or of a control vector, as a load takes it, and its scale."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from satchel.errors import RequestError

SCALE_LIMIT = 1e6


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A file to load: name "" takes the file's, without its ending. scale: of requests that say nothing.
    layers: of a control vector, the first and last that it steers; None: all that it has.
    """

    path: str | Path
    scale: float = 1.0
    name: str = ""
    layers: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        checked_scale(self.called, self.scale)
        if self.layers is not None and not 1 <= self.layers[0] <= self.layers[1]:
            raise RequestError(
                f"{self.called}: layers {self.layers}: expected a first and a last one from 1 on"
            )

    @property
    def called(self) -> str:
        return self.name or Path(self.path).stem


Loadable = str | Path | AdapterFile


def checked_scale(name: str, scale: float) -> float:
    """A scale as the plan gets it; RequestError for what is no number, or a senseless one."""
    number = isinstance(scale, int | float) and not isinstance(scale, bool) and isfinite(scale)
    if not number or abs(scale) > SCALE_LIMIT:
        raise RequestError(f"{name}: scale {scale!r}: expected a number up to {SCALE_LIMIT:g}")
    return float(np.float32(scale)) + 0.0  # never -0, which would be a mix of its own
