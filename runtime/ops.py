"""The whole op set. Each function's body is the definition of its op: oracle of the tests, constant folder,
slow backend.

A call on nodes adds a node; `OPS[name].define` runs the definition on numpy arrays. Quantized values are
block arrays as quant/<format>.py has them. T: tokens of the step, R: output rows, S: slots, B: blocks a
slot may have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np

from satchel.quant import FORMATS
from satchel.quant.cache import encode_cache
from satchel.runtime.graph import LEAVES, Arg, Array, Dim, Node, Roots, Type, toposort


class Op:
    """One op: its shape rule, its definition, and how it stands to memory.

    view: the result is a window on the first source and costs no step. alias: the result is the first
    source, changed in place. parts: a fused op's decomposition, given the node's sources and arguments; a
    device that lacks the op gets it.
    """

    def __init__(
        self,
        rule: Callable[..., Type],
        define: Callable[..., Array],
        view: bool,
        alias: bool,
        parts: Callable[..., Node] | None,
    ) -> None:
        self.name, self.rule, self.define = define.__name__, rule, define
        self.view, self.alias, self.parts = view, alias, parts
        signature = inspect.signature(define).parameters.values()
        self.arguments = tuple(p.name for p in signature if p.kind is p.KEYWORD_ONLY)
        self.defaults = {p.name: p.default for p in signature if p.default is not p.empty}

    def __call__(self, *src: Node, **args: Arg) -> Node:
        unknown = set(args) - set(self.arguments)
        full = {**self.defaults, **args}
        if unknown or set(self.arguments) - set(full):
            raise TypeError(f"{self.name} takes {self.arguments}, got {tuple(args)}")
        return src[0].graph.node(self.name, src, self.rule(*(s.type for s in src), **full), **full)


OPS: dict[str, Op] = {}


def op(
    rule: Callable[..., Type],
    *,
    view: bool = False,
    alias: bool = False,
    parts: Callable[..., Node] | None = None,
) -> Callable[[Callable[..., Array]], Op]:
    """Registers the decorated numpy function as the definition of the op of its name."""

    def register(define: Callable[..., Array]) -> Op:
        OPS[define.__name__] = Op(rule, define, view, alias, parts)
        return OPS[define.__name__]

    return register


def _same(x: Type, *_: Type, **__: Arg) -> Type:
    return x


def _columns(x: Type, *weights: Type) -> Type:
    """Product of (T, K) activations with (N, K) weights: (T, sum of N)."""
    for w in weights:
        if w.shape[-1] != x.shape[-1]:
            raise TypeError(f"linear: rows of {w.shape[-1]} weights meet {x.shape[-1]} activations")
    return Type((x.shape[0], sum(w.shape[0] for w in weights if not isinstance(w.shape[0], Dim))))


# --- views: no step, no copy


@op(lambda x, *, shape: Type((x.shape[0], *shape), x.format), view=True)
def reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    """Everything but the first dimension in a new shape."""
    return x.reshape(-1, *shape)


@op(lambda x, *, start, size: Type((*x.shape[:-1], size), x.format), view=True)
def cols(x: Array, *, start: int, size: int) -> Array:
    """Columns of a (T, N) matrix: (T, size)."""
    return np.asarray(x[..., start : start + size])


# --- products


@op(lambda w, ids: Type((ids.shape[0], w.shape[-1])))
def get_rows(w: Array, ids: Array) -> Array:
    """Rows of a (V, D) weight by number (T): (T, D)."""
    return np.stack([_rows(w[i]) for i in ids])


@op(_columns)
def linear(x: Array, *weights: Array) -> Array:
    """(T, K) with any number of (N, K) weights, side by side: (T, sum of N). x is float32 or quantized."""
    a = _rows(x)
    return np.concatenate([a @ _rows(w).T for w in weights], axis=-1).astype(np.float32)


@op(lambda x, w, r: _columns(x, w), parts=lambda x, w, r: OPS["add"](linear(x, w), r))
def linear_add(x: Array, w: Array, r: Array) -> Array:
    """x @ w.T + r: the residual stream meets the product without another pass over memory."""
    return (linear.define(x, w) + r).astype(np.float32)


@op(lambda x, *, format: Type(x.shape, format))
def quantize(x: Array, *, format: str) -> Array:
    """Activations (T, K) in a block format, for products with weights whose format asks for it."""
    encode = FORMATS[format].encode
    if encode is None:
        raise TypeError(f"{format} has no encoder")
    return encode(np.ascontiguousarray(x, np.float32), None)


# --- norms, activations, sums


@op(_same)
def rms_norm(x: Array, w: Array, *, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * w over the last dimension; x (T, D) with w (D), or (T, H, D) per head."""
    mean = np.mean(np.square(x, dtype=np.float32), axis=-1, keepdims=True, dtype=np.float32)
    return (x / np.sqrt(mean + np.float32(eps)) * w).astype(np.float32)


