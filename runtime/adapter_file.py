"""Names a file of a LoRA adapter or of a control vector, with its default scale."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from satchel.errors import RequestError

SCALE_LIMIT = 1e6


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter or control vector to load."""

    path: str | Path
    scale: float = 1.0  # for requests that give none
    name: str = ""  # "": the file's name without its ending
    # The first and last layer that a control vector steers; None: all that it has.
    layers: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        checked_scale(self.called, self.scale)
        if self.layers is not None and not 1 <= self.layers[0] <= self.layers[1]:
            raise RequestError(
                f"{self.called}: layers {self.layers}: expected a first and a last one from 1 on"
            )

    @property
    def called(self) -> str:
        """The adapter's name in requests: `name`, else the file's without its ending."""
        return self.name or Path(self.path).stem


Loadable = str | Path | AdapterFile


def checked_scale(name: str, scale: float) -> float:
    """A scale as float32, as the plan takes it. RequestError for NaN, infinity or an extreme value."""
    number = isinstance(scale, int | float) and not isinstance(scale, bool) and isfinite(scale)
    if not number or abs(scale) > SCALE_LIMIT:
        raise RequestError(f"{name}: scale {scale!r}: expected a number up to {SCALE_LIMIT:g}")
    return float(np.float32(scale)) + 0.0  # never -0, which would count as another mix
