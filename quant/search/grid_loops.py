"""Searches over the codebooks of points as scalar loops for numba: x are vectors, each to become a point
under a step shared by a run of them.

Under step t the weighted error of a vector and a point is, but for a constant, t t b - 2 t a with a = sum w x
point, b = sum w point^2: both are computed once, whatever number of steps is tried. All arrays are float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
TWO = np.float32(2)


def signed_terms(size: F32, w: F32, grid: F32, odd: npt.NDArray[np.bool_], a: F32, b: F32) -> None:
    """a, b (vectors, variants, points) for |x| (vectors, width) and a grid (width, points) above 0.

    Where `odd`, the last variant is that with the sign of one number wrong, the one that costs least.
    """
    least = np.empty(grid.shape[1], np.float32)
    for v in range(size.shape[0]):
        a[v] = np.float32(0)
        b[v] = np.float32(0)
        least[:] = np.float32(np.inf)
        for i in range(size.shape[1]):
            weight, product = w[v, i], w[v, i] * size[v, i]
            for p in range(grid.shape[1]):
                term = product * grid[i, p]
                a[v, 0, p] += term
                b[v, 0, p] += weight * grid[i, p] * grid[i, p]
                least[p] = min(least[p], term)
        if odd[v]:
            for p in range(grid.shape[1]):
                a[v, -1, p] = a[v, 0, p] - TWO * least[p]
                b[v, -1, p] = b[v, 0, p]


def shifted_terms(x: F32, w: F32, grid: F32, shift: np.float32, a: F32, b: F32) -> None:
    """a, b (vectors, 2, points) for x (vectors, width) and the grid (width, points) moved by shift, and by
    -shift.
    """
    for v in range(x.shape[0]):
        a[v] = np.float32(0)
        b[v] = np.float32(0)
        for i in range(x.shape[1]):
            weight, product = w[v, i], w[v, i] * x[v, i]
            for p in range(grid.shape[1]):
                up, down = grid[i, p] + shift, grid[i, p] - shift
                a[v, 0, p] += product * up
                b[v, 0, p] += weight * up * up
                a[v, 1, p] += product * down
                b[v, 1, p] += weight * down * down


def nearest(a: F32, b: F32, steps: F32, points: F32) -> None:
    """For each vector of a, b (vectors, points) the point of least error under each of its steps (vectors,
    steps), into points (vectors, steps), as whole numbers.
    """
    least = np.empty(steps.shape[1], np.float32)
    for v in range(a.shape[0]):
        step, found = steps[v], points[v]
        least[:] = np.float32(np.inf)
        found[:] = np.float32(0)
        for p in range(a.shape[1]):
            x, y, number = TWO * a[v, p], b[v, p], np.float32(p)
            for k in range(step.shape[0]):
                error = (step[k] * y - x) * step[k]
                found[k] = number if error < least[k] else found[k]
                least[k] = min(least[k], error)


def minima(a: F32, b: F32, steps: F32, best: F32) -> None:
    """Least error of each vector of a, b (vectors, points) under each of its steps (vectors, steps), into
    best (vectors, steps).
    """
    for v in range(a.shape[0]):
        step, least = steps[v], best[v]
        least[:] = np.float32(np.inf)
        for p in range(a.shape[1]):
            x, y = TWO * a[v, p], b[v, p]
            for k in range(step.shape[0]):
                least[k] = min(least[k], (step[k] * y - x) * step[k])
