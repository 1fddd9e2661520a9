"""Ops of context parallelism: a paged cache whose blocks are dealt among ranks; see the package.

Block b of the pool is block b // ranks of the cache of rank b % ranks. All ranks have the same block tables.
Each attends to the positions whose blocks it has, which gives a softmax state: of each head, the largest
score, the sum of the weights exp(score - largest), and the sum of values times these weights. States of
disjoint positions merge exactly (Milakov & Gimelshein, arXiv 1805.02867; Flash-Decoding).
"""

from __future__ import annotations

import numpy as np

from satchel.quant import FORMATS
from satchel.quant.cache import encode_cache
from satchel.runtime.graph import Array, Type
from satchel.runtime.ops.op import format_of as _format_of
from satchel.runtime.ops.op import op
from satchel.runtime.ops.op import rows_of as _rows
from satchel.runtime.ops.op import same as _same
from satchel.runtime.ops.paged import soft_cap


@op(_same, alias=True, exact=True, cache=slice(1))
def kv_write_part(
    cache: Array, x: Array, slot: Array, pos: Array, table: Array, *, ranks: int, rank: int
) -> Array:
    """kv_write of the tokens whose blocks this rank has, into its cache; the other tokens are left out."""
    out, block = cache.copy(), cache.shape[2]
    rows = encode_cache(x, FORMATS[_format_of(cache)])
    for t in range(len(x)):
        number = table[slot[t], pos[t] // block]
        if number % ranks == rank:
            out[number // ranks, :, pos[t] % block] = rows[t]
    return out


def _parts(q: Type, k: Type, v: Type, *_: Type, value: int, **__: object) -> Type:
    heads, width = q.shape[1], value or v.shape[3]
    if not isinstance(heads, int) or not isinstance(width, int):
        raise TypeError(f"attention_parts: {q} and {v} have no fixed sizes")
    return Type((q.shape[0], heads * (width + 2)))


@op(_parts, cache=slice(1, 3), attends=True)
def attention_parts(
    q: Array,
    k: Array,
    v: Array,
    slot: Array,
    pos: Array,
    table: Array,
    *slopes: Array,
    scale: float,
    cap: float = 0.0,
    value: int = 0,
    alibi: int = 0,
    ranks: int,
    rank: int,
) -> Array:
    """Softmax states of causal attention(q, k, v, ...) to the positions whose blocks this rank has.

    (T, H * (V + 2)): the H heads' sums of weighted values (V), then their largest scores (H), then their sums
    of weights (H). A head that sees no position here has zeros, and the largest score -inf. A weight is 1
    where the score equals the largest one, infinities included. scale, cap, value and alibi are attention's.
    """
    k, v = _rows(k), _rows(v)[..., : value or None]
    heads, width, block = q.shape[1], v.shape[3], k.shape[2]
    sums = np.zeros((len(q), heads, width), np.float32)
    most = np.full((len(q), heads), -np.inf, np.float32)
    total = np.zeros((len(q), heads), np.float32)
    for t in range(len(q)):
        numbers = table[slot[t], : int(pos[t]) // block + 1]
        mine = np.flatnonzero(numbers % ranks == rank)
        at = (mine[:, None] * block + np.arange(block)).ravel()
        seen = at <= pos[t]
        if not seen.any():
            continue
        keys, values = (
            np.swapaxes(c[numbers[mine] // ranks], 1, 2).reshape(-1, c.shape[1], c.shape[3])[seen]
            for c in (k, v)
        )
        away = (pos[t] - at[seen]).astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            for h in range(heads):
                head = h * k.shape[1] // heads
                score = keys[:, head].astype(np.float32) @ q[t, h] * np.float32(scale)
                score = soft_cap.define(score, cap=cap) if cap else score
                score = score - slopes[0][h] * away if alibi else score
                most[t, h] = np.fmax.reduce(score, initial=-np.inf)
                p = _weights(score, most[t, h])
                total[t, h] = p.sum()
                sums[t, h] = p @ values[:, head].astype(np.float32)
    return np.concatenate((sums.reshape(len(q), -1), most, total), axis=-1)


def _weights(score: Array, most: Array) -> Array:
    """exp(score - most), 1 where they are equal."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.where(score == most, 1, np.exp(score - most)), np.float32)


def _merged(parts: Type, stats: Type, *sinks: Type, heads: int, rank: int) -> Type:
    width, every = parts.shape[-1], stats.shape[-1]
    if not isinstance(width, int) or not isinstance(every, int) or every % (2 * heads):
        raise TypeError(f"merge_parts: {parts} and {stats} are not states of {heads} heads")
    if width % heads or width < 3 * heads or rank >= every // (2 * heads):
        raise TypeError(f"merge_parts: {parts} and {stats} are not states of {heads} heads")
    if len(sinks) > 1 or any(s.shape != (heads,) for s in sinks):
        raise TypeError(f"merge_parts: sinks {sinks}")
    return Type((parts.shape[0], width - 2 * heads))


@op(_merged, row_wise=True)
def merge_parts(parts: Array, stats: Array, *sinks: Array, heads: int, rank: int) -> Array:
    """This rank's summand of attention: (T, H * V), the sums of `parts` (T, H * (V + 2)) over the sum of the
    weights of all ranks. The sum of all ranks' results is the attention to all positions.

    stats: (T, ranks * 2 H), the last 2 H columns of each rank's parts, in the order of ranks. sinks (H),
    optional: attention sinks, as attention's. A head that no rank has seen a position of gets zeros.
    """
    width = parts.shape[1] // heads - 2
    sums = parts[:, : heads * width].reshape(len(parts), heads, width)
    each = stats.reshape(len(parts), -1, 2, heads)
    seen = each[:, :, 1] != 0
    most = np.fmax.reduce(np.where(seen, each[:, :, 0], -np.inf), axis=1)
    most = np.fmax(most, sinks[0]) if sinks else most
    weight = np.where(seen, _weights(each[:, :, 0], most[:, None]), 0).astype(np.float32)
    total = _weights(np.broadcast_to(sinks[0], most.shape), most) if sinks else np.zeros_like(most)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for r in range(each.shape[1]):
            total = (total + weight[:, r] * np.where(seen[:, r], each[:, r, 1], 0)).astype(np.float32)
        factor = np.where(total != 0, weight[:, rank] / total, 0).astype(np.float32)
        return np.asarray((sums * factor[..., None]).reshape(len(parts), -1), np.float32)
