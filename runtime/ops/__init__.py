"""The op set. Each function's body is the definition of its op: the oracle of the tests, the constant folder,
and the numba backend's implementation.

A call on nodes adds a node; `OPS[name].define` runs the definition on numpy arrays. Quantized values are
block arrays of quant/formats/<format>.py. In shapes, T is the tokens of the step, R the output rows, S the
slots, and B the most blocks of a slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from satchel.quant import FORMATS
from satchel.runtime.graph import LEAVES, Arg, Array, Dim, Node, Roots, Type, toposort
from satchel.runtime.ops import split
from satchel.runtime.ops.collective import (
    Ranks,
    all_gather,
    first,
    gather_columns,
    get_rows_part,
    of_tokens,
    pad,
    reduce_add,
    reduce_scatter,
)
from satchel.runtime.ops.context import attention_parts, kv_write_part, merge_parts
from satchel.runtime.ops.latent import (
    absorbed_attention,
    expanded_attention,
    index_positions,
    sparse_attention,
)
from satchel.runtime.ops.op import OPS, op
from satchel.runtime.ops.op import rows_of as _rows
from satchel.runtime.ops.op import same as _same
from satchel.runtime.ops.paged import (
    attention,
    hadamard,
    kv_write,
    position_scale,
    rope,
    rope_kv_write,
    rope_table,
    soft_cap,
)
from satchel.runtime.ops.recurrent import (
    conv_write,
    gated_scan,
    ordered_after,
    scan_write,
    short_conv,
    sigmoid,
    softplus,
)
from satchel.runtime.ops.tokens import (
    gather,
    gather_rows,
    logprobs,
    sample,
    sample_masked,
    tokens_get,
    tokens_put,
)

# Re-exports, so that callers write `ops.gather_rows` or `ops.gated_scan` for ops of other modules.
__all__ = [
    "OPS",
    "absorbed_attention",
    "all_gather",
    "attention",
    "attention_parts",
    "conv_write",
    "evaluate",
    "expanded_attention",
    "first",
    "gated_scan",
    "gather",
    "gather_columns",
    "gather_rows",
    "get_rows_part",
    "hadamard",
    "index_positions",
    "kv_write",
    "kv_write_part",
    "logprobs",
    "merge_parts",
    "ordered_after",
    "pad",
    "position_scale",
    "reduce_add",
    "reduce_scatter",
    "rope",
    "rope_kv_write",
    "rope_table",
    "sample",
    "sample_masked",
    "scan_write",
    "short_conv",
    "sigmoid",
    "soft_cap",
    "softplus",
    "sparse_attention",
    "tokens_get",
    "tokens_put",
]


def _columns(x: Type, *weights: Type) -> Type:
    """Type of x (T, K) times any number of weights (N, K): (T, sum of N)."""
    for w in weights:
        if w.shape[-1] != x.shape[-1]:
            raise TypeError(f"linear: rows of {w.shape[-1]} weights with {x.shape[-1]} activations")
    return Type((x.shape[0], sum(w.shape[0] for w in weights if not isinstance(w.shape[0], Dim))))


# --- views: neither a step nor a copy


@op(
    lambda x, *, shape: Type((x.shape[0], *shape), x.format),
    view=True,
    row_wise=True,
    follows=True,
    split=split.reshaped,
)
def reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    """x (T, ...) with the dimensions after the first reshaped: (T, *shape)."""
    return x.reshape(-1, *shape)


@op(lambda x, *, start, size: Type((*x.shape[:-1], size), x.format), view=True, row_wise=True, follows=True)
def cols(x: Array, *, start: int, size: int) -> Array:
    """Columns start .. start + size - 1 of x (T, N): (T, size)."""
    return np.asarray(x[..., start : start + size])


# --- slices and concatenation of heads


@op(
    lambda x, *, start, size: Type((*x.shape[:-1], size)),
    row_wise=True,
    follows=True,
    exact=True,
    split=split.head_or_expert,
)
def take(x: Array, *, start: int, size: int) -> Array:
    """Elements start .. start + size - 1 of each head of x (T, H, D), copied: (T, H, size)."""
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


@op(_joined, row_wise=True, exact=True, split=split.joined)
def concat(a: Array, b: Array) -> Array:
    """a (T, H, A) and b (T, H, B) concatenated per head: (T, H, A + B). b (T, 1, B) is broadcast over the
    heads.
    """
    return np.concatenate((a, np.broadcast_to(b, (*a.shape[:2], b.shape[2]))), axis=-1)


# --- elementwise, with broadcast


def _broadcast(a: Type, b: Type) -> Type:
    """a, to whose shape b broadcasts."""
    lead = len(a.shape) - len(b.shape)
    if lead < 0 or any(n not in (1, size) for n, size in zip(b.shape, a.shape[lead:], strict=True)):
        raise TypeError(f"{b} does not broadcast to {a}")
    return a


@op(_broadcast, row_wise=True, split=split.summed)
def add(a: Array, b: Array) -> Array:
    """a + b; b broadcasts to a's shape as in numpy: their last dimensions meet, and each size of b is a's or
    1.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(a + b, np.float32)