@op(
    lambda x, w, *, eps, format: Type(x.shape, format),
    parts=lambda x, w, *, eps, format: quantize(rms_norm(x, w, eps=eps), format=format),
)
def norm_quantize(x: Array, w: Array, *, eps: float, format: str) -> Array:
    """quantize(rms_norm(x, w)): one pass over the row."""
    return quantize.define(rms_norm.define(x, w, eps=eps), format=format)


@op(_same)
def swiglu(gate: Array, up: Array) -> Array:
    """gate * sigmoid(gate) * up, elementwise (T, N)."""
    with np.errstate(over="ignore"):
        out: Array = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
    return out


@op(
    lambda g, u, *, format: Type(g.shape, format),
    parts=lambda g, u, *, format: quantize(swiglu(g, u), format=format),
)
def swiglu_quantize(gate: Array, up: Array, *, format: str) -> Array:
    """quantize(swiglu(gate, up))."""
    return quantize.define(swiglu.define(gate, up), format=format)


def _gated(x: Type, *weights: Type) -> Type:
    if len(weights) != 2 or weights[0].shape != weights[1].shape:
        raise TypeError(f"linear_swiglu takes a gate and an up of one shape, got {weights}")
    return _columns(x, weights[0])


@op(_gated, parts=lambda x, g, u: swiglu(linear(x, g), linear(x, u)))
def linear_swiglu(x: Array, gate: Array, up: Array) -> Array:
    """swiglu(x @ gate.T, x @ up.T) of x (T, K) and weights (N, K): (T, N). The two products never meet
    memory.
    """
    return swiglu.define(linear.define(x, gate), linear.define(x, up))


@op(
    lambda *src, format: Type(_gated(*src).shape, format),
    parts=lambda x, g, u, *, format: quantize(swiglu(linear(x, g), linear(x, u)), format=format),
)
def linear_swiglu_quantize(x: Array, gate: Array, up: Array, *, format: str) -> Array:
    """quantize(linear_swiglu(x, gate, up))."""
    return quantize.define(linear_swiglu.define(x, gate, up), format=format)


@op(_same)
def add(a: Array, b: Array) -> Array:
    """a + b; b has a's shape, or one row that is added to every row."""
    return (a + b).astype(np.float32)


@op(_same)
def mul(a: Array, b: Array) -> Array:
    """a * b; b has a's shape, or one row that every row is multiplied by."""
    return (a * b).astype(np.float32)


# --- experts: feed-forward parts of which each token uses a few; E: experts, k: those that a token uses


def _chosen(logits: Type, *, k: int) -> Type:
    if not isinstance(logits.shape[-1], int) or not 0 < k <= logits.shape[-1]:
        raise TypeError(f"top_experts: {k} of the experts of {logits}")
    return Type((logits.shape[0], k), "i32")


@op(_chosen)
def top_experts(logits: Array, *, k: int) -> Array:
    """Numbers of the k largest logits (T, E), largest first: (T, k). Of equals the lower number comes first;
    NaN counts as the least.
    """
    key = np.where(np.isnan(logits), -np.inf, logits)
    return np.argsort(-key, axis=-1, kind="stable")[:, :k].astype(np.int32)


