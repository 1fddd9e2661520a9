"""Multi-head latent attention: the cache keeps one row a token, a latent that all heads share and a key of a
few numbers that is turned by position.

Keys and values are not unpacked: their matrices are absorbed into queries and results (DeepSeek-V2, arXiv
2405.04434, 2.1). compiler/expand.py makes them on the way for long stretches of a prompt. Files that hold
attn_kv_b instead of its two halves get the unpacked form, with keys and values of each head in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from satchel.quant import ModelError, RequestError
from satchel.quant.cache import TURNED
from satchel.runtime import ops
from satchel.runtime.arch import Arch
from satchel.runtime.blocks import linear, rope_frequencies, rope_scaling
from satchel.runtime.graph import Node, Type


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of a head: of its key `plain` that know no position and `turned` that do, of its value `value`.
    rank: of the latent. absorbed: the cache keeps that.
    """

    rank: int
    plain: int
    turned: int
    value: int
    absorbed: bool


def sizes_of(a: Arch) -> Sizes:
    rank = a.hp.uint("attention.kv_lora_rank")
    turned = a.hp.uint("rope.dimension_count")
    key = a.hp.uint("attention.key_length_mla", 0, low=0)
    value = a.hp.uint("attention.value_length_mla", 0, low=0)
    absorbed = key > 0
    found = Sizes(rank, (key or a.head_dim) - turned, turned, value if absorbed else a.value_dim, absorbed)
    wrong = found.plain < 1 or turned % 2 or (absorbed and (not value or a.head_dim != rank + turned))
    if wrong or (absorbed and set(a.kv_heads) != {1}):
        raise ModelError(
            f"{a.hp.arch}.attention.key_length: {a.head_dim} does not go with kv_lora_rank {rank},"
            f" rope.dimension_count {turned}, key_length_mla {key}, value_length_mla {value} and"
            f" head_count_kv {a.kv_heads[0]}"
        )
    return found


# The positions (T, k) that each token of layer i attends to, from the input (T, D) of the layer; None: all.
SelectPositions = Callable[[Arch, Node, int], Node | None]


def latent_attention(a: Arch, x: Node, i: int, *, select: SelectPositions = lambda a, x, i: None) -> Node:
    """Attention of layer i: (T, D) to (T, D)."""
    s, p, heads = sizes_of(a), f"blk.{i}.", a.heads[i]
    q = ops.reshape(queries(a, x, i, heads * (s.plain + s.turned)), shape=(heads, s.plain + s.turned))
    plain = ops.take(q, start=0, size=s.plain)
    turned = rotate(a, ops.take(q, start=s.plain, size=s.turned), s)
    both = linear(a, x, f"{p}attn_kv_a_mqa", s.rank + s.turned)
    latent = a.norm(ops.cols(both, start=0, size=s.rank), f"{p}attn_kv_a_norm")
    shared = ops.reshape(ops.cols(both, start=s.rank, size=s.turned), shape=(1, s.turned))
    shared, positions = rotate(a, shared, s), select(a, x, i)
    if s.absorbed:
        y = absorbed(a, i, s, (plain, turned), latent, shared, positions)
    else:
        y = unpacked(a, i, s, (plain, turned), latent, shared)
    return linear(a, y, f"{p}attn_output", a.width)


def queries(a: Arch, x: Node, i: int, size: int) -> Node:
    """(T, size): of x, or of what attn_q_a leaves of it."""
    low = low_queries(a, x, i)
    return linear(a, x, f"blk.{i}.attn_q", size) if low is None else linear(a, low, f"blk.{i}.attn_q_b", size)


def low_queries(a: Arch, x: Node, i: int) -> Node | None:
    """What attn_q_a leaves of x, under its norm: (T, rank); None where the file has no such weight."""
    found = a.weights.type(f"blk.{i}.attn_q_a.weight")
    if found is None or not isinstance(found.shape[0], int):
        return None
    return a.norm(linear(a, x, f"blk.{i}.attn_q_a", found.shape[0]), f"blk.{i}.attn_q_a_norm")


