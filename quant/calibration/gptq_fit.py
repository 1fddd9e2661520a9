"""Refinement after GPTQ's pass over the columns: scales that fit the codes, and codes that fit each other.
Each step is exact, and none raises e H e^T of any row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from satchel.quant.calibration import gptq_loops
from satchel.quant.calibration.gptq_grids import GptqGrid, Parts
from satchel.quant.format import F32
from satchel.quant.native.compiled import compiled
from satchel.quant.pack import to_f16

RUN = 64  # columns that are moved one by one between two products


def dots(a: F32, b: F32) -> F32:
    """Sums over k of a * b (k, rows): (rows,)."""
    out = np.empty(a.shape[1], np.float32)
    compiled(gptq_loops.dots)(a, b, out)
    return out


def descend(grid: GptqGrid, found: Parts, w: F32, matrix: F32) -> Parts:
    """Coordinate descent: moves each code in turn to the least error, with the others fixed."""
    step, base, code = found.step(), found.base(), found.code.copy()
    error = w - found.values()
    group = np.arange(len(w)) // grid.group
    least, most = map(float, grid.codes)
    run = compiled(gptq_loops.move_run)
    for start in range(0, len(w), RUN):
        now = slice(start, min(start + RUN, len(w)))
        own = np.ascontiguousarray(matrix[now, now])
        slope = matrix[now] @ error
        run(slope, w[now], error[now], code[now], own, step[group[now]], base[group[now]], least, most)
    return replace(found, code=code)


def fit_groups(grid: GptqGrid, found: Parts, w: F32, matrix: F32) -> Parts:
    """Moves each group's unit and low in turn to the integers near the least error."""
    size, count = grid.group, len(found.unit)
    per = count // len(found.d)
    unit, low = found.unit.copy(), found.low.copy()
    error = w - found.values()
    for b in range(len(found.d)):
        first, last = b * per * size, (b + 1) * per * size
        slope = matrix[first:last] @ error
        for g in range(b * per, (b + 1) * per):
            rows = slice(g * size, (g + 1) * size)
            own, code = slope[g * size - first : (g + 1) * size - first], found.code[rows]
            du, dl = _best_move(
                grid, code, own, matrix[rows, rows], found.d[b], found.dmin[b], unit[g], low[g]
            )
            unit[g] += du
            low[g] += dl
            moved = code * (du * found.d[b]) - dl * found.dmin[b]
            error[rows] -= moved
            slope -= matrix[first:last, rows] @ moved
    return replace(found, unit=unit, low=low)


def _best_move(
    grid: GptqGrid, code: F32, slope: F32, matrix: F32, d: F32, dmin: F32, unit: F32, low: F32
) -> tuple[F32, F32]:
    """Changes of a group's unit and low (rows,) that lower the error most; 0 where none does.

    The change of the error is -2 m.slope + m H m^T for the change m = code * d * du - dmin * dl of the
    values.
    """
    u = code * d
    hu = matrix @ u
    uu, ug = dots(u, hu), dots(u, slope)
    uv, vv, vg = -dmin * hu.sum(axis=0), dmin * dmin * matrix.sum(), -dmin * slope.sum(axis=0)
    best, best_u, best_l = np.zeros_like(uu), np.zeros_like(uu), np.zeros_like(uu)
    determinant = uu * vv - uv * uv
    usable = determinant > 1e-6 * uu * vv
    joint = np.where(usable, (ug * vv - vg * uv) / np.where(usable, determinant, 1), 0)
    alone = np.divide(ug, uu, out=np.zeros_like(ug), where=uu > 0)
    for wanted in (joint, alone) if grid.has_base else (alone,):
        for offset in (-1, 0, 1):
            du = np.clip(unit + np.rint(wanted) + offset, *grid.units) - unit
            free = np.divide(vg - uv * du, vv, out=np.zeros_like(vg), where=vv > 0)
            dl = np.clip(np.rint(low + free), *grid.lows) - low
            change = du * du * uu + 2 * du * dl * uv + dl * dl * vv - 2 * (du * ug + dl * vg)
            wins = change < best
            best, best_u, best_l = (
                np.where(wins, new, old) for new, old in ((change, best), (du, best_u), (dl, best_l))
            )
    return best_u.astype(np.float32), best_l.astype(np.float32)


def fit_blocks(grid: GptqGrid, found: Parts, w: F32, matrix: F32) -> Parts:
    """Moves each block's d and dmin in turn to the f16 values of least error."""
    count = len(found.d)
    size, per = len(w) // count, len(found.unit) // count
    d, dmin = found.d.copy(), found.dmin.copy()
    error = w - found.values()
    unit = np.repeat(found.unit, grid.group, axis=0)
    for b in range(count):
        rows, groups = slice(b * size, (b + 1) * size), slice(b * per, (b + 1) * per)
        own, low = matrix[rows, rows], found.low[groups]
        u = found.code[rows] * unit[rows]
        slope, hu = matrix[rows] @ error, own @ u
        # v, the share of dmin, is -low on all numbers of a group: sums over groups stand for its products
        sums = own.reshape(per, grid.group, per, grid.group).sum(axis=(1, 3))
        uu, ug = dots(u, hu), dots(u, slope)
        uv, vg = (-dots(low, p.reshape(per, grid.group, -1).sum(axis=1)) for p in (hu, slope))
        vv = dots(low, sums @ low)
        new, new_min = _fit_pair(grid, uu, uv, vv, ug, vg, d[b], dmin[b])
        error[rows] -= u * (new - d[b])
        error[rows].reshape(per, grid.group, -1)[...] += (low * (new_min - dmin[b]))[:, None]
        d[b], dmin[b] = new, new_min
    return replace(found, d=d, dmin=dmin)


def _fit_pair(
    grid: GptqGrid, uu: F32, uv: F32, vv: F32, ug: F32, vg: F32, d: F32, dmin: F32
) -> tuple[F32, F32]:
    """The best of: both as they are, d alone, both at once; (rows,) each, as f16 rounds them."""
    alone = np.divide(ug, uu, out=np.zeros_like(ug), where=uu > 0)
    determinant = uu * vv - uv * uv
    usable = determinant > 1e-6 * uu * vv
    safe = np.where(usable, determinant, 1)
    joint = np.where(usable, (ug * vv - vg * uv) / safe, 0)
    joint_min = np.where(usable, (vg * uu - ug * uv) / safe, 0)
    best, best_d, best_min = np.zeros_like(ug), d, dmin
    for add, add_min in ((alone, np.zeros_like(alone)), (joint, joint_min)):
        new, new_min = (to_f16(p).astype(np.float32) for p in (d + add, dmin + add_min))
        dd, dm = new - d, new_min - dmin
        change = dd * dd * uu + 2 * dd * dm * uv + dm * dm * vv - 2 * (dd * ug + dm * vg)
        wins = (change < best) & np.isfinite(new) & np.isfinite(new_min) & (new * d > 0)
        wins &= (new_min >= 0) | grid.signed
        best, best_d, best_min = (
            np.where(wins, p, q) for p, q in ((change, best), (new, best_d), (new_min, best_min))
        )
    return best_d, best_min
