"""Arithmetic of the sampling definition that every device repeats bit for bit: no library exp or log, and
integer sums, whose order does not matter.
"""

from __future__ import annotations

from math import frexp, ldexp, sqrt

import numpy as np

from satchel.runtime.graph import Array

MASK = (1 << 64) - 1
BITS = 40  # the best candidate has weight 2^BITS
FAR = np.float32(-40.0)  # distances below this have weight 0
LOG2E = np.float32(1.44269504)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
LN2 = 0.6931471805599453
LANES = 8


def uniform(seed: int, position: int) -> float:
    """A random number in [0, 1) from (seed, position): the top 53 bits of splitmix64's finalizer (Steele et
    al., OOPSLA 2014).
    """
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def weights(below: Array) -> Array:
    """round(e^x * 2^BITS) as int64, for x (n) float32 <= 0.

    x = n ln 2 + r; e^r by its series up to r^7, all in float32; the scaling is exact.
    """
    x = np.maximum(below.astype(np.float32), FAR)
    n = np.rint(x * LOG2E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p: Array = np.full(len(x), 1 / 5040, np.float32)
    for k in (720, 120, 24, 6, 2, 1, 1):
        p = p * r + np.float32(1 / k)
    return np.rint(np.ldexp(p.astype(np.float64), n.astype(np.int64) + BITS)).astype(np.int64)


def lanes(values: Array) -> float:
    """Sum of float64 values as eight partial sums, added one after another at the end."""
    padded = np.zeros(-(-len(values) // LANES) * LANES)
    padded[: len(values)] = values
    total = 0.0
    for lane in np.cumsum(padded.reshape(-1, LANES), axis=0)[-1].tolist():
        total += lane
    return total


def log(x: float) -> float:
    """Natural logarithm of x > 0, by the series of artanh around 1."""
    m, e = frexp(x)
    if m < 0.7071067811865476:
        m, e = m * 2, e - 1
    s = (m - 1) / (m + 1)
    q, sum = s * s, 0.0
    for k in range(23, 0, -2):
        sum = sum * q + 1.0 / k
    return e * LN2 + 2 * s * sum


def exp(x: float) -> float:
    """e^x, with x clamped to [-700, 700]: powers of two, and the series up to the 17th power for the rest."""
    x = min(max(x, -700.0), 700.0)
    n = float(np.rint(x / LN2))
    r, sum = x - n * LN2, 1.0
    for k in range(17, 0, -1):
        sum = sum * r / k + 1.0
    return ldexp(sum, int(n))


def power(x: float, y: float) -> float:
    """x^y for x >= 0; 0 if x is 0 and y is not."""
    if x <= 0:
        return 1.0 if y == 0 else 0.0
    return exp(y * log(x))


def root(x: float) -> float:
    return sqrt(x)