def turns_of(a: Arch, s: Sizes) -> Node:
    """The rope table of what turns, without YaRN's factor, which is that of the scores: see scale_of."""
    freq, _ = rope_frequencies(a, s.turned)
    return ops.rope_table(a.pos, a.graph.const(freq, "f32", "rope_freq"), scale=1.0)


def rotate(a: Arch, x: Node, s: Sizes) -> Node:
    """x (T, H, turned) by its position."""
    return ops.rope(x, turns_of(a, s), style=a.rope_style)


def scale_of(a: Arch, s: Sizes) -> float:
    """Of the scores; YaRN sharpens them by yarn_log_multiplier (0.1 mscale_all_dim of the checkpoint)."""
    kind, factor = rope_scaling(a)
    stretch = max(0.0, math.log(factor)) if kind == "yarn" else 0.0
    more = a.hp.real("rope.scaling.yarn_log_multiplier", 0.0) * stretch if stretch else 0.0
    return (1 + more) ** 2 / math.sqrt(s.plain + s.turned)


def absorbed(
    a: Arch, i: int, s: Sizes, q: tuple[Node, Node], latent: Node, shared: Node, positions: Node | None
) -> Node:
    """(T, H * value): queries go into the latent's space, and results come back from it."""
    heads, p, format = a.heads[i], f"blk.{i}.", a.cache.keys
    if format != a.cache.values:
        raise RequestError(
            f"the cache of {a.hp.arch} keeps one latent for keys and values, so both have one type:"
            f" got {a.cache.label}"
        )
    asked = ops.head_linear(q[0], a.weight(f"{p}attn_k_b.weight", heads, s.rank, s.plain))
    asked = ops.concat(asked, q[1])
    row = ops.concat(ops.reshape(latent, shape=(1, s.rank)), shared)
    width = s.rank + s.turned
    if format in TURNED:
        stretch = width & -width
        if s.rank % stretch:
            raise RequestError(f"a {format} cache cannot hold latents of {s.rank} numbers: take f16")
        asked, row = ops.hadamard(asked), ops.hadamard(row)
    state = a.state(f"k.{i}", Type((a.cache.pool, 1, a.cache.block, width), format))
    cache = ops.kv_write(state, row, a.slot, a.pos, a.table(0))
    a.written.append(cache)
    seen, more = (asked, cache, cache, a.slot, a.pos, a.table(0)), {"scale": scale_of(a, s), "value": s.rank}
    y = ops.attention(*seen, **more) if positions is None else ops.sparse_attention(*seen, positions, **more)
    if format in TURNED:
        y = ops.hadamard(ops.reshape(y, shape=(heads * s.rank // stretch, stretch)))
    y = ops.reshape(y, shape=(heads, s.rank))
    y = ops.head_linear(y, a.weight(f"{p}attn_v_b.weight", heads, s.value, s.rank))
    return ops.reshape(y, shape=(heads * s.value,))


def unpacked(a: Arch, i: int, s: Sizes, q: tuple[Node, Node], latent: Node, shared: Node) -> Node:
    """(T, H * value) by keys and values of each head."""
    heads = a.heads[i]
    both = linear(a, latent, f"blk.{i}.attn_kv_b", heads * (s.plain + s.value))
    both = ops.reshape(both, shape=(heads, s.plain + s.value))
    k = ops.concat(ops.take(both, start=0, size=s.plain), shared)
    v = ops.take(both, start=s.plain, size=s.value)
    query = ops.concat(*q)
    if a.cache.keys in TURNED:
        query, k = ops.hadamard(query), ops.hadamard(k)
    v = ops.hadamard(v) if a.cache.values in TURNED else v
    caches = []
    for part, y, format in (("k", k, a.cache.keys), ("v", v, a.cache.values)):
        state = a.state(f"{part}.{i}", Type((a.cache.pool, heads, a.cache.block, y.width), format))
        caches.append(ops.kv_write(state, y, a.slot, a.pos, a.table(0)))
    a.written.extend(caches)
    y = ops.attention(query, *caches, a.slot, a.pos, a.table(0), scale=scale_of(a, s))
    if a.cache.values in TURNED:
        y = ops.hadamard(ops.reshape(y, shape=(heads, s.value)))
    return ops.reshape(y, shape=(heads * s.value,))