@op(lambda logits, ids, *, norm: Type(ids.shape))
def expert_weights(logits: Array, ids: Array, *, norm: int) -> Array:
    """Softmax of logits (T, E) at ids (T, k): (T, k), with norm 1 divided by their sum. A NaN anywhere in a
    row makes the row's weights NaN.
    """
    with np.errstate(invalid="ignore"):
        p = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float32)
        p = np.take_along_axis(p / p.sum(-1, keepdims=True), ids, -1)
        return (p / p.sum(-1, keepdims=True) if norm else p).astype(np.float32)


def _expert_rows(x: Type, *weights_and_ids: Type) -> Type:
    *weights, ids = weights_and_ids
    if len(x.shape) == 3 and x.shape[1] != ids.shape[1]:
        raise TypeError(f"expert product: {x} and ids {ids} differ in experts a token")
    for w in weights:
        if len(w.shape) != 3 or w.shape[-1] != x.shape[-1] or w.shape[:2] != weights[0].shape[:2]:
            raise TypeError(f"expert product: weights {w} meet activations {x}")
    return Type((*ids.shape, weights[0].shape[1]))


@op(_expert_rows)
def expert_linear(x: Array, w: Array, ids: Array) -> Array:
    """Products of each token's row with the weights (E, N, K) of its experts ids (T, k): (T, k, N).

    x: (T, K), one row for all of a token's experts, or (T, k, K), one for each; float32 or quantized.
    """
    a = _rows(x)
    rows = a if a.ndim == 3 else np.broadcast_to(a[:, None], (*ids.shape, a.shape[-1]))
    out = np.zeros((*ids.shape, w.shape[1]), np.float32)
    for e in np.unique(ids):
        out[ids == e] = rows[ids == e] @ _rows(w[e]).T
    return out


@op(
    _expert_rows,
    parts=lambda x, g, u, ids: OPS["swiglu"](expert_linear(x, g, ids), expert_linear(x, u, ids)),
)
def expert_swiglu(x: Array, gate: Array, up: Array, ids: Array) -> Array:
    """swiglu of two expert_linear of one x: (T, k, N)."""
    return swiglu.define(expert_linear.define(x, gate, ids), expert_linear.define(x, up, ids))


@op(lambda y, weights: Type((y.shape[0], y.shape[2])))
def expert_sum(y: Array, weights: Array) -> Array:
    """Sum over the experts of y (T, k, N) times weights (T, k): (T, N)."""
    out: Array = np.einsum("tkn,tk->tn", y, weights)
    return out.astype(np.float32)


# --- positions, cache, attention


@op(lambda pos, freq, *, scale: Type((pos.shape[0], 2 * freq.shape[0])))
def rope_table(pos: Array, freq: Array, *, scale: float = 1.0) -> Array:
    """Cosines and then sines of pos (T) * freq (N), times scale: (T, 2 N). All layers turn by one table."""
    angle = pos[:, None].astype(np.float32) * freq[None, :].astype(np.float32)
    return np.float32(scale) * np.concatenate((np.cos(angle), np.sin(angle)), axis=-1)


@op(_same)
def rope(x: Array, turns: Array, *, style: int) -> Array:
    """Turns the first n_rot numbers of each head of x (T, H, D) by a rope_table (T, n_rot).

    style 0 turns neighbours (2i, 2i+1), style 1 halves (i, i + n_rot/2). Source: Su et al., RoFormer, arXiv
    2104.09864.
    """
    n_rot = turns.shape[-1]
    half = n_rot // 2
    c, s = turns[:, None, :half], turns[:, None, half:]
    first, second = (
        (slice(0, n_rot, 2), slice(1, n_rot, 2)) if style == 0 else (slice(0, half), slice(half, n_rot))
    )
    y = np.array(x, np.float32)
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., first] * s + x[..., second] * c
    return y


