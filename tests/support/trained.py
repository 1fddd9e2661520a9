"""Synthetic weights with the statistics of trained ones, and the quantization error of an encoder on them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


def trained_like(seed: int) -> F32:
    """Normally distributed weights whose rows and columns differ in scale, with a few outliers, as in trained
    matrices.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((96, 1024)) * rng.lognormal(0, 0.3, (96, 1)) * rng.lognormal(0, 0.3, 1024) * 0.05
    x[rng.integers(0, 96, 40), rng.integers(0, 1024, 40)] *= 12
    return x.astype(np.float32)


def relative_error(x: F32, y: F32, w: F32 | None = None) -> float:
    scale = np.ones(x.shape[-1]) if w is None else w.astype(np.float64)
    miss, whole = (y.astype(np.float64) - x) ** 2 * scale, x.astype(np.float64) ** 2 * scale
    return float(np.sqrt(miss.sum() / whole.sum()))
