"""How far numbers are from those wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def nmse(got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    """Normalised mean square error: sum((got - wanted)^2) / sum(wanted^2), in float64."""
    got64, wanted64 = got.astype(np.float64), wanted.astype(np.float64)
    return float(np.square(got64 - wanted64).sum() / (np.square(wanted64).sum() or 1.0))
