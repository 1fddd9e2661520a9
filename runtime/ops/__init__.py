"""The whole op set. Each function's body is the definition of its op: oracle of the tests, constant folder,
slow backend.

A call on nodes adds a node; `OPS[name].define` runs the definition on numpy arrays. Quantized values are
block arrays as quant/<format>.py has them. T: tokens of the step, R: output rows, S: slots, B: blocks a
slot may have.
"""

from __future__ import annotations

import math

import numpy as np

from satchel.quant import FORMATS
from satchel.quant.cache import encode_cache
from satchel.runtime.graph import LEAVES, Arg, Array, Dim, Node, Roots, Type, toposort
from satchel.runtime.ops.experts import expert_slots
from satchel.runtime.ops.latent import (
    absorbed_attention,
    expanded_attention,
    index_positions,
    sparse_attention,
)
from satchel.runtime.ops.op import OPS, op
from satchel.runtime.ops.op import format_of as _format_of
from satchel.runtime.ops.op import rows_of as _rows
from satchel.runtime.ops.op import same as _same
from satchel.runtime.ops.recurrent import (
    conv_write,
    gated_scan,
    ordered_after,
    scan_write,
    short_conv,
    sigmoid,
    softplus,
)
from satchel.runtime.ops.tokens import gather_rows, logprobs, sample, sample_masked, tokens_get, tokens_put

# What other modules define, to be found here: `ops.gather_rows`, `ops.gated_scan`.
__all__ = [
    "OPS",
    "absorbed_attention",
    "conv_write",
    "evaluate",
    "expanded_attention",
    "expert_slots",
    "gated_scan",
    "gather_rows",
    "index_positions",
    "logprobs",
    "ordered_after",
    "sample",
    "sample_masked",
    "scan_write",
    "short_conv",
    "sigmoid",
    "softplus",
    "sparse_attention",
    "tokens_get",
    "tokens_put",
]


def _columns(x: Type, *weights: Type) -> Type:
    """Product of (T, K) activations with (N, K) weights: (T, sum of N)."""
    for w in weights:
        if w.shape[-1] != x.shape[-1]:
            raise TypeError(f"linear: rows of {w.shape[-1]} weights meet {x.shape[-1]} activations")
    return Type((x.shape[0], sum(w.shape[0] for w in weights if not isinstance(w.shape[0], Dim))))


# --- views: no step, no copy


@op(lambda x, *, shape: Type((x.shape[0], *shape), x.format), view=True, row_wise=True, follows=True)
def reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    """Everything but the first dimension in a new shape."""
    return x.reshape(-1, *shape)


@op(lambda x, *, start, size: Type((*x.shape[:-1], size), x.format), view=True, row_wise=True, follows=True)
def cols(x: Array, *, start: int, size: int) -> Array:
    """Columns of a (T, N) matrix: (T, size)."""
    return np.asarray(x[..., start : start + size])


# --- heads taken apart and put together


@op(lambda x, *, start, size: Type((*x.shape[:-1], size)), row_wise=True, follows=True, exact=True)
def take(x: Array, *, start: int, size: int) -> Array:
    """Numbers start .. start + size - 1 of each head of x (T, H, D), copied: (T, H, size)."""
    return np.ascontiguousarray(x[..., start : start + size])


def _joined(a: Type, b: Type) -> Type:
    if (
        a.shape[0] != b.shape[0]
        or len(a.shape) != 3
        or len(b.shape) != 3
        or b.shape[1] not in (1, a.shape[1])
    ):
        raise TypeError(f"concat: {a} and {b}")
    return Type((*a.shape[:2], a.shape[2] + b.shape[2]))  # type: ignore[operator]


@op(_joined, row_wise=True, exact=True)
def concat(a: Array, b: Array) -> Array:
    """Heads of a (T, H, A) and b (T, H, B), or one b (T, 1, B) for all, side by side: (T, H, A + B)."""
    return np.concatenate((a, np.broadcast_to(b, (*a.shape[:2], b.shape[2]))), axis=-1)


# --- products


@op(lambda w, ids: Type((ids.shape[0], w.shape[-1])), exact=True, weights=slice(1), indexes=(0, 0))
def get_rows(w: Array, ids: Array) -> Array:
    """Rows of a (V, D) weight by number (T): (T, D)."""
    return np.stack([_rows(w[i]) for i in ids])


