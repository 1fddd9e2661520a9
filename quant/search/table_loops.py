"""Searches over tables of values (iq4_nl and the four-bit floats) as scalar loops for numba, which C
has too; arrays are float64, w weighs squared errors. Results go into arrays of the caller.

`nearest` is a table of 512: entry k + 256 is the value that is nearest to all numbers from k / 2 up to (k +
1) / 2. The innermost loops run over candidates, so that they become vector code. A NaN takes the first entry:
as a number it would be a place far outside of the table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def table_scales(x: F64, w: F64, targets: F64, nearest: F64, scales: F64) -> None:
    """Best scale s of x = s * value for groups (n, size), into scales (n,), which are 0: the least squares of
    the codes that each start in `targets` gives, where a start is what the largest number of the group falls
    on.
    """
    count = targets.shape[0]
    inverses, sxv, svv = np.empty(count), np.empty(count), np.empty(count)
    for n in range(x.shape[0]):
        extreme = 0.0
        for i in range(x.shape[1]):
            if abs(x[n, i]) > abs(extreme):
                extreme = x[n, i]
        if extreme == 0.0 or not np.isfinite(1.0 / extreme):
            continue
        for c in range(count):
            inverses[c], sxv[c], svv[c] = 2.0 * targets[c] / extreme, 0.0, 0.0
        for i in range(x.shape[1]):
            for c in range(count):
                place = min(np.floor(x[n, i] * inverses[c]), 255.0)
                place = place if place >= -256.0 else -256.0  # a NaN too
                value = nearest[int(place) + 256]
                sxv[c] += w[n, i] * x[n, i] * value
                svv[c] += w[n, i] * value * value
        best = 0.0
        for c in range(count):
            if svv[c] > 0.0 and sxv[c] * sxv[c] > best * svv[c]:
                best = sxv[c] * sxv[c] / svv[c]
                scales[n] = sxv[c] / svv[c]


def table_choices(x: F64, w: F64, scales: F64, nearest: F64, choices: F64, totals: F64) -> None:
    """For each group of x (blocks, groups, size) which of its block's scales (blocks, candidates) errs least,
    into choices (blocks, groups); the weighted errors into totals (blocks,).
    """
    count = scales.shape[1]
    errors, inverses = np.empty(count), np.empty(count)
    for n in range(x.shape[0]):
        totals[n] = 0.0
        for c in range(count):
            inverses[c] = 2.0 / scales[n, c] if scales[n, c] != 0.0 else 0.0
        for g in range(x.shape[1]):
            errors[:] = 0.0
            for i in range(x.shape[2]):
                value, weight = x[n, g, i], w[n, g, i]
                for c in range(count):
                    place = min(np.floor(value * inverses[c]), 255.0)
                    place = place if place >= -256.0 else -256.0  # a NaN too
                    miss = value - scales[n, c] * nearest[int(place) + 256]
                    errors[c] += weight * miss * miss
            found = np.argmin(errors)
            choices[n, g] = found
            totals[n] += errors[found]


def table_fit(x: F64, w: F64, d: F64, units: F64, nearest: F64, better: F64) -> None:
    """The d (blocks,) that suits the nearest codes under d * units (blocks, groups) best, into better."""
    for n in range(x.shape[0]):
        sxa, saa = 0.0, 0.0
        for g in range(x.shape[1]):
            step = d[n] * units[n, g]
            inverse = 2.0 / step if step != 0.0 else 0.0
            for i in range(x.shape[2]):
                place = min(np.floor(x[n, g, i] * inverse), 255.0)
                place = place if place >= -256.0 else -256.0  # a NaN too
                a = units[n, g] * nearest[int(place) + 256]
                sxa += w[n, g, i] * x[n, g, i] * a
                saa += w[n, g, i] * a * a
        better[n] = sxa / saa if saa > 0.0 else d[n]