@op(_broadcast, row_wise=True, follows=True, split=split.scaled)
def mul(a: Array, b: Array) -> Array:
    """a * b; b broadcasts to a's shape as in add."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(a * b, np.float32)


# --- products


@op(
    lambda w, ids: Type((ids.shape[0], w.shape[-1])),
    exact=True,
    weights=slice(1),
    indexes=(0, 0),
    split=split.embedding,
)
def get_rows(w: Array, ids: Array) -> Array:
    """Embedding lookup: rows ids (T) of w (V, D), dequantized: (T, D)."""
    return np.stack([_rows(w[i]) for i in ids])


@op(_columns, row_wise=True, product=True, weights=slice(1, None), split=split.product)
def linear(x: Array, *weights: Array) -> Array:
    """x @ w.T for each weight w (N, K), concatenated: (T, sum of N). x (T, K) is float32 or quantized."""
    a = _rows(x)
    return np.concatenate([a @ _rows(w).T for w in weights], axis=-1).astype(np.float32)


@op(
    lambda x, w, r: _columns(x, w),
    parts=lambda x, w, r: add(linear(x, w), r),
    row_wise=True,
    product=True,
    weights=slice(1, 2),
)
def linear_add(x: Array, w: Array, r: Array) -> Array:
    """x @ w.T + r. One pass over memory for the product and the residual add."""
    return (linear.define(x, w) + r).astype(np.float32)


@op(lambda x, *, format: Type(x.shape, format), row_wise=True, follows=True)
def quantize(x: Array, *, format: str) -> Array:
    """x (T, K) in the block format `format`, for products with weights whose format requires it."""
    encode = FORMATS[format].encode
    if encode is None:
        raise TypeError(f"{format} has no encoder")
    return encode(np.ascontiguousarray(x, np.float32), None)


# --- norms, activations


@op(_same, row_wise=True, split=split.by_head)
def rms_norm(x: Array, w: Array, *, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * w over the last dimension; x (T, D) with w (D), or (T, H, D) per head."""
    with np.errstate(over="ignore"):
        mean = np.mean(np.square(x, dtype=np.float32), axis=-1, keepdims=True, dtype=np.float32)
    return (x / np.sqrt(mean + np.float32(eps)) * w).astype(np.float32)


@op(_same, parts=lambda x, w, r, *, eps: add(rms_norm(x, w, eps=eps), r), row_wise=True)
def rms_norm_add(x: Array, w: Array, r: Array, *, eps: float) -> Array:
    """rms_norm(x, w) + r: a norm after a part of a layer, and the residual."""
    return add.define(rms_norm.define(x, w, eps=eps), r)


@op(_same, row_wise=True, split=split.by_head)
def layer_norm(x: Array, w: Array, *bias: Array, eps: float) -> Array:
    """(x - mean(x)) / sqrt(var(x) + eps) * w + bias over the last dimension. The bias is optional; x (T, D)
    with w (D), or (T, H, D) per head. Source: Ba et al., arXiv 1607.06450.
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
    """quantize(rms_norm(x, w)) in one pass over the row."""
    return quantize.define(rms_norm.define(x, w, eps=eps), format=format)


def _normed_together(of_ranks: Ranks, *, eps: float, **_: object) -> Array:
    return np.concatenate([rms_norm.define(x, w, eps=eps) for x, w in of_ranks])


@op(
    of_tokens,
    parts=lambda x, w, *, eps, ranks, rounds: all_gather(rms_norm(x, w, eps=eps), ranks=ranks, rounds=rounds),
    meets=_normed_together,
)
def norm_all_gather(x: Array, w: Array, *, eps: float, ranks: int, rounds: int) -> Array:
    """all_gather(rms_norm(x, w)) of a rank's own rows x: (T, N)."""
    return rms_norm.define(x, w, eps=eps)


@op(_same, row_wise=True, follows=True, split=split.along_zeros)
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
    """swiglu(x @ gate.T, x @ up.T) of x (T, K) and weights (N, K): (T, N). The two products are not written
    to memory.
    """
    return swiglu.define(linear.define(x, gate), linear.define(x, up))


