"""Ops over positions and the paged KV cache: RoPE, writes to the cache, attention; see the package."""

from __future__ import annotations

import numpy as np

from satchel.quant import FORMATS
from satchel.quant.cache import encode_cache
from satchel.runtime.graph import Array, Type
from satchel.runtime.ops import split
from satchel.runtime.ops.op import format_of as _format_of
from satchel.runtime.ops.op import op
from satchel.runtime.ops.op import rows_of as _rows
from satchel.runtime.ops.op import same as _same


@op(lambda pos, freq, *, scale: Type((pos.shape[0], 2 * freq.shape[0])), row_wise=True)
def rope_table(pos: Array, freq: Array, *, scale: float = 1.0) -> Array:
    """cos/sin table of RoPE: scale * [cos(pos * freq), sin(pos * freq)] of pos (T) and freq (N): (T, 2 N)."""
    angle = pos[:, None].astype(np.float32) * freq[None, :].astype(np.float32)
    return np.float32(scale) * np.concatenate((np.cos(angle), np.sin(angle)), axis=-1)


@op(lambda pos, **_: Type((pos.shape[0], 1)), row_wise=True)
def position_scale(pos: Array, *, step: int, slope: float) -> Array:
    """1 + slope * ln(1 + floor((pos + 1) / step)) of pos (T): (T, 1). The factor on queries of Llama 4's
    temperature tuning; it exceeds 1 from position step - 1 on.
    """
    part = np.floor((pos[:, None].astype(np.float32) + 1) / np.float32(step))
    return np.asarray(1 + np.float32(slope) * np.log1p(part), np.float32)


@op(_same, row_wise=True, follows=True, split=split.by_head)
def rope(x: Array, cos_sin: Array, *, style: int) -> Array:
    """RoPE: rotates the first n_rot elements of each head of x (T, H, D) by cos_sin (T, n_rot), a rope_table.

    style 0 (interleaved, Llama) rotates pairs (2i, 2i+1), style 1 (halves, NeoX) pairs (i, i + n_rot/2).
    Source: Su et al., RoFormer, arXiv 2104.09864.
    """
    n_rot = cos_sin.shape[-1]
    half = n_rot // 2
    c, s = cos_sin[:, None, :half], cos_sin[:, None, half:]
    first, second = (
        (slice(0, n_rot, 2), slice(1, n_rot, 2)) if style == 0 else (slice(0, half), slice(half, n_rot))
    )
    y = np.array(x, np.float32)
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., first] * s + x[..., second] * c
    return y


@op(_same, row_wise=True, follows=True, split=split.by_head)
def hadamard(x: Array) -> Array:
    """Hadamard rotation: each head of x (T, H, D) times the Walsh-Hadamard matrix / sqrt(n), in blocks of n
    elements, n being the largest power of two that divides D. It is its own inverse.

    It spreads an outlier over the block, so 4-bit codes keep the other elements. The dot product of two
    rotated heads equals that of the heads. Source: Ashkboos et al., QuaRot, arXiv 2404.00456.
    """
    n = x.shape[-1] & -x.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    rotated = x.reshape(*x.shape[:-1], -1, n).astype(np.float64) @ (matrix / np.sqrt(n))
    return np.asarray(rotated.reshape(x.shape), np.float32)