@op(_same)
def hadamard(x: Array) -> Array:
    """Turns each head of x (T, H, D) by the Walsh-Hadamard matrix over sqrt(n), stretch by stretch of the n
    numbers that are the largest power of two dividing D. Its own inverse.

    It spreads an outlier over the stretch, so that blocks of 4 bits keep the others; products of two turned
    heads are those of the heads. Source: Ashkboos et al., QuaRot, arXiv 2404.00456.
    """
    n = x.shape[-1] & -x.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    turned = x.reshape(*x.shape[:-1], -1, n).astype(np.float64) @ (matrix / np.sqrt(n))
    return np.asarray(turned.reshape(x.shape), np.float32)


@op(_same, alias=True)
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
    parts=lambda cache, x, turns, *place, style: kv_write(cache, rope(x, turns, style=style), *place),
)
def rope_kv_write(
    cache: Array, x: Array, turns: Array, slot: Array, pos: Array, table: Array, *, style: int
) -> Array:
    """kv_write of rope(x, turns): keys go turned into the cache."""
    return kv_write.define(cache, rope.define(x, turns, style=style), slot, pos, table)


@op(lambda q, *_, **__: Type((q.shape[0], q.shape[1] * q.shape[2])))
def attention(
    q: Array, k: Array, v: Array, slot: Array, pos: Array, table: Array, *, scale: float, window: int = 0
) -> Array:
    """Causal attention of q (T, H, D) over the paged caches k and v (blocks, KV, block, D): (T, H * D).

    Query t sees positions 0..pos[t] of its slot, of which only the last `window` where window > 0. H is a
    multiple of KV; k and v may differ in D and in format.
    """
    k, v = _rows(k), _rows(v)
    out = np.zeros(q.shape[:2] + v.shape[3:], np.float32)
    block, group = k.shape[2], q.shape[1] // k.shape[1]
    for t in range(len(q)):
        n = int(pos[t]) + 1
        blocks = table[slot[t], : -(-n // block)]
        keys, values = (np.swapaxes(c[blocks], 1, 2).reshape(-1, c.shape[1], c.shape[3])[:n] for c in (k, v))
        start = max(0, n - window) if window else 0
        for h in range(q.shape[1]):
            score = keys[start:, h // group].astype(np.float32) @ q[t, h] * np.float32(scale)
            p = np.exp(score - score.max())
            out[t, h] = (p / p.sum()) @ values[start:, h // group].astype(np.float32)
    return out.reshape(len(q), -1)


# --- rows, tokens, sampling


@op(lambda x, rows: Type((rows.shape[0], *x.shape[1:]), x.format))
def pick(x: Array, rows: Array) -> Array:
    """Rows of x (T, ...) by number (R): (R, ...)."""
    return np.asarray(x[rows])


@op(_same, alias=True)
def tokens_put(ring: Array, ids: Array, slot: Array, pos: Array, *, shift: int = 0) -> Array:
    """Notes the token ids in the slots' token table (S, W) at pos + shift; a negative id notes nothing."""
    out = ring.copy()
    known = ids >= 0
    out[slot[known], (pos[known] + shift) % ring.shape[1]] = ids[known]
    return out


@op(lambda ring, slot, pos: Type(pos.shape, "i32"))
def tokens_get(ring: Array, slot: Array, pos: Array) -> Array:
    """The tokens (T) that stand in the table at these positions: what the last step sampled needs no way
    through the host.
    """
    return np.asarray(ring[slot, pos % ring.shape[1]])


@op(lambda logits, *_: Type((logits.shape[0],), "i32"))
def sample(logits: Array, ring: Array, slot: Array, pos: Array, params: Array) -> Array:
    """One token id per row of logits (R, V), by the row's hal_sampling; see runtime/sampling.py for the
    definition.
    """
    from satchel.runtime.sampling import sample_row

    return np.array([sample_row(*row) for row in zip(logits, ring[slot], pos, params, strict=True)], np.int32)


def _rows(x: Array) -> Array:
    """Float32 values of a float or block array: the dtype tells the format."""
    return x if x.dtype == np.float32 else FORMATS[_format_of(x)].decode(x)


def _format_of(x: Array) -> str:
    return next(f.name for f in FORMATS.values() if f.dtype == x.dtype)


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