@op(
    lambda x, *weights, eps: _columns(x, *weights[:-1]),
    parts=lambda x, *weights, eps: linear(rms_norm(x, weights[-1], eps=eps), *weights[:-1]),
    row_wise=True,
    product=True,
    weights=slice(1, -1),
)
def norm_linear(x: Array, *weights: Array, eps: float) -> Array:
    """linear(rms_norm(x, w), ...) of x (T, K): the weights (N, K) of the products, then w (K) of the norm. A
    kernel for few tokens normalizes x itself.
    """
    return linear.define(rms_norm.define(x, weights[-1], eps=eps), *weights[:-1])


def _normed_gated(x: Type, *weights: Type, eps: float) -> Type:
    return _gated(x, *weights[:-1])


def _normed_parts(x: Node, gate: Node, up: Node, w: Node, *, eps: float) -> Node:
    y = rms_norm(x, w, eps=eps)
    return swiglu(linear(y, gate), linear(y, up))


@op(_normed_gated, parts=_normed_parts, row_wise=True, product=True, weights=slice(1, 3))
def norm_linear_swiglu(x: Array, gate: Array, up: Array, w: Array, *, eps: float) -> Array:
    """linear_swiglu(rms_norm(x, w), gate, up), as norm_linear."""
    return linear_swiglu.define(rms_norm.define(x, w, eps=eps), gate, up)


def _normed_geglu(x: Type, *weights: Type, eps: float, style: int) -> Type:
    return _gated(x, *weights[:-1])


def _normed_geglu_parts(x: Node, gate: Node, up: Node, w: Node, *, eps: float, style: int) -> Node:
    y = rms_norm(x, w, eps=eps)
    return mul(gelu(linear(y, gate), style=style), linear(y, up))


@op(_normed_geglu, parts=_normed_geglu_parts, row_wise=True, product=True, weights=slice(1, 3))
def norm_linear_geglu(x: Array, gate: Array, up: Array, w: Array, *, eps: float, style: int) -> Array:
    """geglu(linear(rms_norm(x, w), gate), linear(rms_norm(x, w), up)), as norm_linear."""
    y = rms_norm.define(x, w, eps=eps)
    return geglu.define(linear.define(y, gate), linear.define(y, up), style=style)


def _with_h(products: Type, x: Type) -> Type:
    return Type((x.shape[0], *(a + b for a, b in zip(products.shape[1:], x.shape[1:], strict=True))))  # type: ignore[operator]


def _post_normed(x: Node, post: Node, r: Node, eps: float) -> Node:
    return add(rms_norm(x, post, eps=eps), r)


def _beside(products: Node, h: Node) -> Node:
    n, k = products.width, h.width
    both = concat(reshape(products, shape=(1, n)), reshape(h, shape=(1, k)))
    return reshape(both, shape=(n + k,))


@op(
    lambda x, *rest, eps: _with_h(_columns(x, *rest[:-3]), x),
    parts=lambda x, *rest, eps: _beside(
        linear(rms_norm(h := _post_normed(x, rest[-2], rest[-1], eps), rest[-3], eps=eps), *rest[:-3]), h
    ),
    row_wise=True,
    product=True,
    weights=slice(1, -3),
)
def post_norm_linear(x: Array, *rest: Array, eps: float) -> Array:
    """norm_linear(h, ...) and, in the last K columns, h = rms_norm_add(x, post, r), of x (T, K): a layer's
    post-norm with its residual, and the norm and the products of what follows.

    rest: the weights (N, K) of the products, w (K) of their norm, post (K) of the post-norm, r (T, K).
    """
    h = rms_norm_add.define(x, *rest[-2:], eps=eps)
    return np.concatenate([norm_linear.define(h, *rest[:-2], eps=eps), h], axis=-1)


@op(
    lambda x, gate, up, *_, eps: _with_h(_gated(x, gate, up), x),
    parts=lambda x, gate, up, w, post, r, *, eps: _beside(
        _normed_parts(h := _post_normed(x, post, r, eps), gate, up, w, eps=eps), h
    ),
    row_wise=True,
    product=True,
    weights=slice(1, 3),
)
def post_norm_linear_swiglu(
    x: Array, gate: Array, up: Array, w: Array, post: Array, r: Array, *, eps: float
) -> Array:
    """norm_linear_swiglu(h, gate, up, w) and h, as post_norm_linear."""
    h = rms_norm_add.define(x, post, r, eps=eps)
    return np.concatenate([norm_linear_swiglu.define(h, gate, up, w, eps=eps), h], axis=-1)


