"""Multi-head latent attention (MLA). The cache keeps one row per token: a latent that all heads share, and a
small key with RoPE.

The matrices that would expand the latent to keys and values are absorbed into queries and results
(DeepSeek-V2, arXiv 2405.04434, 2.1). compiler/expand.py uses the expanded form for long runs of a prompt.
With a file that holds attn_kv_b instead of its two halves, the cache keeps keys and values of each head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from satchel.errors import ModelError, RequestError
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import cached, linear, rope_frequencies, rope_scaling


@dataclass(frozen=True, slots=True)
class MlaDims:
    """Head dimensions of MLA; the names of DeepSeek's configuration stand beside them."""

    rank: int  # kv_lora_rank, of the latent
    nope: int  # qk_nope_head_dim, the part of a query or key without RoPE
    rope: int  # qk_rope_head_dim, the part with RoPE
    value: int  # v_head_dim
    absorbed: bool  # the cache keeps the latent instead of keys and values of each head


def mla_dims(a: Arch) -> MlaDims:
    rank = a.hp.uint("attention.kv_lora_rank")
    rope = a.hp.uint("rope.dimension_count")
    key = a.hp.uint("attention.key_length_mla", 0, low=0)
    value = a.hp.uint("attention.value_length_mla", 0, low=0)
    absorbed = key > 0
    found = MlaDims(rank, (key or a.head_dim) - rope, rope, value if absorbed else a.value_dim, absorbed)
    wrong = found.nope < 1 or rope % 2 or (absorbed and (not value or a.head_dim != rank + rope))
    if wrong or (absorbed and set(a.kv_heads) != {1}):
        raise ModelError(
            f"{a.hp.arch}.attention.key_length: {a.head_dim} does not fit kv_lora_rank {rank},"
            f" rope.dimension_count {rope}, key_length_mla {key}, value_length_mla {value} and"
            f" head_count_kv {a.kv_heads[0]}"
        )
    return found


# Positions (T, k) that each token of layer i attends to, from the layer's input (T, D); None: all.
SelectPositions = Callable[[Arch, Node, int], Node | None]


def latent_attention(a: Arch, x: Node, i: int, *, select: SelectPositions = lambda a, x, i: None) -> Node:
    """MLA of layer i: (T, D) to (T, D)."""
    s, p, heads = mla_dims(a), f"blk.{i}.", a.heads[i]
    q = ops.reshape(queries(a, x, i, heads * (s.nope + s.rope)), shape=(heads, s.nope + s.rope))
    q_nope = ops.take(q, start=0, size=s.nope)
    q_rope = rotate(a, ops.take(q, start=s.nope, size=s.rope), s)
    both = linear(a, x, f"{p}attn_kv_a_mqa", s.rank + s.rope)
    latent = a.norm(ops.cols(both, start=0, size=s.rank), f"{p}attn_kv_a_norm")
    shared = ops.reshape(ops.cols(both, start=s.rank, size=s.rope), shape=(1, s.rope))
    shared, positions = rotate(a, shared, s), select(a, x, i)
    if s.absorbed:
        y = absorbed(a, i, s, (q_nope, q_rope), latent, shared, positions)
    else:
        y = unpacked(a, i, s, (q_nope, q_rope), latent, shared)
    return linear(a, y, f"{p}attn_output", a.width)


def queries(a: Arch, x: Node, i: int, size: int) -> Node:
    """Queries (T, size) of x, through the low-rank attn_q_a if the file has it."""
    low = low_queries(a, x, i)
    return linear(a, x, f"blk.{i}.attn_q", size) if low is None else linear(a, low, f"blk.{i}.attn_q_b", size)


def low_queries(a: Arch, x: Node, i: int) -> Node | None:
    """norm(attn_q_a x), (T, q_lora_rank); None if the file has no attn_q_a."""
    found = a.weights.type(f"blk.{i}.attn_q_a.weight")
    if found is None or not isinstance(found.shape[0], int):
        return None
    return a.norm(linear(a, x, f"blk.{i}.attn_q_a", found.shape[0]), f"blk.{i}.attn_q_a_norm")


def cos_sin_of(a: Arch, s: MlaDims) -> Node:
    """cos/sin table (T, rope) without YaRN's factor, which applies to the scores: see scale_of."""
    freq, _ = rope_frequencies(a, s.rope)
    return ops.rope_table(a.pos, a.graph.const(freq, "f32", "rope_freq"), scale=1.0)


def rotate(a: Arch, x: Node, s: MlaDims) -> Node:
    """RoPE of x (T, H, rope)."""
    return ops.rope(x, cos_sin_of(a, s), style=a.rope_style)


def scale_of(a: Arch, s: MlaDims) -> float:
    """Factor on the scores. YaRN raises it by yarn_log_multiplier (0.1 mscale_all_dim of the checkpoint)."""
    kind, factor = rope_scaling(a)
    stretch = max(0.0, math.log(factor)) if kind == "yarn" else 0.0
    more = a.hp.real("rope.scaling.yarn_log_multiplier", 0.0) * stretch if stretch else 0.0
    return (1 + more) ** 2 / math.sqrt(s.nope + s.rope)


def absorbed(
    a: Arch, i: int, s: MlaDims, q: tuple[Node, Node], latent: Node, shared: Node, positions: Node | None
) -> Node:
    """Absorbed form, (T, H * value): k_b maps queries into the latent's space, v_b maps results out of it."""
    heads, p, format = a.heads[i], f"blk.{i}.", a.cache.keys
    if format != a.cache.values:
        raise RequestError(
            f"the cache of {a.hp.arch} keeps one latent for keys and values, so their types must be equal:"
            f" got {a.cache.label}"
        )
    asked = ops.head_linear(q[0], a.weight(f"{p}attn_k_b.weight", heads, s.rank, s.nope))
    asked = ops.concat(asked, q[1])
    row = ops.concat(ops.reshape(latent, shape=(1, s.rank)), shared)
    cache = cached(a, f"k.{i}", row, format)
    seen, more = (asked, cache, cache, a.slot, a.pos, a.table(0)), {"scale": scale_of(a, s), "value": s.rank}
    y = ops.attention(*seen, **more) if positions is None else ops.sparse_attention(*seen, positions, **more)
    y = ops.reshape(y, shape=(heads, s.rank))
    y = ops.head_linear(y, a.weight(f"{p}attn_v_b.weight", heads, s.value, s.rank))
    return ops.reshape(y, shape=(heads * s.value,))


def unpacked(a: Arch, i: int, s: MlaDims, q: tuple[Node, Node], latent: Node, shared: Node) -> Node:
    """Unabsorbed form, (T, H * value): the cache holds keys and values of each head."""
    heads = a.heads[i]
    both = linear(a, latent, f"blk.{i}.attn_kv_b", heads * (s.nope + s.value))
    both = ops.reshape(both, shape=(heads, s.nope + s.value))
    k = ops.concat(ops.take(both, start=0, size=s.nope), shared)
    v = ops.take(both, start=s.nope, size=s.value)
    query = ops.concat(*q)
    caches = cached(a, f"k.{i}", k, a.cache.keys), cached(a, f"v.{i}", v, a.cache.values)
    return ops.attention(query, *caches, a.slot, a.pos, a.table(0), scale=scale_of(a, s))
