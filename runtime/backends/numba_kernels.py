"""The two loops for which numpy is too slow or has no fixed order: products with decoded weights, and
attention.

Every sum runs in the order of its index, so a result does not depend on threads, batch or columns. The loops
hold no Python object and release the interpreter lock; numba caches the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from satchel.quant.native.numba_import import import_numba

F32 = npt.NDArray[np.float32]
PANEL = 64  # columns of a weight panel: a row of it fills four vector registers of 64 bytes
Kernel = Callable[..., None]
numba = import_numba()


def _compiled(signature: str) -> Callable[[Kernel], Kernel]:
    def compile(function: Kernel) -> Kernel:
        try:
            return cast(Kernel, numba.njit(signature, nogil=True, cache=True)(function))
        except RuntimeError:  # no folder that the compiled code could be kept in
            return cast(Kernel, numba.njit(signature, nogil=True)(function))

    return compile


def panels(w: F32) -> F32:
    """Weights (N, K) as panels (ceil(N / 64), K, 64), padded with 0."""
    n, k = w.shape
    out = np.zeros((-(-n // PANEL), PANEL, k), np.float32)
    out.reshape(-1, k)[:n] = w
    return np.ascontiguousarray(out.swapaxes(1, 2))


@_compiled("void(float32[:, ::1], float32[:, :, ::1], float32[:, ::1], int64, int64)")
def multiply(x: Any, w: Any, out: Any, first: int, last: int) -> None:
    """out (T, panels * 64) = x (T, K) @ w, for panels first..last."""
    for p in range(first, last):
        for t in range(x.shape[0]):
            acc = np.zeros(PANEL, np.float32)
            for k in range(x.shape[1]):
                a = x[t, k]
                for n in range(PANEL):
                    acc[n] += a * w[p, k, n]
            for n in range(PANEL):
                out[t, p * PANEL + n] = acc[n]


@_compiled(
    "void(float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], int64[::1], float32, int64,"
    " float32, float32[:, :, ::1], int64, int64)"
)
def attend(
    q: Any,
    keys: Any,
    values: Any,
    pos: Any,
    scale: Any,
    window: int,
    cap: Any,
    out: Any,
    first: int,
    last: int,
) -> None:
    """Queries first..last of q (T, H, D) over keys and values (KV, n, D) of their slot: out (T, H, D)."""
    heads, width = q.shape[1], q.shape[2]
    group = heads // keys.shape[0]
    score = np.empty(keys.shape[1], np.float32)
    acc = np.empty(values.shape[2], np.float32)
    for t in range(first, last):
        end = pos[t] + 1
        start = max(0, end - window) if window > 0 else 0
        for h in range(heads):
            kv = h // group
            most = np.float32(-np.inf)
            for i in range(start, end):
                s = np.float32(0)
                for d in range(width):
                    s += q[t, h, d] * keys[kv, i, d]
                s *= scale
                score[i] = cap * np.tanh(s / cap) if cap > 0 else s
                most = max(most, score[i])
            total = np.float32(0)
            acc[:] = 0
            for i in range(start, end):
                p = np.exp(score[i] - most)
                total += p
                for d in range(acc.shape[0]):
                    acc[d] += p * values[kv, i, d]
            for d in range(acc.shape[0]):
                out[t, h, d] = acc[d] / total
