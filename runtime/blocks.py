"""Parts that architectures are composed of. A block that a second architecture needs stands here, with flags,
not copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from satchel.quant import FORMATS, ModelError
from satchel.runtime.arch import Arch
from satchel.runtime.graph import Array, Node, Type
from satchel.runtime.ops import OPS


def norm(a: Arch, x: Node, name: str) -> Node:
    return OPS["rms_norm"](x, a.weight(f"{name}.weight", a.width), eps=a.eps)


def linear(a: Arch, x: Node, name: str, rows: int) -> Node:
    """(T, rows) = x by the (rows, K) weight of this name, plus its bias where the file has one."""
    y = OPS["linear"](x, a.weight(f"{name}.weight", rows, x.width))
    bias = a.optional(f"{name}.bias", rows)
    return y if bias is None else OPS["add"](y, bias)


def attention(a: Arch, x: Node, i: int, *, window: int = 0) -> Node:
    """Grouped-query attention of layer i over the paged cache; Q and K are normed per head where the file has
    the weights. What goes into a cache of quantized blocks is turned by a Hadamard matrix, which spreads
    outliers; Q is turned alike and the result turned back.
    """
    q, k, v = (
        OPS["reshape"](linear(a, x, f"blk.{i}.attn_{name}", heads * dim), shape=(heads, dim))
        for name, heads, dim in (
            ("q", a.heads[i], a.head_dim),
            ("k", a.kv_heads[i], a.head_dim),
            ("v", a.kv_heads[i], a.value_dim),
        )
    )
    q, k = (rotate(a, head_norm(a, y, f"blk.{i}.attn_{n}_norm")) for y, n in ((q, "q"), (k, "k")))
    turned = FORMATS[a.cache.format].block > 1
    q, k, v = (OPS["hadamard"](y) if turned else y for y in (q, k, v))
    caches = []
    for part, y, dim in (("k", k, a.head_dim), ("v", v, a.value_dim)):
        c = a.cache
        state = a.state(f"{part}.{i}", Type((c.pool, a.kv_heads[i], c.block, dim), c.format))
        caches.append(OPS["kv_write"](state, y, a.slot, a.pos, a.table))
    a.written.extend(caches)
    scale = a.hp.real("attention.scale", 0.0) or 1 / math.sqrt(a.head_dim)
    y = OPS["attention"](q, *caches, a.slot, a.pos, a.table, scale=scale, window=window)
    if turned:
        heads = OPS["hadamard"](OPS["reshape"](y, shape=(a.heads[i], a.value_dim)))
        y = OPS["reshape"](heads, shape=(a.heads[i] * a.value_dim,))
    return linear(a, y, f"blk.{i}.attn_output", a.width)


def head_norm(a: Arch, x: Node, name: str) -> Node:
    """RMS norm of each head of x (T, H, D) where the file has its weight, else x."""
    w = a.optional(f"{name}.weight", x.width)
    return x if w is None else OPS["rms_norm"](x, w, eps=a.eps)


def swiglu(a: Arch, x: Node, i: int) -> Node:
    """down(silu(gate(x)) * up(x)) of layer i."""
    size = a.hp.each_layer("feed_forward_length", a.layers)[i]
    gate, up = (linear(a, x, f"blk.{i}.ffn_{n}", size) for n in ("gate", "up"))
    return linear(a, OPS["swiglu"](gate, up), f"blk.{i}.ffn_down", a.width)


def experts(a: Arch, x: Node, i: int) -> Node:
    """Mixture of experts of layer i: the router picks expert_used_count of expert_count SwiGLUs for each
    token; their sum is weighted by the softmax over the picked.
    """
    count = a.hp.uint("expert_count", high=1 << 12)
    used = a.hp.uint("expert_used_count", high=1 << 12)
    size = a.hp.uint("expert_feed_forward_length")
    if used > count:
        raise ModelError(
            f"{a.hp.arch}.expert_used_count: {used} of {count} experts (expert_count) cannot be used"
        )
    logits = linear(a, x, f"blk.{i}.ffn_gate_inp", count)
    ids = OPS["top_experts"](logits, k=used)

    def product(y: Node, name: str, rows: int) -> Node:
        return OPS["expert_linear"](y, a.weight(f"blk.{i}.ffn_{name}_exps.weight", count, rows, y.width), ids)

    gate, up = (product(x, name, size) for name in ("gate", "up"))
    y = product(OPS["swiglu"](gate, up), "down", a.width)
    return OPS["expert_sum"](y, OPS["expert_weights"](logits, ids, norm=1))


def rotate(a: Arch, x: Node) -> Node:
    """Rotary position embedding of x (T, H, D) by the file's frequencies."""
    n_rot = a.hp.uint("rope.dimension_count", a.head_dim)
    if n_rot % 2 or n_rot > a.head_dim:
        raise ModelError(
            f"{a.hp.arch}.rope.dimension_count: expected an even number up to {a.head_dim}, got {n_rot}"
        )
    freq, scale = rope_frequencies(a, n_rot)
    turns = OPS["rope_table"](a.pos, a.graph.const(freq, "f32", "rope_freq"), scale=scale)
    return OPS["rope"](x, turns, style=a.rope_style)