@op(
    lambda x, gate, up, *_, **__: _with_h(_gated(x, gate, up), x),
    parts=lambda x, gate, up, w, post, r, *, eps, style: _beside(
        _normed_geglu_parts(h := _post_normed(x, post, r, eps), gate, up, w, eps=eps, style=style), h
    ),
    row_wise=True,
    product=True,
    weights=slice(1, 3),
)
def post_norm_linear_geglu(
    x: Array, gate: Array, up: Array, w: Array, post: Array, r: Array, *, eps: float, style: int
) -> Array:
    """norm_linear_geglu(h, gate, up, w) and h, as post_norm_linear."""
    h = rms_norm_add.define(x, post, r, eps=eps)
    return np.concatenate([norm_linear_geglu.define(h, gate, up, w, eps=eps, style=style), h], axis=-1)


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


@op(_same, row_wise=True, follows=True, split=split.along_zeros)
def gelu(x: Array, *, style: int) -> Array:
    """x * Phi(x), elementwise, with Phi the normal distribution function; style 0: the tanh approximation,
    style 1: erf. Source: Hendrycks & Gimpel, arXiv 1606.08415.
    """
    a = x.astype(np.float64)
    if style == 0:
        with np.errstate(over="ignore"):
            y = a / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
    else:
        y = 0.5 * a * (1 + np.vectorize(math.erf, otypes=[np.float64])(a / math.sqrt(2)))
    return np.asarray(y, np.float32)


@op(
    _same,
    parts=lambda gate, up, *, style: mul(gelu(gate, style=style), up),
    row_wise=True,
    follows=True,
)
def geglu(gate: Array, up: Array, *, style: int) -> Array:
    """gelu(gate) * up, elementwise (T, N)."""
    return mul.define(gelu.define(gate, style=style), up)


# --- mixture of experts; E: experts of a layer, k: experts per token


def _chosen(logits: Type, *_: Type, k: int, **__: Arg) -> Type:
    if not isinstance(logits.shape[-1], int) or not 0 < k <= logits.shape[-1]:
        raise TypeError(f"top_experts: k = {k} does not fit the router logits {logits}")
    return Type((logits.shape[0], k), "i32")


