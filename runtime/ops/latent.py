"""Ops of multi-head latent attention (MLA) and of its sparse form; see the package.

A run is a stretch of consecutive tokens of one slot in a step. Short runs use the absorbed form, which
attends over the latents; long runs use the expanded form, which attends over keys and values of each head.
"""

from __future__ import annotations

import numpy as np

from satchel.runtime.graph import Array, Type
from satchel.runtime.ops import split
from satchel.runtime.ops.op import op
from satchel.runtime.ops.op import rows_of as _rows
from satchel.runtime.ops.paged import attention


def _runs(slot: Array, pos: Array) -> Array:
    """Length of the run that each token belongs to: (T)."""
    begins = [t == 0 or slot[t] != slot[t - 1] or pos[t] != pos[t - 1] + 1 for t in range(len(slot))]
    number = np.cumsum(begins) - 1
    return np.asarray(np.bincount(number, minlength=1)[number] if len(slot) else number)


@op(lambda q, k, v, *_, value, **__: Type((q.shape[0], q.shape[1] * value)), cache=slice(1, 3))
def absorbed_attention(
    q: Array,
    k: Array,
    v: Array,
    slot: Array,
    pos: Array,
    table: Array,
    *,
    scale: float,
    value: int,
    least: int,
) -> Array:
    """Absorbed MLA attention for tokens in runs shorter than `least`: attention(q, k, v, ...) over the
    latents, (T, H * value). Rows of longer runs are 0.
    """
    out = np.zeros((len(q), q.shape[1] * value), np.float32)
    mine = _runs(slot, pos) < least
    if mine.any():
        out[mine] = attention.define(q[mine], k, v, slot[mine], pos[mine], table, scale=scale, value=value)
    return out


@op(
    lambda q, k, v, slot, pos, table, k_b, v_b, left, **_: left,
    cache=slice(1, 3),
    attends=True,
    weights=slice(6, 8),
)
def expanded_attention(
    q: Array,
    k: Array,
    v: Array,
    slot: Array,
    pos: Array,
    table: Array,
    k_b: Array,
    v_b: Array,
    left: Array,
    *,
    scale: float,
    least: int,
) -> Array:
    """Expanded MLA attention for tokens in runs of at least `least`: q (T, H, nope + rope) attends to keys
    and values of each head, computed from the latents in k (v is the same cache): (T, H, value). Other rows
    are copied from `left`.

    A cache row holds `rank` elements of the latent, then `rope` elements that end the key of every head. k_b
    (H, rank, nope) maps the latent to the first part of the key, v_b (H, value, rank) to the value. Source:
    DeepSeek-V2, arXiv 2405.04434, 2.1.
    """
    out, rows, keys, values = np.array(left, np.float32), _rows(k), _rows(k_b), _rows(v_b)
    block, rank = k.shape[2], keys.shape[1]
    for t in np.flatnonzero(_runs(slot, pos) >= least):
        past = rows[table[slot[t], : pos[t] // block + 1], 0].reshape(-1, rows.shape[-1])[: pos[t] + 1]
        latent, rope = past[:, :rank].astype(np.float32), past[:, rank:].astype(np.float32)
        for h in range(q.shape[1]):
            key = np.concatenate((latent @ keys[h], rope), axis=-1)
            score = key @ q[t, h] * np.float32(scale)
            p = np.exp(score - score.max())
            out[t, h] = (p / p.sum()) @ (latent @ values[h].T)
    return out


@op(lambda q, *_, k: Type((q.shape[0], k), "i32"), cache=slice(2, 3), discrete=True)
def index_positions(
    q: Array, weights: Array, keys: Array, slot: Array, pos: Array, table: Array, *, k: int
) -> Array:
    """Positions of the top k scores of the lightning indexer: (T, k), ascending, padded with -1.

    q (T, H, D), weights (T, H), keys: a cache (blocks, 1, block, D). The score of position s for token t is
    sum over h of weights[t, h] * max(0, q[t, h] . key[s]). Ties go to the lower position; NaN ranks last.
    Source: DeepSeek-V3.2-Exp.
    """
    out, rows, block = np.full((len(q), k), -1, np.int32), _rows(keys), keys.shape[2]
    for t in range(len(q)):
        n = int(pos[t]) + 1
        if n <= k:
            out[t, :n] = np.arange(n)
            continue
        past = rows[table[slot[t], : (n - 1) // block + 1], 0].reshape(-1, rows.shape[-1])[:n]
        with np.errstate(invalid="ignore", over="ignore"):
            score = weights[t] @ np.maximum(q[t] @ past.astype(np.float32).T, 0)
        score = np.where(np.isnan(score), -np.inf, score)
        out[t] = np.sort(np.argsort(-score, kind="stable")[:k])
    return out


@op(
    lambda q, k, v, *_, value, **__: Type((q.shape[0], q.shape[1] * value)),
    cache=slice(1, 3),
    attends=True,
    split=split.attended,
)
def sparse_attention(
    q: Array,
    k: Array,
    v: Array,
    slot: Array,
    pos: Array,
    table: Array,
    positions: Array,
    *,
    scale: float,
    value: int,
) -> Array:
    """Sparse attention: attention(q, k, v, ...) over `positions` (T, k) alone, up to the first -1: (T, H *
    value). k and v are one cache (blocks, 1, block, D); the first `value` elements of a row are its value.
    """
    out, rows, block = np.zeros((*q.shape[:2], value), np.float32), _rows(k), k.shape[2]
    for t in range(len(q)):
        at = positions[t, : np.argmin(positions[t] >= 0) if positions[t].min() < 0 else None]
        past = rows[table[slot[t], at // block], 0, at % block].astype(np.float32)
        score = q[t] @ past.T * np.float32(scale)
        p = np.exp(score - score.max(-1, keepdims=True))
        out[t] = (p / p.sum(-1, keepdims=True)) @ past[:, :value]
    return out.reshape(len(q), -1)