def rope_frequencies(a: Arch, n_rot: int) -> tuple[Array, float]:
    """Turns per position of each of the n_rot / 2 pairs, and the factor on cos and sin.

    Scaling kinds: none, linear (positions divided), yarn (Peng et al., arXiv 2309.00071), and llama3, whose
    factors the file holds as the tensor rope_freqs.weight.
    """
    base = a.hp.real("rope.freq_base", 10000.0, low=1e-6)
    freq = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    factors = a.optional("rope_freqs.weight", n_rot // 2)
    if factors is not None:
        freq = freq / a.weights.array("rope_freqs.weight").astype(np.float64)
    kind, factor = rope_scaling(a)
    if kind == "linear":
        freq = freq / factor
    elif kind == "yarn":
        return yarn(a, freq, base, factor, n_rot)
    return freq.astype(np.float32), 1.0


def rope_scaling(a: Arch) -> tuple[str, float]:
    """The file's scaling kind and factor; older files say `rope.scale_linear`."""
    linear = a.hp.real("rope.scale_linear", 1.0, low=1e-6)
    kind = a.hp.text("rope.scaling.type", "linear" if linear != 1.0 else "none")
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(f"{a.hp.arch}.rope.scaling.type: expected none, linear or yarn, got {kind!r}")
    return kind, a.hp.real("rope.scaling.factor", linear, low=1e-6)


def yarn(a: Arch, freq: Array, base: float, factor: float, n_rot: int) -> tuple[Array, float]:
    """YaRN: slow pairs are interpolated by `factor`, fast ones kept, with a linear ramp between the two
    betas.
    """
    trained = a.hp.uint("rope.scaling.original_context_length", a.context, high=1 << 30)
    fast, slow = a.hp.real("rope.scaling.yarn_beta_fast", 32.0), a.hp.real("rope.scaling.yarn_beta_slow", 1.0)

    def pair(turns: float) -> float:
        return n_rot * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair(fast))), min(n_rot - 1, math.ceil(pair(slow)))
    ramp = 1 - np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)
    mixed = freq / factor * (1 - ramp) + freq * ramp
    return mixed.astype(np.float32), a.hp.real("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * math.log(factor))


def pre_norm_layer(
    a: Arch, x: Node, i: int, *, window: int = 0, feed: Callable[[Arch, Node, int], Node] = swiglu
) -> Node:
    """The layer that most families share: attention and feed-forward, each behind a norm, each added to the
    residual stream.
    """
    x = OPS["add"](x, attention(a, norm(a, x, f"blk.{i}.attn_norm"), i, window=window))
    return OPS["add"](x, feed(a, norm(a, x, f"blk.{i}.ffn_norm"), i))