@op(_columns, row_wise=True, product=True, weights=slice(1, None))
def linear(x: Array, *weights: Array) -> Array:
    """(T, K) with any number of (N, K) weights, side by side: (T, sum of N). x is float32 or quantized."""
    a = _rows(x)
    return np.concatenate([a @ _rows(w).T for w in weights], axis=-1).astype(np.float32)


@op(
    lambda x, w, r: _columns(x, w),
    parts=lambda x, w, r: OPS["add"](linear(x, w), r),
    row_wise=True,
    product=True,
    weights=slice(1, 2),
)
def linear_add(x: Array, w: Array, r: Array) -> Array:
    """x @ w.T + r: the residual stream meets the product without another pass over memory."""
    return (linear.define(x, w) + r).astype(np.float32)


@op(lambda x, *, format: Type(x.shape, format), row_wise=True, follows=True)
def quantize(x: Array, *, format: str) -> Array:
    """Activations (T, K) in a block format, for products with weights whose format asks for it."""
    encode = FORMATS[format].encode
    if encode is None:
        raise TypeError(f"{format} has no encoder")
    return encode(np.ascontiguousarray(x, np.float32), None)


# --- norms, activations, sums


@op(_same, row_wise=True)
def rms_norm(x: Array, w: Array, *, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * w over the last dimension; x (T, D) with w (D), or (T, H, D) per head."""
    mean = np.mean(np.square(x, dtype=np.float32), axis=-1, keepdims=True, dtype=np.float32)
    return (x / np.sqrt(mean + np.float32(eps)) * w).astype(np.float32)


@op(_same, row_wise=True)
def layer_norm(x: Array, w: Array, *bias: Array, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * w, plus a bias where one is given, over the last dimension; x
    (T, D) with w (D), or (T, H, D) per head. Source: Ba et al., arXiv 1607.06450.
    """
    centered = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
    spread = np.mean(np.square(centered, dtype=np.float32), axis=-1, keepdims=True, dtype=np.float32)
    y = centered / np.sqrt(spread + np.float32(eps)) * w
    return (y + bias[0] if bias else y).astype(np.float32)


@op(
    lambda x, w, *, eps, format: Type(x.shape, format),
    parts=lambda x, w, *, eps, format: quantize(rms_norm(x, w, eps=eps), format=format),
    row_wise=True,
)
def norm_quantize(x: Array, w: Array, *, eps: float, format: str) -> Array:
    """quantize(rms_norm(x, w)): one pass over the row."""
    return quantize.define(rms_norm.define(x, w, eps=eps), format=format)


@op(_same, row_wise=True, follows=True)
def swiglu(gate: Array, up: Array) -> Array:
    """gate * sigmoid(gate) * up, elementwise (T, N)."""
    with np.errstate(over="ignore"):
        out: Array = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
    return out


@op(
    lambda g, u, *, format: Type(g.shape, format),
    parts=lambda g, u, *, format: quantize(swiglu(g, u), format=format),
    row_wise=True,
    follows=True,
)
def swiglu_quantize(gate: Array, up: Array, *, format: str) -> Array:
    """quantize(swiglu(gate, up))."""
    return quantize.define(swiglu.define(gate, up), format=format)


def _gated(x: Type, *weights: Type) -> Type:
    if len(weights) != 2 or weights[0].shape != weights[1].shape:
        raise TypeError(f"linear_swiglu takes a gate and an up of one shape, got {weights}")
    return _columns(x, weights[0])


@op(
    _gated,
    parts=lambda x, g, u: swiglu(linear(x, g), linear(x, u)),
    row_wise=True,
    product=True,
    weights=slice(1, 3),
)
def linear_swiglu(x: Array, gate: Array, up: Array) -> Array:
    """swiglu(x @ gate.T, x @ up.T) of x (T, K) and weights (N, K): (T, N). The two products never meet
    memory.
    """
    return swiglu.define(linear.define(x, gate), linear.define(x, up))


@op(
    lambda *src, format: Type(_gated(*src).shape, format),
    parts=lambda x, g, u, *, format: quantize(swiglu(linear(x, g), linear(x, u)), format=format),
    row_wise=True,
    product=True,
    weights=slice(1, 3),
)
def linear_swiglu_quantize(x: Array, gate: Array, up: Array, *, format: str) -> Array:
    """quantize(linear_swiglu(x, gate, up))."""
    return quantize.define(linear_swiglu.define(x, gate, up), format=format)


@op(_same, row_wise=True, follows=True)
def gelu(x: Array, *, style: int) -> Array:
    """x * P(normal < x), elementwise; style 0 by its approximation with tanh, style 1 exactly. Source:
    Hendrycks & Gimpel, arXiv 1606.08415.
    """
    a = x.astype(np.float64)
    if style == 0:
        with np.errstate(over="ignore"):
            y = a / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
    else:
        y = 0.5 * a * (1 + np.vectorize(math.erf, otypes=[np.float64])(a / math.sqrt(2)))
    return np.asarray(y, np.float32)


@op(_same, row_wise=True, follows=True)
def soft_cap(x: Array, *, cap: float) -> Array:
    """cap * tanh(x / cap), elementwise: numbers stay below cap, small ones as they are. Source: Gemma 2,
    arXiv 2408.00118.
    """
    with np.errstate(over="ignore"):
        return (np.float32(cap) * np.tanh(x / np.float32(cap))).astype(np.float32)


@op(_same, row_wise=True)
def add(a: Array, b: Array) -> Array:
    """a + b; b has a's shape, or one row that is added to every row."""
    return (a + b).astype(np.float32)


@op(_same, row_wise=True, follows=True)
def mul(a: Array, b: Array) -> Array:
    """a * b; b has a's shape, or one row that every row is multiplied by."""
    return (a * b).astype(np.float32)


# --- experts: feed-forward parts of which each token uses a few; E: experts, k: those that a token uses


def _chosen(logits: Type, *_: Type, k: int, **__: Arg) -> Type:
    if not isinstance(logits.shape[-1], int) or not 0 < k <= logits.shape[-1]:
        raise TypeError(f"top_experts: {k} of the experts of {logits}")
    return Type((logits.shape[0], k), "i32")


@op(_chosen, row_wise=True)
def top_experts(
    logits: Array, *bias: Array, k: int, groups: int = 1, kept: int = 1, sigmoid: int = 0
) -> Array:
    """Numbers of the k best of logits (T, E), best first: (T, k). Of equals the lower number comes first; NaN
    counts as the least.

    sigmoid 1: what is compared is the logistic function plus `bias` (E), if there is one. groups: the experts
    lie in so many groups, of which the `kept` best are looked at: a group counts as its best, with sigmoid 1
    as the sum of its two best. Source: DeepSeek-V3, arXiv 2412.19437.
    """
    with np.errstate(over="ignore"):
        score = np.float32(1) / (1 + np.exp(-logits, dtype=np.float32)) if sigmoid else logits
    score = score + bias[0] if bias else score
    key = np.where(np.isnan(score), -np.inf, score).astype(np.float32)
    if groups > 1:
        parts = np.sort(key.reshape(len(key), groups, -1), axis=-1)
        worth = parts[..., -2:].sum(-1) if sigmoid else parts[..., -1]
        best = np.argsort(-worth, axis=-1, kind="stable")[:, :kept]
        open = np.zeros(worth.shape, bool)
        np.put_along_axis(open, best, True, axis=-1)
        key = np.where(np.repeat(open, parts.shape[-1], axis=-1), key, -np.inf)
    return np.argsort(-key, axis=-1, kind="stable")[:, :k].astype(np.int32)


RIVAL = 0.02  # SparseMixer's jitter, twice


@op(lambda logits, ids, **_: Type(ids.shape), row_wise=True, indexes=(0, 1))
def expert_weights(logits: Array, ids: Array, *, norm: int, sigmoid: int = 0, scale: float = 1.0) -> Array:
    """Softmax of logits (T, E), or with sigmoid 1 their logistic function, at ids (T, k): (T, k); with norm 1
    divided by their sum; with norm 2 each expert's softmax among its rivals; times scale. A NaN anywhere in
    a row of a softmax makes the row's weights NaN.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if norm == 2:
            return (_among_rivals(logits, ids) * np.float32(scale)).astype(np.float32)
        if sigmoid:
            p = np.take_along_axis(1 / (1 + np.exp(-logits, dtype=np.float32)), ids, -1)
        else:
            p = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float32)
            p = np.take_along_axis(p / p.sum(-1, keepdims=True), ids, -1)
        p = p / (p.sum(-1, keepdims=True) + np.float32(1e-20)) if norm else p
        return (p * np.float32(scale)).astype(np.float32)


def _among_rivals(logits: Array, ids: Array) -> Array:
    """Softmax of each id's logit among those that are no more than RIVAL of their size below it, less the ids
    before it: (T, k). Source: SparseMixer, arXiv 2409.12136, as Phi-3.5-MoE has it.
    """
    left, found = logits.astype(np.float32), np.empty(ids.shape, np.float32)
    for j in range(ids.shape[1]):
        best = np.take_along_axis(logits, ids[:, j : j + 1], -1)
        far = (best - logits) / np.maximum(np.abs(logits), best) > np.float32(RIVAL)
        found[:, j] = 1 / np.exp(np.where(far, -np.inf, left) - best, dtype=np.float32).sum(-1)
        np.put_along_axis(left, ids[:, j : j + 1], -np.inf, -1)
    return found


def _expert_rows(x: Type, *weights_and_ids: Type) -> Type:
    *weights, ids = weights_and_ids
    if len(x.shape) == 3 and x.shape[1] != ids.shape[1]:
        raise TypeError(f"expert product: {x} and ids {ids} differ in experts a token")
    for w in weights:
        if len(w.shape) != 3 or w.shape[-1] != x.shape[-1] or w.shape[:2] != weights[0].shape[:2]:
            raise TypeError(f"expert product: weights {w} meet activations {x}")
    return Type((*ids.shape, weights[0].shape[1]))


@op(_expert_rows, row_wise=True, product=True, experts=True, weights=slice(1, 2), indexes=(1, 0))
def expert_linear(x: Array, w: Array, ids: Array) -> Array:
    """Products of each token's row with the weights (E, N, K) of its experts ids (T, k): (T, k, N).

    x: (T, K), one row for all of a token's experts, or (T, k, K), one for each; float32 or quantized. An id
    below 0 is another device's: its row is 0.
    """
    a = _rows(x)
    rows = a if a.ndim == 3 else np.broadcast_to(a[:, None], (*ids.shape, a.shape[-1]))
    out = np.zeros((*ids.shape, w.shape[1]), np.float32)
    for e in np.unique(ids[ids >= 0]):
        out[ids == e] = rows[ids == e] @ _rows(w[e]).T
    return out


@op(
    _expert_rows,
    parts=lambda x, g, u, ids: OPS["swiglu"](expert_linear(x, g, ids), expert_linear(x, u, ids)),
    row_wise=True,
    product=True,
    experts=True,
    weights=slice(1, 3),
    indexes=(1, 0),
)
def expert_swiglu(x: Array, gate: Array, up: Array, ids: Array) -> Array:
    """swiglu of two expert_linear of one x: (T, k, N)."""
    return swiglu.define(expert_linear.define(x, gate, ids), expert_linear.define(x, up, ids))


@op(_same, row_wise=True, experts=True, indexes=(1, 0))
def expert_add(y: Array, bias: Array, ids: Array) -> Array:
    """y (T, k, N) plus the rows of bias (E, N) of its experts ids (T, k); as it is where an id is below 0."""
    return np.where(ids[..., None] < 0, y, y + bias[np.maximum(ids, 0)]).astype(np.float32)


@op(_same, row_wise=True, follows=True)
def swiglu_limited(gate: Array, up: Array, *, limit: float, alpha: float) -> Array:
    """gate * sigmoid(alpha * gate) * (up + 1) of a gate up to `limit` and an up within it. Source:
    gpt-oss.
    """
    g, u = np.minimum(gate, np.float32(limit)), np.clip(up, -np.float32(limit), np.float32(limit))
    with np.errstate(over="ignore"):
        return np.asarray(g / (1 + np.exp(-np.float32(alpha) * g)) * (u + 1), np.float32)


def _by_head(x: Type, w: Type) -> Type:
    if len(x.shape) != 3 or len(w.shape) != 3 or (x.shape[1], x.shape[2]) != (w.shape[0], w.shape[2]):
        raise TypeError(f"head_linear: weights {w} meet activations {x}")
    return Type((x.shape[0], w.shape[0], w.shape[1]))


@op(_by_head, row_wise=True, product=True, weights=slice(1, 2))
def head_linear(x: Array, w: Array) -> Array:
    """Products of each head of x (T, H, K) with its own weights (H, N, K): (T, H, N)."""
    return np.stack([a @ _rows(m).T for a, m in zip(np.swapaxes(_rows(x), 0, 1), w, strict=True)], 1).astype(
        np.float32
    )


@op(lambda y, weights: Type((y.shape[0], y.shape[2])), row_wise=True, follows=True)
def expert_sum(y: Array, weights: Array) -> Array:
    """Sum over the experts of y (T, k, N) times weights (T, k): (T, N)."""
    out: Array = np.einsum("tkn,tk->tn", y, weights)
    return out.astype(np.float32)


# --- positions, cache, attention


@op(lambda pos, freq, *, scale: Type((pos.shape[0], 2 * freq.shape[0])), row_wise=True)
def rope_table(pos: Array, freq: Array, *, scale: float = 1.0) -> Array:
    """The cos/sin table of RoPE: cosines, then sines, of pos (T) * freq (N), times scale: (T, 2 N)."""
    angle = pos[:, None].astype(np.float32) * freq[None, :].astype(np.float32)
    return np.float32(scale) * np.concatenate((np.cos(angle), np.sin(angle)), axis=-1)


@op(lambda pos, **_: Type((pos.shape[0], 1)), row_wise=True)
def position_scale(pos: Array, *, step: int, slope: float) -> Array:
    """1 + slope * ln(1 + floor((pos + 1) / step)) of pos (T): (T, 1). Llama 4's temperature tuning multiplies
    queries with it, from position step - 1 on.
    """
    part = np.floor((pos[:, None].astype(np.float32) + 1) / np.float32(step))
    return np.asarray(1 + np.float32(slope) * np.log1p(part), np.float32)


@op(_same, row_wise=True, follows=True)
def rope(x: Array, cos_sin: Array, *, style: int) -> Array:
    """RoPE: rotates the first n_rot numbers of each head of x (T, H, D) by cos_sin (T, n_rot), a rope_table.

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


@op(_same, row_wise=True, follows=True)
def hadamard(x: Array) -> Array:
    """Hadamard rotation: each head of x (T, H, D) times the Walsh-Hadamard matrix over sqrt(n), by blocks of
    n numbers, the largest power of two that divides D. Its own inverse.

    It spreads an outlier over the block, so 4-bit codes keep the other numbers; the dot product of two
    rotated heads is that of the heads. Source: Ashkboos et al., QuaRot, arXiv 2404.00456.
    """
    n = x.shape[-1] & -x.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    rotated = x.reshape(*x.shape[:-1], -1, n).astype(np.float64) @ (matrix / np.sqrt(n))
    return np.asarray(rotated.reshape(x.shape), np.float32)


@op(_same, alias=True, exact=True, cache=slice(1))
def kv_write(cache: Array, x: Array, slot: Array, pos: Array, table: Array) -> Array:
    """Puts x (T, H, D) at its positions into the paged cache (blocks, H, block, D) through the block table
    (S, B), coded as quant/cache.py has it.
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


@op(
    lambda q, k, v, *_, value=0, **__: Type((q.shape[0], q.shape[1] * (value or v.shape[3]))),
    cache=slice(1, 3),
    attends=True,
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

    Query t sees positions 0..pos[t] of its slot, of which only the last `window` where window > 0, and
    with
    chunk > 0 those of its own stretch of so many positions; blocks before those are not looked at. H is a
    multiple of KV; k and v may differ in D and in format. cap > 0: a soft cap on the scaled scores. value: k
    and v are one cache, of whose heads the first so many numbers are values (multi-head latent attention,
    arXiv 2405.04434). causal 0: a query sees all that the step and those before it computed for its slot,
    within window / 2 on either side. rest: sinks (H), a logit of each head that takes its share of the
    softmax and adds nothing (arXiv 2309.17453), or none; then, with alibi 1, slopes (H), by which the scaled
    and capped score of a key falls with each position that lies between it and the query (ALiBi, arXiv
    2108.12409).
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
    """First position that query t of an attention sees, and the one after the last."""
    at = int(pos[t])
    if not causal:
        end = int(pos[slot == slot[t]].max()) + 1
        return (max(0, at - window // 2), min(end, at + window // 2 + 1)) if window else (0, end)
    start = max(0, at + 1 - window) if window else 0
    return max(start, at // chunk * chunk) if chunk else start, at + 1


def evaluate(roots: Roots, values: dict[str, Array]) -> list[Array]:
    """Runs the definitions. `values` gives inputs, weights and states by name, in their own formats."""
    known: dict[Node, Array] = {}
    for node in toposort(roots):
        if node.op == "const":
            known[node] = node.arg("value").array
        elif node.op in LEAVES:
            known[node] = values[node.name]
        else:
            known[node] = OPS[node.op].define(*(known[s] for s in node.src), **dict(node.args))
    return [known[root] for root in roots]
