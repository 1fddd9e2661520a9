"""The loops of GPTQ, for numba: rows are the contiguous dimension, so SIMD lanes are rows. All float32; the
caller allocates the outputs.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32

TILE = 128  # rows that are worked on together: a run of their columns stays in the first cache


def feed_run(
    wanted: F32, w: F32, error: F32, code: F32, feed: F32, step: F32, base: F32, least: float, most: float
) -> None:
    """Codes and errors (n, rows) of a run of columns, each error fed to the later ones of the run.

    wanted: (n, rows), the numbers with what the columns before the run fed to them; changed. w: the numbers
    themselves. feed: (n, n). step, base: (n, rows).
    """
    count, rows = w.shape
    for start in range(0, rows, TILE):
        stop = min(start + TILE, rows)
        for i in range(count):
            for r in range(start, stop):
                s = step[i, r]
                inverse = np.float32(1) / s if s != 0 else np.float32(0)
                q = min(max(np.rint((wanted[i, r] + base[i, r]) * inverse), least), most)
                code[i, r] = q
                error[i, r] = w[i, r] - (np.float32(q) * s - base[i, r])
            for j in range(i + 1, count):
                f = feed[j, i]
                for r in range(start, stop):
                    wanted[j, r] += f * error[i, r]


def move_run(
    slope: F32, w: F32, error: F32, code: F32, matrix: F32, step: F32, base: F32, least: float, most: float
) -> None:
    """Moves codes (n, rows) of a run of columns one by one to where e H e^T is least, with their errors.

    slope: (n, rows), H e of these columns; changed. matrix: (n, n), H among these columns.
    """
    count, rows = w.shape
    for start in range(0, rows, TILE):
        stop = min(start + TILE, rows)
        for i in range(count):
            if matrix[i, i] <= 0:
                continue
            share = np.float32(1) / matrix[i, i]
            for r in range(start, stop):
                s = step[i, r]
                inverse = np.float32(1) / s if s != 0 else np.float32(0)
                value = w[i, r] - error[i, r] + slope[i, r] * share
                q = min(max(np.rint((value + base[i, r]) * inverse), least), most)
                moved = (np.float32(q) - code[i, r]) * s
                code[i, r] = q
                error[i, r] -= moved
                slope[i, r] = moved  # its own slope is done with: this is what the later ones lose
            for j in range(i + 1, count):
                h = matrix[j, i]
                for r in range(start, stop):
                    slope[j, r] -= h * slope[i, r]


def dots(a: F32, b: F32, out: F32) -> None:
    """out (rows,) = sums over k of a * b (k, rows)."""
    out[:] = 0
    for k in range(a.shape[0]):
        for r in range(a.shape[1]):
            out[r] += a[k, r] * b[k, r]
