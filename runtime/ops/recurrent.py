"""Ops of recurrent layers (SSM, gated delta rule); see the package.

A recurrent state lies in pages, one per block of positions: the page of a block holds the state after the
last computed position of that block. A step reads the page of the position before its first token. It writes
the page of its last position, and those of the blocks that end before it, unless their entry in the block
table (S, B) is -1. Tokens of a slot are consecutive in the step; before position 0 a state is zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from satchel.runtime.graph import Array, Type
from satchel.runtime.ops import split
from satchel.runtime.ops.op import op
from satchel.runtime.ops.op import same as _same


@op(_same, row_wise=True, follows=True, split=split.along)
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), elementwise."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x, dtype=np.float32)), np.float32)


@op(_same, row_wise=True, follows=True, split=split.along)
def softplus(x: Array) -> Array:
    """ln(1 + exp(x)), elementwise."""
    return np.logaddexp(x.astype(np.float64), 0).astype(np.float32)


@op(lambda x, *first: x, view=True)
def ordered_after(x: Array, *first: Array) -> Array:
    """x itself, as a control dependency: readers of the result run after the other sources are computed."""
    return x


def _pieces(slot: Array, pos: Array) -> Iterator[tuple[int, int]]:
    """Start and end (exclusive) of each slot's tokens in the step."""
    start = 0
    for t in range(1, len(slot) + 1):
        if t == len(slot) or slot[t] != slot[t - 1] or pos[t] != pos[t - 1] + 1:
            yield start, t
            start = t


def _before(state: Array, t: int, slot: Array, pos: Array, table: Array, block: int) -> Array:
    """The state before token t."""
    at = int(pos[t])
    return np.array(state[table[slot[t], (at - 1) // block]]) if at else np.zeros_like(state[0])


def _page(t: int, end: int, slot: Array, pos: Array, table: Array, block: int) -> int:
    """Page for the state after token t; -1: the state is not kept. end: the token after the piece's last."""
    if t + 1 < end and (pos[t] + 1) % block:
        return -1
    return int(table[slot[t], pos[t] // block])


def _convolved(x: Type, state: Type, w: Type, *_: Type, block: int) -> Type:
    if w.shape[0] != x.shape[-1] or state.shape[1:] != (w.shape[1] - 1, w.shape[0]):  # type: ignore[operator]
        raise TypeError(f"short_conv: weights {w} and state {state} do not fit {x}")
    return x


@op(_convolved, cache=slice(1, 2))
def short_conv(
    x: Array, state: Array, w: Array, slot: Array, pos: Array, table: Array, *bias: Array, block: int
) -> Array:
    """silu(causal depthwise convolution of x (T, C) with w (C, K), plus an optional bias (C)): (T, C). state
    (pages, K - 1, C) holds the K - 1 inputs before the step, newest last.
    """
    out = np.zeros_like(x)
    for a, b in _pieces(slot, pos):
        known = np.concatenate((_before(state, a, slot, pos, table, block), x[a:b]))
        for j in range(w.shape[1]):
            out[a:b] += w[:, j] * known[j : j + b - a]
    out = out + bias[0] if bias else out
    with np.errstate(over="ignore"):
        return np.asarray(out / (1 + np.exp(-out, dtype=np.float32)), np.float32)


@op(_same, alias=True, exact=True, cache=slice(1))
def conv_write(state: Array, x: Array, slot: Array, pos: Array, table: Array, *, block: int) -> Array:
    """Convolution states (pages, K - 1, C), updated in place with the inputs x (T, C) of this step."""
    out, kept = state.copy(), state.shape[1]
    for a, b in _pieces(slot, pos):
        known = np.concatenate((_before(state, a, slot, pos, table, block), x[a:b]))
        for t in range(a, b):
            page = _page(t, b, slot, pos, table, block)
            if page >= 0:
                out[page] = known[t - a + 1 : t - a + 1 + kept]
    return out


def _scanned(q: Type, k: Type, v: Type, g: Type, beta: Type, state: Type, *_: Type, **__: int) -> Type:
    heads, size = v.shape[1:]
    wrong = q != k or g != beta or g.shape[1:] != (heads,) or state.shape[1:] != (heads, q.shape[2], size)
    if wrong or heads % q.shape[1]:  # type: ignore[operator]
        raise TypeError(f"gated_scan: {q}, {k}, {v}, {g}, {beta} and state {state}")
    return Type((v.shape[0], heads, 2 * size))  # type: ignore[operator]


def _key_of(heads: int, groups: int, tiled: int) -> Array:
    """Index (heads) of the group whose keys each head uses."""
    return np.arange(heads) % groups if tiled else np.arange(heads) // (heads // groups)


@op(_scanned, cache=slice(5, 6))
def gated_scan(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    slot: Array,
    pos: Array,
    table: Array,
    *,
    block: int,
    delta: int,
    tiled: int,
) -> Array:
    """Gated linear recurrence over each head's state S (N, P), per token: S = exp(g) S + k u^T. The output of
    a head is q S, then u: (T, H, 2 P).

    q, k (T, G, N), v (T, H, P); g (T, H) is the log decay.
    Selective scan (SSM, delta 0): u = beta v, where beta (T, H) is dt. Mamba-2, arXiv 2405.21060.
    Gated delta rule (delta 1): u = beta (v - k S), with the decayed S. arXiv 2412.06464.

    The H / G heads of a group share q and k. They are consecutive, or G apart where tiled is 1.
    """
    heads, size = v.shape[1:]
    of, out = _key_of(heads, k.shape[1], tiled), np.zeros((len(v), heads, 2 * size), np.float32)
    for a, b in _pieces(slot, pos):
        s = _before(state, a, slot, pos, table, block)
        for t in range(a, b):
            s = s * np.exp(g[t], dtype=np.float32)[:, None, None]
            found = np.einsum("hn,hnp->hp", k[t, of], s) if delta else np.float32(0)
            u = beta[t][:, None] * (v[t] - found)
            s = s + k[t, of][:, :, None] * u[:, None, :]
            out[t] = np.concatenate((np.einsum("hn,hnp->hp", q[t, of], s), u), axis=-1)
    return out


@op(_same, alias=True, cache=slice(1))
def scan_write(
    state: Array,
    k: Array,
    made: Array,
    g: Array,
    slot: Array,
    pos: Array,
    table: Array,
    *,
    block: int,
    tiled: int,
) -> Array:
    """Scan states (pages, H, N, P), updated in place. The sources are those of gated_scan, and made (T, H, 2
    P) is its result.
    """
    out, size = state.copy(), state.shape[3]
    of = _key_of(state.shape[1], k.shape[1], tiled)
    for a, b in _pieces(slot, pos):
        s = _before(state, a, slot, pos, table, block)
        for t in range(a, b):
            s = s * np.exp(g[t], dtype=np.float32)[:, None, None]
            s = s + k[t, of][:, :, None] * made[t, :, None, size:]
            page = _page(t, b, slot, pos, table, block)
            if page >= 0:
                out[page] = s
    return out
