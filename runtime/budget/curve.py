"""Interpolates a few measured divergences to every format of every tensor.

For small errors, divergence is proportional to the squared error. Between measurements, log divergence is
interpolated linearly over log squared error; beyond them it is proportional. Tensors that were measured
together share the divergence by error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

import numpy as np

from satchel.quant import FORMATS
from satchel.quant.format import F32

LEAST = 1e-9  # nats per token: measurements cannot distinguish less from 0


@dataclass(frozen=True, slots=True)
class Point:
    """A relative squared error and its measured divergence."""

    error: float
    kld: float


def relative_error(format: str, x: F32, importance: F32 | None) -> float:
    """Relative squared error of x (rows, K) in a format, columns weighted by importance (K)."""
    fmt = FORMATS[format]
    if fmt.encode is None:
        raise ValueError(f"{format} has no encoder")
    miss = (fmt.decode(fmt.encode(x, importance)) - x).astype(np.float64)
    noise, power = np.square(miss).sum(axis=0), np.square(x, dtype=np.float64).sum(axis=0)
    weight = np.ones(1) if importance is None else importance.astype(np.float64)
    whole = float((power * weight).sum())
    return float((noise * weight).sum()) / whole if whole > 0 else 0.0


def read_off(points: Sequence[Point], error: float) -> float:
    """Divergence at a squared error. It never falls with the error, whatever the measurement noise."""
    if error <= 0 or not points:
        return 0.0
    known = _rising(points)
    if error <= known[0].error:
        return known[0].kld * error / known[0].error
    if error >= known[-1].error:
        return known[-1].kld * error / known[-1].error
    for a, b in pairwise(known):
        if error <= b.error:
            share = (log(error) - log(a.error)) / (log(b.error) - log(a.error))
            return exp(log(a.kld) + share * (log(b.kld) - log(a.kld)))
    return known[-1].kld


def _rising(points: Sequence[Point]) -> list[Point]:
    """Points by error, with divergences made monotonic."""
    known: list[Point] = []
    for point in sorted(points, key=lambda p: p.error):
        if point.error <= 0 or (known and point.error == known[-1].error):
            continue
        known.append(Point(point.error, max(point.kld, LEAST, known[-1].kld if known else 0.0)))
    return known


def share_out(
    errors: Mapping[str, Mapping[str, float]], measured: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Divergence by tensor and format. errors: by tensor and format; measured: by format, over all tensors
    together.
    """
    whole = {f: sum(e[f] for e in errors.values()) for f in measured}
    points = [Point(whole[f] / len(errors), kld / len(errors)) for f, kld in measured.items()]
    return {name: {f: read_off(points, e) for f, e in found.items()} for name, found in errors.items()}