@op(_same, alias=True, exact=True, cache=slice(1), split=split.written)
def kv_write(cache: Array, x: Array, slot: Array, pos: Array, table: Array) -> Array:
    """Writes x (T, H, D) at positions pos (T) into the paged cache (blocks, H, block, D) through the block
    table (S, B), encoded as in quant/cache.py.
    """
    out, block = cache.copy(), cache.shape[2]
    rows = encode_cache(x, FORMATS[_format_of(cache)])
    for t in range(len(x)):
        out[table[slot[t], pos[t] // block], :, pos[t] % block] = rows[t]
    return out


@op(
    _same,
    alias=True,
    parts=lambda cache, x, cos_sin, *place, style: kv_write(cache, rope(x, cos_sin, style=style), *place),
    cache=slice(1),
)
def rope_kv_write(
    cache: Array, x: Array, cos_sin: Array, slot: Array, pos: Array, table: Array, *, style: int
) -> Array:
    """kv_write of rope(x, cos_sin): the cache holds keys after RoPE."""
    return kv_write.define(cache, rope.define(x, cos_sin, style=style), slot, pos, table)


@op(_same, row_wise=True, follows=True, split=split.along)
def soft_cap(x: Array, *, cap: float) -> Array:
    """cap * tanh(x / cap), elementwise: keeps values within +-cap. Source: Gemma 2, arXiv 2408.00118."""
    with np.errstate(over="ignore"):
        return (np.float32(cap) * np.tanh(x / np.float32(cap))).astype(np.float32)


@op(
    lambda q, k, v, *_, value=0, **__: Type((q.shape[0], q.shape[1] * (value or v.shape[3]))),
    cache=slice(1, 3),
    attends=True,
    split=split.attended,
)
def attention(
    q: Array,
    k: Array,
    v: Array,
    slot: Array,
    pos: Array,
    table: Array,
    *rest: Array,
    scale: float,
    window: int = 0,
    cap: float = 0.0,
    value: int = 0,
    chunk: int = 0,
    causal: int = 1,
    alibi: int = 0,
) -> Array:
    """Attention of q (T, H, D) over the paged caches k and v (blocks, KV, block, D): (T, H * D).

    Query t attends to positions 0..pos[t] of its slot. H is a multiple of KV; k and v may differ in D and in
    format.

    window: > 0: sliding window; only the last `window` positions count.
    chunk: > 0: chunked attention; only the positions of the query's own chunk of this length count.
    cap: > 0: soft cap on the scaled scores.
    value: > 0: k and v are one cache, and the first `value` elements of a row are the value (MLA, arXiv
    2405.04434).
    causal: 0: a query attends to all positions of its slot up to the step's last one, within window / 2 on
    either side.
    rest: attention sinks (H), optional: a logit per head that joins the softmax with no value (arXiv
    2309.17453). Then, with alibi 1, slopes (H): a key's scaled and capped score is lowered by slope times its
    distance to the query (ALiBi, arXiv 2108.12409).

    Blocks of positions that a query does not attend to are not read.
    """
    k, v = _rows(k), _rows(v)[..., : value or None]
    sinks, slopes = rest[: len(rest) - alibi], rest[-1] if alibi else np.zeros(q.shape[1], np.float32)
    out = np.zeros(q.shape[:2] + v.shape[3:], np.float32)
    block, group = k.shape[2], q.shape[1] // k.shape[1]
    for t in range(len(q)):
        start, n = _seen(t, slot, pos, window, chunk, causal)
        blocks, skipped = table[slot[t], start // block : -(-n // block)], start // block * block
        keys, values = (np.swapaxes(c[blocks], 1, 2).reshape(-1, c.shape[1], c.shape[3]) for c in (k, v))
        keys, values = keys[start - skipped : n - skipped], values[start - skipped : n - skipped]
        for h in range(q.shape[1]):
            score = keys[:, h // group].astype(np.float32) @ q[t, h] * np.float32(scale)
            score = soft_cap.define(score, cap=cap) if cap else score
            score = score - slopes[h] * np.abs(np.arange(start, n) - pos[t]).astype(np.float32)
            most = max(score.max(), sinks[0][h]) if sinks else score.max()
            p = np.exp(score - most)
            total = p.sum() + (np.exp(sinks[0][h] - most) if sinks else 0)
            out[t, h] = (p / total) @ values[:, h // group].astype(np.float32)
    return out.reshape(len(q), -1)


def _seen(t: int, slot: Array, pos: Array, window: int, chunk: int, causal: int) -> tuple[int, int]:
    """Range of positions that query t attends to: the first, and the one after the last."""
    at = int(pos[t])
    if not causal:
        end = int(pos[slot == slot[t]].max()) + 1
        return (max(0, at - window // 2), min(end, at + window // 2 + 1)) if window else (0, end)
    start = max(0, at + 1 - window) if window else 0
    return max(start, at // chunk * chunk) if chunk else start, at + 1