@op(_chosen, row_wise=True, discrete=True)
def top_experts(
    logits: Array, *bias: Array, k: int, groups: int = 1, kept: int = 1, sigmoid: int = 0
) -> Array:
    """Ids of the k experts with the highest scores: logits (T, E) to (T, k), best first. Ties go to the lower
    id; NaN ranks last.

    sigmoid: the score is the logit with 0, sigmoid(logit) with 1.
    bias: (E), optional, added to the scores for selection only.
    groups, kept: the E experts form `groups` equal groups, and only the `kept` best groups are eligible. A
    group's score is its best expert's, or with sigmoid 1 the sum of its two best. Source: DeepSeek-V3, arXiv
    2412.19437.
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


RIVAL = 0.02  # SparseMixer's threshold: twice its jitter of 0.01


@op(lambda logits, ids, **_: Type(ids.shape), row_wise=True, indexes=(0, 1))
def expert_weights(logits: Array, ids: Array, *, norm: int, sigmoid: int = 0, scale: float = 1.0) -> Array:
    """Routing weights (T, k) of the experts ids (T, k) from logits (T, E): softmax(logits) at ids, times
    scale.

    sigmoid 1: sigmoid(logits) instead of the softmax.
    norm 1: the weights of a token are divided by their sum.
    norm 2: SparseMixer, see _among_rivals.

    A NaN in a row of logits makes all softmax weights of that row NaN.
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
    """SparseMixer weights (T, k): the softmax of each id's logit over the experts whose logits lie within the
    relative threshold RIVAL of it, without the ids before it. Source: SparseMixer, arXiv 2409.12136, as in
    Phi-3.5-MoE.
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
        raise TypeError(f"expert product: {x} and ids {ids} differ in experts per token")
    for w in weights:
        if len(w.shape) != 3 or w.shape[-1] != x.shape[-1] or w.shape[:2] != weights[0].shape[:2]:
            raise TypeError(f"expert product: weights {w} meet activations {x}")
    return Type((*ids.shape, weights[0].shape[1]))


@op(
    _expert_rows,
    row_wise=True,
    product=True,
    experts=True,
    weights=slice(1, 2),
    indexes=(1, 0),
    split=split.product,
)
def expert_linear(x: Array, w: Array, ids: Array) -> Array:
    """x @ w[e].T for each expert e in ids (T, k), with weights w (E, N, K): (T, k, N).

    x is (T, K), one row for all experts of a token, or (T, k, K), one row per expert; float32 or quantized. A
    negative id belongs to another device: its row is 0.
    """
    a = _rows(x)
    rows = a if a.ndim == 3 else np.broadcast_to(a[:, None], (*ids.shape, a.shape[-1]))
    out = np.zeros((*ids.shape, w.shape[1]), np.float32)
    for e in np.unique(ids[ids >= 0]):
        out[ids == e] = rows[ids == e] @ _rows(w[e]).T
    return out


def _expert_swiglu_parts(x: Node, gate: Node, up: Node, ids: Node) -> Node:
    return swiglu(expert_linear(x, gate, ids), expert_linear(x, up, ids))


@op(
    _expert_rows,
    parts=_expert_swiglu_parts,
    row_wise=True,
    product=True,
    experts=True,
    weights=slice(1, 3),
    indexes=(1, 0),
)
def expert_swiglu(x: Array, gate: Array, up: Array, ids: Array) -> Array:
    """swiglu(expert_linear(x, gate, ids), expert_linear(x, up, ids)): (T, k, N)."""
    return swiglu.define(expert_linear.define(x, gate, ids), expert_linear.define(x, up, ids))


@op(_same, row_wise=True, experts=True, indexes=(1, 0), split=split.expert_biased)
def expert_add(y: Array, bias: Array, ids: Array) -> Array:
    """y (T, k, N) + bias[ids], with bias (E, N) and ids (T, k). Rows with a negative id are unchanged."""
    return np.where(ids[..., None] < 0, y, y + bias[np.maximum(ids, 0)]).astype(np.float32)


@op(_same, row_wise=True, follows=True, split=split.along_zeros)
def swiglu_limited(gate: Array, up: Array, *, limit: float, alpha: float) -> Array:
    """g * sigmoid(alpha * g) * (u + 1) with g = min(gate, limit) and u = clip(up, -limit, limit). Source:
    gpt-oss.
    """
    g, u = np.minimum(gate, np.float32(limit)), np.clip(up, -np.float32(limit), np.float32(limit))
    with np.errstate(over="ignore"):
        return np.asarray(g / (1 + np.exp(-np.float32(alpha) * g)) * (u + 1), np.float32)


def _gate_limited_parts(
    gate: Node, gate_bias: Node, up: Node, up_bias: Node, ids: Node, *, limit: float, alpha: float
) -> Node:
    biased = expert_add(gate, gate_bias, ids), expert_add(up, up_bias, ids)
    return swiglu_limited(*biased, limit=limit, alpha=alpha)


@op(_same, parts=_gate_limited_parts, row_wise=True, experts=True, indexes=(1, 0))
def expert_gate_limited(
    gate: Array, gate_bias: Array, up: Array, up_bias: Array, ids: Array, *, limit: float, alpha: float
) -> Array:
    """swiglu_limited of gate and up (T, k, N), each after expert_add with its bias (E, N) and ids (T, k)."""
    biased = expert_add.define(gate, gate_bias, ids), expert_add.define(up, up_bias, ids)
    return swiglu_limited.define(*biased, limit=limit, alpha=alpha)


def _by_head(x: Type, w: Type) -> Type:
    if len(x.shape) != 3 or len(w.shape) != 3 or (x.shape[1], x.shape[2]) != (w.shape[0], w.shape[2]):
        raise TypeError(f"head_linear: weights {w} meet activations {x}")
    return Type((x.shape[0], w.shape[0], w.shape[1]))


@op(_by_head, row_wise=True, product=True, weights=slice(1, 2), split=split.head_product)
def head_linear(x: Array, w: Array) -> Array:
    """x[:, h] @ w[h].T for each head h, with x (T, H, K) and w (H, N, K): (T, H, N)."""
    return np.stack([a @ _rows(m).T for a, m in zip(np.swapaxes(_rows(x), 0, 1), w, strict=True)], 1).astype(
        np.float32
    )


@op(
    lambda y, weights: Type((y.shape[0], y.shape[2])), row_wise=True, follows=True, split=split.experts_summed
)
def expert_sum(y: Array, weights: Array) -> Array:
    """Sum over k of y (T, k, N) * weights (T, k): (T, N)."""
    out: Array = np.einsum("tkn,tk->tn", y, weights)
    return out.astype(np.float32)


# --- a mixture's experts in a step of few tokens, from the router's logits on


def _routed(logits: Type, stack: Type, k: int) -> None:
    if logits.shape[-1] != stack.shape[0] or not 0 < k <= stack.shape[0]:  # type: ignore[operator]
        raise TypeError(f"experts: k = {k} and the logits {logits} do not fit the weights {stack}")


def _gate_of(x: Type, gate: Type, up: Type, w: Type, logits: Type, *bias: Type, k: int, **_: Arg) -> Type:
    _routed(logits, gate, k)
    return _expert_rows(x, gate, up, Type((x.shape[0], k), "i32"))


@op(
    _gate_of,
    parts=lambda x, gate, up, w, logits, *bias, eps, k, sigmoid: _expert_swiglu_parts(
        rms_norm(x, w, eps=eps), gate, up, top_experts(logits, *bias, k=k, sigmoid=sigmoid)
    ),
    row_wise=True,
    product=True,
    experts=True,
    per_token=(0, 1),
    weights=slice(1, 3),
)
def norm_expert_swiglu(
    x: Array,
    gate: Array,
    up: Array,
    w: Array,
    logits: Array,
    *bias: Array,
    eps: float,
    k: int,
    sigmoid: int = 0,
) -> Array:
    """expert_swiglu(rms_norm(x, w), gate, up, top_experts(logits, bias)): (T, k, N), best expert first."""
    ids = top_experts.define(logits, *bias, k=k, sigmoid=sigmoid)
    return expert_swiglu.define(rms_norm.define(x, w, eps=eps), gate, up, ids)


def _sum_of(y: Type, stack: Type, logits: Type, r: Type, *bias: Type, k: int, **_: Arg) -> Type:
    _routed(logits, stack, k)
    rows = _expert_rows(y, stack, Type((y.shape[0], k), "i32"))
    return Type((rows.shape[0], rows.shape[2]))


def _sum_parts(
    y: Node,
    w: Node,
    logits: Node,
    r: Node,
    *bias: Node,
    k: int,
    sigmoid: int,
    norm: int,
    scale: float,
) -> Node:
    ids = top_experts(logits, *bias, k=k, sigmoid=sigmoid)
    share = expert_weights(logits, ids, norm=norm, sigmoid=sigmoid, scale=scale)
    return add(expert_sum(expert_linear(y, w, ids), share), r)


@op(
    _sum_of,
    parts=_sum_parts,
    row_wise=True,
    product=True,
    experts=True,
    per_token=(1, 1),
    weights=slice(1, 2),
)
def expert_linear_sum(
    y: Array,
    w: Array,
    logits: Array,
    r: Array,
    *bias: Array,
    k: int,
    sigmoid: int = 0,
    norm: int,
    scale: float = 1.0,
) -> Array:
    """expert_sum(expert_linear(y, w, ids), expert_weights(logits, ids)) + r: (T, N), of y (T, k, K), with
    ids = top_experts(logits, bias).
    """
    ids = top_experts.define(logits, *bias, k=k, sigmoid=sigmoid)
    share = expert_weights.define(logits, ids, norm=norm, sigmoid=sigmoid, scale=scale)
    return add.define(expert_sum.define(expert_linear.define(y, w, ids), share), r)


@op(
    lambda y, logits, ids, r, **_: Type((y.shape[0], y.shape[2])),
    parts=lambda y, logits, ids, r, **a: add(expert_sum(y, expert_weights(logits, ids, **a)), r),
    row_wise=True,
    indexes=(1, 1),
)
def expert_sum_add(
    y: Array, logits: Array, ids: Array, r: Array, *, norm: int, sigmoid: int = 0, scale: float = 1.0
) -> Array:
    """expert_sum(y, expert_weights(logits, ids)) + r: (T, N), of y (T, k, N)."""
    share = expert_weights.define(logits, ids, norm=norm, sigmoid=sigmoid, scale=scale)
    return add.define(expert_sum.define(y, share), r)


# --- RoPE, cache and attention of a layer in one step


def _prepared(heads: tuple[Array, ...], rest: tuple[Array, ...], eps: float) -> tuple[Array, ...]:
    """Queries, keys and values (T, H, D) plus their three biases (H * D), or queries and keys after their two
    norms (D).
    """
    if len(rest) == 3:
        return tuple((x.reshape(len(x), -1) + b).reshape(x.shape) for x, b in zip(heads, rest, strict=True))
    return (*(rms_norm.define(x, w, eps=eps) for x, w in zip(heads, rest, strict=False)), *heads[len(rest) :])


def _prepared_nodes(heads: tuple[Node, ...], rest: tuple[Node, ...], eps: float) -> tuple[Node, ...]:
    """_prepared() as nodes."""
    if len(rest) == 3:
        return tuple(_biased(x, b) for x, b in zip(heads, rest, strict=True))
    return (*(rms_norm(x, w, eps=eps) for x, w in zip(heads, rest, strict=False)), *heads[len(rest) :])


def _biased(x: Node, bias: Node) -> Node:
    heads, size = (d for d in x.shape[1:] if isinstance(d, int))
    return reshape(add(reshape(x, shape=(heads * size,)), bias), shape=(heads, size))


def _qkv_written(
    q: Array,
    k: Array,
    v: Array,
    slot: Array,
    pos: Array,
    table: Array,
    cos_sin: Array,
    *heads: Array,
    **a: Any,
) -> tuple[Array, ...]:
    """The caches after the step."""
    _, keys, values = _prepared((q, *heads[:2]), heads[2:], a["eps"])
    written = rope_kv_write.define(k, keys, cos_sin, slot, pos, table, style=a["style"])
    return written, kv_write.define(v, values, slot, pos, table)


def _qkv_parts(
    q: Node, k: Node, v: Node, slot: Node, pos: Node, table: Node, cos_sin: Node, *heads: Node, **a: Any
) -> tuple[Node, Node, Node]:
    """Rotated queries and the caches after the step, as nodes."""
    q, keys, values = _prepared_nodes((q, *heads[:2]), heads[2:], a["eps"])
    q, keys = (rope(x, cos_sin, style=a["style"]) for x in (q, keys))
    return q, kv_write(k, keys, slot, pos, table), kv_write(v, values, slot, pos, table)


@op(
    lambda q, *_, **__: q,
    parts=lambda *src, **a: ordered_after(*_qkv_parts(*src, **a)),
    cache=slice(1, 3),
    update=_qkv_written,
)
def rope_qkv_write(
    q: Array,
    k: Array,
    v: Array,
    slot: Array,
    pos: Array,
    table: Array,
    cos_sin: Array,
    keys: Array,
    values: Array,
    *rest: Array,
    style: int,
    biases: int = 0,
    norms: int = 0,
    eps: float = 0.0,
) -> Array:
    """rope(q, cos_sin) of q (T, H, D), beside the writes of keys, after RoPE, and values (T, KV, D) to the
    caches k and v.

    biases 1: rest is three biases (H * D), added to q, keys and values first.
    norms 1: rest is the weights (D) of the rms_norm of each head of q and of keys.
    """
    return rope.define(_prepared((q, keys, values), rest, eps)[0], cos_sin, style=style)


def _own_inputs(biases: int, norms: int) -> int:
    """Inputs of rope_qkv_attention that are rope_qkv_write's; sinks follow them."""
    return 9 + 3 * biases + 2 * norms


