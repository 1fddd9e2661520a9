"""GPTQ (Frantar et al., arXiv 2210.17323), in the formulation of LDLQ (Chee et al., arXiv 2307.13304): codes
are chosen column by column, and the rounding error of each is passed on to the columns that follow, by the
Hessian H of the inputs. Then scales are fitted anew and codes improved one at a time, by the same error.

Scales are fixed before any code is chosen, so blocks are standard blocks and the order of columns is free.
All steps minimize the sum over rows of e H e^T, where e is a row's error. Arrays stand column first: (K,
rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from satchel.quant.calibration.gptq_fit import RUN, descend, dots, fit_blocks, fit_groups
from satchel.quant.calibration.gptq_grids import GRIDS, GptqGrid, Parts, blocks_of, parts
from satchel.quant.calibration.gptq_loops import feed_run
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.native.compiled import compiled
from satchel.quant.pack import quietly

DAMPING = 0.01  # of the mean of the diagonal: inputs that calibration did not show still count
ROUNDS = 1  # of fitting scales and improving codes


@dataclass(frozen=True, slots=True)
class Hessian:
    """The Hessian of a matrix's inputs, in float32."""

    matrix: F32  # (K, K), the mean of x x^T, damped
    order: npt.NDArray[np.intp]  # columns, those of the largest inputs first
    # (K, K) strictly lower triangular, in that order: entry (i, j) is the share of column j's error that
    # column i takes over.
    feed: F32

    @property
    def diagonal(self) -> F32:
        return self.matrix.diagonal()


def prepare(matrix: npt.NDArray[np.floating], damping: float = DAMPING) -> Hessian:
    """The factors of a mean of x x^T (K, K). ValueError if it is not finite or far from positive definite."""
    h = np.array(matrix, np.float64)
    diagonal = h.diagonal().copy()
    if h.ndim != 2 or h.shape[0] != h.shape[1] or not np.isfinite(h).all() or (diagonal < 0).any():
        raise ValueError(f"expected a finite matrix of mean products of inputs, got shape {h.shape}")
    scale = float(diagonal.mean()) or 1.0
    for _ in range(12):
        h[np.diag_indices(len(h))] = diagonal + damping * scale
        order = np.argsort(-h.diagonal(), kind="stable")
        try:
            root = np.linalg.cholesky(h[np.ix_(order[::-1], order[::-1])])[::-1, ::-1]
        except np.linalg.LinAlgError:
            damping *= 4  # float32 sums of few rows may be a little indefinite
            continue
        feed = np.tril((root / root.diagonal()).T, -1).astype(np.float32)
        return Hessian(h.astype(np.float32), order, feed)
    raise ValueError("expected mean products of inputs, got a matrix that is far from positive definite")


@quietly
def encode_matrix(fmt: Format, x: F32, hessian: Hessian | None, importance: F32 | None) -> Blocks:
    """Blocks (rows, K / block) of x (rows, K). Rows may come in any cut: all that they share is the hessian.

    importance: weights of the columns for the first scales; by default the hessian's diagonal. Each row keeps
    the plain encoding where that has the lower error, or can't hold its numbers. Formats that are no grid are
    encoded plainly.
    """
    if fmt.encode is None:
        raise ValueError(f"{fmt.name} can only be read")
    if importance is None and hessian is not None:
        importance = hessian.diagonal
    plain = fmt.encode(x, importance)
    grid = GRIDS.get(fmt.name)
    if hessian is None or grid is None:
        return plain
    w = np.ascontiguousarray(x.T)
    start = parts(grid, plain)
    found = replace(start, code=gptq_codes(grid, start, w, hessian))
    for _ in range(ROUNDS):
        found = improve(grid, found, w, hessian.matrix)
    wins = row_errors(w - found.values(), hessian.matrix) < row_errors(w - start.values(), hessian.matrix)
    return np.where(wins[:, None], blocks_of(fmt, grid, found), plain)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While the block runs, numpy's products use the thread that asks for them alone.

    For callers with threads of their own: those of a BLAS would wait for work by spinning, and cost most of
    the time.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


def row_errors(e: F32, matrix: F32) -> F32:
    """e H e^T of each row's error, for errors (K, rows)."""
    return dots(matrix @ e, e)


def gptq_codes(grid: GptqGrid, given: Parts, w: F32, hessian: Hessian) -> F32:
    """GPTQ's codes (K, rows) of w (K, rows) under the given scales."""
    step, base = given.step(), given.base()
    ordered, group = w[hessian.order], hessian.order // grid.group
    error, code = np.zeros_like(w), np.empty_like(w)
    least, most = map(float, grid.codes)
    run = compiled(feed_run)
    for start in range(0, len(w), RUN):
        now = slice(start, min(start + RUN, len(w)))
        wanted = ordered[now] + hessian.feed[now, :start] @ error[:start]
        own = np.ascontiguousarray(hessian.feed[now, now])
        run(wanted, ordered[now], error[now], code[now], own, step[group[now]], base[group[now]], least, most)
    found = np.empty_like(code)
    found[hessian.order] = code
    return found


def improve(grid: GptqGrid, found: Parts, w: F32, matrix: F32) -> Parts:
    """One round of fitting scales and moving codes; no step of it makes a row worse."""
    found = fit_groups(grid, found, w, matrix) if grid.has_units else found
    found = fit_blocks(grid, found, w, matrix)
    return descend(grid, found, w, matrix)
