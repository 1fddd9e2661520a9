"""Building blocks of architectures. A block that two architectures need stands here once, with flags."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from satchel.errors import ModelError
from satchel.runtime import ops
from satchel.runtime.graph import TOKENS, Array, Node, Type
from satchel.runtime.layers.arch import SEGMENT_IDS, Arch


def scaled(a: Arch, x: Node, factor: float) -> Node:
    """x (T, N) * factor."""
    if factor == 1.0:
        return x
    return ops.mul(x, a.graph.const(np.array([factor], np.float32), "f32", "factor"))


def windows(y: Node, *sizes: int) -> tuple[Node, ...]:
    """Views of the columns of y (T, sum of sizes), one per size, in order."""
    starts = itertools.accumulate(sizes, initial=0)
    return tuple(ops.cols(y, start=at, size=n) for at, n in zip(starts, sizes, strict=False))


TANH, ERF = 0, 1  # styles of gelu
ALIBI_BIAS = 8.0  # -log2 of the smallest slope
Part = Callable[[Arch, Node, int], Node]  # attention or feed-forward of a layer: (T, D) to (T, D)


def linear(a: Arch, x: Node, name: str, rows: int) -> Node:
    """x @ w.T + bias with the tensors `name`.weight (rows, K) and `name`.bias, which is optional:
    (T, rows).
    """
    y = ops.linear(x, a.weight(f"{name}.weight", rows, x.width))
    bias = a.optional(f"{name}.bias", rows)
    return a.added(x, y if bias is None else ops.add(y, bias), f"{name}.weight")


def projections(a: Arch, x: Node, i: int) -> tuple[Node, ...]:
    """Q, K and V of layer i, each (T, heads * dim): separate products, or columns of attn_qkv where the file
    has it.
    """
    sizes = (a.heads[i] * a.head_dim, a.kv_heads[i] * a.head_dim, a.kv_heads[i] * a.value_dim)
    if a.weights.type(f"blk.{i}.attn_qkv.weight") is not None:
        return windows(linear(a, x, f"blk.{i}.attn_qkv", sum(sizes)), *sizes)
    names = (f"blk.{i}.attn_{name}" for name in ("q", "k", "v"))
    return tuple(linear(a, x, name, size) for name, size in zip(names, sizes, strict=True))


def attention(a: Arch, x: Node, i: int, *, scale: float = 0.0, cap: float = 0.0) -> Node:
    """Grouped-query attention of layer i over the paged cache, with QK-norm if the file has its weights.
    scale, cap: see attend.
    """
    q, k, v = projections(a, x, i)
    q = rotate(a, head_norm(a, q, f"blk.{i}.attn_q_norm", a.heads[i]), i)
    k = rotate(a, head_norm(a, k, f"blk.{i}.attn_k_norm", a.kv_heads[i]), i)
    q, k = a.adjust(q, k, i)
    v = ops.reshape(v, shape=(a.kv_heads[i], a.value_dim))
    return attend(a, q, write_cache(a, k, v, i), i, scale=scale, cap=cap)


def write_cache(a: Arch, k: Node, v: Node, i: int) -> tuple[Node, ...]:
    """Writes keys and values (T, KV, D) of this step to the caches of layer i; gives the caches."""
    keys = cached(a, f"k.{i}", k, a.cache.keys, a.group(i))
    return keys, cached(a, f"v.{i}", v, a.cache.values, a.group(i))


def cached(a: Arch, name: str, heads: Node, format: str, window: int = 0) -> Node:
    """Writes heads (T, H, D) of this step to the paged cache of that name; gives the cache. window: the layer
    group's; 0: full attention.
    """
    shape = (a.cache.pool_of(window), heads.shape[1], a.cache.block, heads.width)
    cache = ops.kv_write(a.state(name, Type(shape, format)), heads, a.slot, a.pos, a.table(window))
    a.written.append(cache)
    return cache


def attend(
    a: Arch,
    q: Node,
    caches: tuple[Node, ...],
    i: int,
    *,
    scale: float = 0.0,
    cap: float = 0.0,
    gate: Node | None = None,
) -> Node:
    """Attention of queries (T, H, D) over the caches of layer i, then the output projection: (T, width).

    scale: factor on the scores; the file's attention.scale takes precedence; 0: 1 / sqrt(D).
    cap: soft cap on the scores.
    gate: multiplied with the attention's result before the output projection.
    """
    scale = a.hp.real("attention.scale", 0.0) or scale or 1 / math.sqrt(q.width)
    sinks = a.optional(f"blk.{i}.attn_sinks.weight", a.heads[i])
    rest = [] if sinks is None else [sinks]
    if factor := a.alibi(i):
        rest.append(a.graph.const(alibi_slopes(a.heads[i], factor), "f32", "slopes"))
    window = a.group(i)
    seen = {"window": window if a.causal else a.window(i), "chunk": a.chunk(i), "causal": int(a.causal)}
    seen["alibi"] = int(factor != 0)
    y = ops.attention(q, *caches, a.slot, a.pos, a.table(window), *rest, scale=scale, cap=cap, **seen)
    y = y if gate is None else ops.mul(y, gate)
    return linear(a, y, f"blk.{i}.attn_output", a.width)


def with_segments(a: Arch, x: Node) -> Node:
    """x (T, D) plus the token type embeddings, if the file has them: the only row, or the rows of the step's
    segment ids.
    """
    types = a.optional("token_types.weight", None, a.width)
    if types is None:
        return x
    if types.shape[0] == 1:
        first = np.asarray(a.weights.array("token_types.weight")[0], np.float32)
        return ops.add(x, a.graph.const(first, "f32", "token_type"))
    return ops.add(x, ops.get_rows(types, a.input(SEGMENT_IDS, Type((TOKENS,), "i32"))))


def usual_alibi(a: Arch) -> float:
    """1, the factor of the standard ALiBi slopes. Raises ModelError if the file states others."""
    found = a.hp.real("attention.max_alibi_bias", ALIBI_BIAS)
    if found != ALIBI_BIAS:
        raise ModelError(
            f"{a.hp.arch}.attention.max_alibi_bias: expected {ALIBI_BIAS}, got {found}; other slopes are not"
            " supported"
        )
    return 1.0


def alibi_slopes(heads: int, factor: float = 1.0) -> Array:
    """ALiBi slopes (heads), float32, times factor: a geometric sequence for the first power of two of heads;
    the other heads take slopes between them. Source: Press et al., arXiv 2108.12409.
    """
    whole = 1 << (heads.bit_length() - 1)
    powers = [*range(1, whole + 1), *(n + 0.5 for n in range(heads - whole))]
    return np.array([factor * 2 ** (-ALIBI_BIAS * p / whole) for p in powers], np.float32)


def head_norm(a: Arch, x: Node, name: str, heads: int) -> Node:
    """Norm of x (T, H * D) as heads (T, H, D), if the file has the weight. Its shape decides: (D) for every
    head, (H * D) over all heads of a token together, (H, D) with a weight per head.
    """
    dim, found = x.width // heads, a.weights.type(f"{name}.weight")
    y = ops.reshape(x, shape=(heads, dim))
    if found is None:
        return y
    if found.shape == (x.width,):
        return ops.reshape(a.norm(x, name), shape=(heads, dim))
    if len(found.shape) == 1:
        return a.norm(y, name)
    ones = a.graph.const(np.ones(dim, np.float32), "f32", "one")
    norm = ops.layer_norm if a.centered else ops.rms_norm
    return ops.mul(norm(y, ones, eps=a.eps), a.weight(f"{name}.weight", heads, dim))


def gate_and_up(a: Arch, x: Node, i: int) -> tuple[Node, ...]:
    """gate(x) and up(x) of a gated feed-forward. A file without ffn_gate has both in ffn_up, the
    gate first.
    """
    size = a.hp.each_layer("feed_forward_length", a.layers)[i]
    if a.weights.type(f"blk.{i}.ffn_gate.weight") is None and is_double(a, f"blk.{i}.ffn_up.weight", size):
        return windows(linear(a, x, f"blk.{i}.ffn_up", 2 * size), size, size)
    return tuple(linear(a, x, f"blk.{i}.ffn_{n}", size) for n in ("gate", "up"))


def is_double(a: Arch, name: str, size: int) -> bool:
    found = a.weights.type(name)
    return found is not None and found.shape[0] == 2 * size


def swiglu(a: Arch, x: Node, i: int) -> Node:
    """down(silu(gate(x)) * up(x)) of layer i."""
    return linear(a, ops.swiglu(*gate_and_up(a, x, i)), f"blk.{i}.ffn_down", a.width)


def geglu(a: Arch, x: Node, i: int, *, style: int = TANH) -> Node:
    """down(gelu(gate(x)) * up(x)) of layer i."""
    return linear(a, geglu_of(*gate_and_up(a, x, i), style=style), f"blk.{i}.ffn_down", a.width)


def geglu_of(gate: Node, up: Node, *, style: int = TANH) -> Node:
    """gelu(gate) * up."""
    return ops.mul(ops.gelu(gate, style=style), up)


def geglu_erf(a: Arch, x: Node, i: int) -> Node:
    return geglu(a, x, i, style=ERF)


def mlp(a: Arch, x: Node, i: int, *, style: int) -> Node:
    """down(gelu(up(x))) of layer i."""
    up = linear(a, x, f"blk.{i}.ffn_up", a.hp.each_layer("feed_forward_length", a.layers)[i])
    return linear(a, ops.gelu(up, style=style), f"blk.{i}.ffn_down", a.width)


def mlp_tanh(a: Arch, x: Node, i: int) -> Node:
    return mlp(a, x, i, style=TANH)


def mlp_erf(a: Arch, x: Node, i: int) -> Node:
    return mlp(a, x, i, style=ERF)


def rotate(a: Arch, x: Node, i: int) -> Node:
    """RoPE of x (T, H, D) in layer i, with the file's frequencies or the layer's own base."""
    if not a.rotates(i):
        return x
    n_rot = a.hp.uint("rope.dimension_count", a.head_dim)
    if n_rot % 2 or n_rot > a.head_dim:
        raise ModelError(
            f"{a.hp.arch}.rope.dimension_count: expected an even number up to {a.head_dim}, got {n_rot}"
        )
    freq, scale = rope_frequencies(a, n_rot, a.rope_base(i))
    cos_sin = ops.rope_table(a.pos, a.graph.const(freq, "f32", "rope_freq"), scale=scale)
    return ops.rope(x, cos_sin, style=a.rope_style)


def rope_frequencies(a: Arch, n_rot: int, own: float = 0.0) -> tuple[Array, float]:
    """Frequencies (n_rot / 2) in radians per position, and the factor on cos and sin. own: an unscaled base
    that replaces the file's.

    Scaling types:
    none: the base's frequencies.
    linear: positions divided by the factor.
    yarn: Peng et al., arXiv 2309.00071.
    llama3: the file holds the factors in the tensor rope_freqs.weight.
    longrope: Ding et al., arXiv 2402.13753; one set of factors up to the original context, one beyond.
    """
    base = own or a.hp.real("rope.freq_base", 10000.0, low=1e-6)
    freq = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    if own:
        return freq.astype(np.float32), 1.0
    freq = freq / rope_factors(a, n_rot // 2)
    kind, factor = rope_scaling(a)
    if kind == "yarn":
        return yarn(a, freq, base, factor, n_rot)
    freq = freq / factor if kind == "linear" else freq
    return freq.astype(np.float32), a.hp.real("rope.scaling.attn_factor", 1.0, low=1e-6)


def rope_factors(a: Arch, pairs: int) -> Array:
    """Divisors of the frequencies: the file's tensor (for longrope the one that fits the slots' context),
    else ones.
    """
    long, short = "rope_factors_long.weight", "rope_factors_short.weight"
    name = "rope_freqs.weight"
    if a.weights.type(long) is not None or a.weights.type(short) is not None:
        for part in (long, short):
            a.weight(part, pairs)
        trained = a.hp.uint("rope.scaling.original_context_length", a.context, high=1 << 30)
        name = long if a.cache.context > trained else short
    if a.optional(name, pairs) is None:
        return np.ones(pairs)
    found = a.weights.array(name).astype(np.float64)
    if not (np.isfinite(found) & (found > 0)).all():
        raise ModelError(f"{name}: expected factors above 0, got {found.min()}; the file is damaged")
    return found


def rope_scaling(a: Arch) -> tuple[str, float]:
    """Scaling type and factor of the file; older files have `rope.scale_linear`."""
    linear = a.hp.real("rope.scale_linear", 1.0, low=1e-6)
    kind = a.hp.text("rope.scaling.type", "linear" if linear != 1.0 else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise ModelError(
            f"{a.hp.arch}.rope.scaling.type: expected none, linear, yarn or longrope, got {kind!r}"
        )
    if kind in ("linear", "yarn") and linear == 1.0:
        return kind, a.hp.real("rope.scaling.factor", low=1e-6)
    return kind, a.hp.real("rope.scaling.factor", linear, low=1e-6)


def yarn(a: Arch, freq: Array, base: float, factor: float, n_rot: int) -> tuple[Array, float]:
    """YaRN: interpolates low frequencies by `factor`, keeps high ones, and ramps linearly between beta_slow
    and beta_fast.
    """
    trained = a.hp.uint("rope.scaling.original_context_length", a.context, high=1 << 30)
    fast, slow = (
        a.hp.real(f"rope.scaling.yarn_beta_{name}", usual, low=1e-6)
        for name, usual in (("fast", 32.0), ("slow", 1.0))
    )
    if fast < slow or base <= 1:
        raise ModelError(
            f"{a.hp.arch}.rope.scaling.yarn_beta_fast: expected at least yarn_beta_slow {slow}, and a"
            f" rope.freq_base above 1, got {fast} and {base}; the file is damaged"
        )

    def pair(rotations: float) -> float:
        return n_rot * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(fast), pair(slow)
    if a.whole_ramp:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0, low), min(n_rot - 1, high)
    said = a.hp.real("rope.scaling.yarn_ext_factor", 1.0, low=-1.0)
    kept = said if said >= 0 else 1.0  # share of the high frequencies that are not interpolated
    ramp = kept * (1 - np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1))
    mixed = freq / factor * (1 - ramp) + freq * ramp
    stretch = 0.1 * max(0.0, math.log(factor)) if kept else 0.0
    usual, undone = 1 + stretch, 1 + stretch * a.hp.real("rope.scaling.yarn_log_multiplier", 0.0)
    whole = a.hp.real("rope.scaling.yarn_attn_factor", 1.0)  # the checkpoint's attention_factor
    if not any(math.isclose(whole, known, rel_tol=1e-4) for known in (1.0, usual / undone)):
        raise ModelError(
            f"{a.hp.arch}.rope.scaling.yarn_attn_factor: expected {usual / undone:.6g}, which follows from"
            f" the factor {factor:g}, got {whole:g}; others are not supported: convert the checkpoint again"
        )
    stated = a.hp.real("rope.scaling.attn_factor", 1.0, low=1e-6)
    return mixed.astype(np.float32), stated * usual / undone


def pre_norm_layer(
    a: Arch,
    x: Node,
    i: int,
    *,
    feed: Part = swiglu,
    attend: Part = attention,
    residual: float = 1.0,
    second: str = "ffn_norm",
) -> Node:
    """Pre-norm layer: x + residual * attention(norm(x)), then x + residual * ffn(norm(x)). second: name of
    the feed-forward's norm.
    """
    x = ops.add(x, scaled(a, attend(a, a.norm(x, f"blk.{i}.attn_norm"), i), residual))
    return ops.add(x, scaled(a, feed(a, a.norm(x, f"blk.{i}.{second}"), i), residual))


def post_norm_layer(
    a: Arch, x: Node, i: int, *, feed: Part = swiglu, attend: Part = attention, before: bool = True
) -> Node:
    """As pre_norm_layer, with another norm on the output of each part before it is added. before False:
    without the norms on the input.
    """
    y = attend(a, a.norm(x, f"blk.{i}.attn_norm") if before else x, i)
    x = ops.add(x, a.norm(y, f"blk.{i}.post_attention_norm"))
    y = feed(a, a.norm(x, f"blk.{i}.ffn_norm") if before else x, i)
    return ops.add(x, a.norm(y, f"blk.{i}.post_ffw_norm"))


def parallel_layer(a: Arch, x: Node, i: int, *, feed: Part, seen: str = "attn_norm") -> Node:
    """Parallel layer: x + attention(norm(x)) + ffn(norm(x)). seen: name of the attention's norm."""
    y = a.norm(x, f"blk.{i}.attn_norm")
    heard = y if seen == "attn_norm" else a.norm(x, f"blk.{i}.{seen}")
    return ops.add(ops.add(x, attention(a, heard, i)), feed(a, y, i))


def capped(a: Arch, logits: Node) -> Node:
    """Logits with the soft cap `final_logit_softcapping`, if the file states it."""
    cap = a.hp.real("final_logit_softcapping", 0.0)
    return ops.soft_cap(logits, cap=cap) if cap else logits


def alternating(a: Arch, i: int, period: int) -> bool:
    """Whether layer i has a sliding window. The file states it per layer, or as a period whose last layer has
    full attention; period 1: every layer has full attention.
    """
    key = "attention.sliding_window_pattern"
    if a.hp.has_array(key):
        return a.hp.flags(key, a.layers)[i]
    period = a.hp.uint(key, period)
    return (i + 1) % period != 0