def _attention_parts(*src: Node, scale: float, window: int, cap: float, chunk: int, **a: Any) -> Node:
    own = _own_inputs(a["biases"], a["norms"])
    seen = {"scale": scale, "window": window, "cap": cap, "chunk": chunk}
    return attention(*_qkv_parts(*src[:own], **a), *src[3:6], *src[own:], **seen)


def _caches_written(
    *src: Array, style: int, biases: int, norms: int, eps: float, **_: Any
) -> tuple[Array, ...]:
    return _qkv_written(*src[: _own_inputs(biases, norms)], style=style, eps=eps)


@op(
    lambda q, k, v, *_, **__: Type((q.shape[0], q.shape[1] * v.shape[3])),
    parts=_attention_parts,
    cache=slice(1, 3),
    update=_caches_written,
    attends=True,
)
def rope_qkv_attention(
    q: Array,
    k: Array,
    v: Array,
    slot: Array,
    pos: Array,
    table: Array,
    cos_sin: Array,
    *heads: Array,
    scale: float,
    window: int = 0,
    cap: float = 0.0,
    chunk: int = 0,
    style: int,
    biases: int = 0,
    norms: int = 0,
    eps: float = 0.0,
) -> Array:
    """attention() of the queries that rope_qkv_write gives, over the caches that it has written: (T, H * D).
    heads: its keys, values and rest, then attention sinks (H), optional.
    """
    own = _own_inputs(biases, norms) - 7
    heads, sinks = heads[:own], heads[own:]
    caches = _qkv_written(q, k, v, slot, pos, table, cos_sin, *heads, style=style, eps=eps)
    rotated = rope.define(_prepared((q, *heads[:2]), heads[2:], eps)[0], cos_sin, style=style)
    full = {**attention.defaults, "scale": scale, "window": window, "cap": cap, "chunk": chunk}
    return attention.define(rotated, *caches, slot, pos, table, *sinks, **full)


def _latent_written(
    q: Array,
    kv: Array,
    cache: Array,
    slot: Array,
    pos: Array,
    table: Array,
    cos_sin: Array,
    w: Array,
    k_b: Array,
    *,
    eps: float,
    style: int,
) -> tuple[Array]:
    """The cache after the step."""
    rank = len(w)
    shared = rope.define(kv[:, None, rank:], cos_sin, style=style)
    row = np.concatenate([rms_norm.define(kv[:, :rank], w, eps=eps)[:, None], shared], axis=-1)
    return (kv_write.define(cache, row, slot, pos, table),)


def _latent_parts(
    q: Node,
    kv: Node,
    cache: Node,
    slot: Node,
    pos: Node,
    table: Node,
    cos_sin: Node,
    w: Node,
    k_b: Node,
    *,
    eps: float,
    style: int,
) -> Node:
    rank, nope, n_rot = w.width, k_b.width, cos_sin.width
    turned = rope(take(q, start=nope, size=n_rot), cos_sin, style=style)
    asked = concat(head_linear(take(q, start=0, size=nope), k_b), turned)
    latent = rms_norm(cols(kv, start=0, size=rank), w, eps=eps)
    shared = rope(reshape(cols(kv, start=rank, size=n_rot), shape=(1, n_rot)), cos_sin, style=style)
    row = concat(reshape(latent, shape=(1, rank)), shared)
    return ordered_after(asked, kv_write(cache, row, slot, pos, table))


@op(
    lambda q, kv, *_, **__: Type((*q.shape[:2], kv.shape[1])),
    parts=_latent_parts,
    cache=slice(2, 3),
    update=_latent_written,
    weights=slice(8, 9),
)
def rope_latent_write(
    q: Array,
    kv: Array,
    cache: Array,
    slot: Array,
    pos: Array,
    table: Array,
    cos_sin: Array,
    w: Array,
    k_b: Array,
    *,
    eps: float,
    style: int,
) -> Array:
    """Queries of absorbed MLA (T, H, rank + n_rot), beside the write of the cache's rows: of each head of q
    (T, H, nope + n_rot) the first part times the head's matrix of k_b (H, rank, nope), the second after RoPE.

    A row of the cache is rms_norm(kv[:, :rank], w), then the shared key kv[:, rank:] after RoPE, of kv
    (T, rank + n_rot).
    """
    nope = q.shape[2] - cos_sin.shape[1]
    turned = rope.define(q[..., nope:], cos_sin, style=style)
    return np.concatenate([head_linear.define(q[..., :nope], k_b), turned], axis=-1)


def _scan_parts(*src: Node, block: int, delta: int, tiled: int) -> Node:
    _, k, v, g, _, state, *place = src
    made = gated_scan(*src, block=block, delta=delta, tiled=tiled)
    written = scan_write(state, k, made, g, *place, block=block, tiled=tiled)
    return ordered_after(take(made, start=0, size=v.width), written)


def _state_written(*src: Array, **how: int) -> tuple[Array, ...]:
    _, k, _, g, _, state, *place = src
    made = gated_scan.define(*src, **how)
    return (scan_write.define(state, k, made, g, *place, block=how["block"], tiled=how["tiled"]),)


def _scan_outputs(*src: Type, **how: Any) -> Type:
    gated_scan.rule(*src, **how)
    return src[2]


@op(_scan_outputs, parts=_scan_parts, cache=slice(5, 6), update=_state_written)
def gated_scan_write(
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
    """The outputs (T, H, P) of gated_scan, beside scan_write of the state."""
    how = {"block": block, "delta": delta, "tiled": tiled}
    return gated_scan.define(q, k, v, g, beta, state, slot, pos, table, **how)[..., : v.shape[2]]


def evaluate(roots: Roots, values: dict[str, Array]) -> list[Array]:
    """Runs the definitions. `values` maps names of inputs, weights and states to arrays in their formats."""
    known: dict[Node, Array] = {}
    for node in toposort(roots):
        if node.op == "const":
            known[node] = node.arg("value").array
        elif node.op in LEAVES:
            known[node] = values[node.name]
        else:
            known.update(run(node, known))
    return [known[root] for root in roots]


def run(node: Node, known: Mapping[Node, Array]) -> dict[Node, Array]:
    """Runs the definition of a node on the values of its sources: its value, and the new values of the
    sources that it writes beside it.
    """
    made_by, src, args = OPS[node.op], [known[s] for s in node.src], dict(node.args)
    found = {node: made_by.define(*src, **args)}
    if made_by.update:
        found.update(zip(node.src[made_by.cache], made_by.update(*src, **args), strict=True))
    return found
