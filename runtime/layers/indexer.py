"""Sparse attention of DeepSeek V3.2. The lightning indexer scores each token's past, and the token attends to
the top k positions (DeepSeek-V3.2-Exp, 2025). The indexer's keys are cached beside the latents.

A context of at most k positions is dense, and so is every layer under Cache.dense (`--dense-attention`): the
indexer does not run then, and has no cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from satchel.errors import ModelError, RequestError
from satchel.quant import FORMATS
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch, Cache
from satchel.runtime.layers.blocks import cached, linear
from satchel.runtime.layers.latent import cos_sin_of, low_queries, mla_dims

EPS = 1e-6  # epsilon of the keys' norm; GGUF has no key for it
HALVES = 1  # RoPE style of the indexer, pairs (i, i + n_rot/2); MLA pairs (2i, 2i+1)


@dataclass(frozen=True, slots=True)
class Indexer:
    """Dimensions of the lightning indexer."""

    heads: int  # index heads
    size: int  # elements of a head
    top_k: int  # positions that a token attends to


def indexer_of(a: Arch) -> Indexer:
    key = "attention.indexer."
    found = Indexer(
        a.hp.uint(f"{key}head_count", high=4096),
        a.hp.uint(f"{key}key_length", high=4096),
        a.hp.uint(f"{key}top_k"),
    )
    if found.size < mla_dims(a).rope:
        raise ModelError(
            f"{a.hp.arch}.{key}key_length: expected at least rope.dimension_count {mla_dims(a).rope},"
            f" got {found.size}"
        )
    return found


def is_sparse(found: Indexer, cache: Cache) -> bool:
    """Whether a token's past can be longer than top_k."""
    return not cache.dense and found.top_k < cache.context


def kept_keys(a: Arch, cache: Cache) -> tuple[tuple[int, int, str], ...]:
    """The indexer's keys in a layer's paged cache, as (heads, size, format); see Arch.kept()."""
    found = indexer_of(a)
    return ((1, found.size, cache.keys),) if is_sparse(found, cache) else ()


def top_k_positions(a: Arch, x: Node, i: int) -> Node | None:
    """Positions that each token of x (T, D) attends to in layer i: (T, top_k); None: its whole past."""
    found, p = indexer_of(a), f"blk.{i}.indexer."
    low = low_queries(a, x, i)
    if low is None:
        raise ModelError(f"blk.{i}.attn_q_a.weight is missing: the indexer computes its queries from it")
    q = ops.reshape(linear(a, low, f"{p}attn_q_b", found.heads * found.size), shape=(found.heads, found.size))
    key = ops.layer_norm(
        linear(a, x, f"{p}attn_k", found.size),
        a.weight(f"{p}k_norm.weight", found.size),
        a.weight(f"{p}k_norm.bias", found.size),
        eps=EPS,
    )
    # The paper's factors on the scores, heads ** -0.5 and size ** -0.5, do not change the order.
    weights = linear(a, x, f"{p}proj", found.heads)
    if not is_sparse(found, a.cache):
        return None
    cos_sin = cos_sin_of(a, mla_dims(a))
    q = ops.rope(q, cos_sin, style=HALVES)
    key = ops.rope(ops.reshape(key, shape=(1, found.size)), cos_sin, style=HALVES)
    if found.size % FORMATS[a.cache.keys].block:
        raise RequestError(
            f"a {a.cache.keys} cache holds heads of a multiple of {FORMATS[a.cache.keys].block}, the"
            f" indexer's have {found.size}: take f16"
        )
    cache = cached(a, f"index.{i}", key, a.cache.keys)
    return ops.index_positions(q, weights, cache, a.slot, a.pos, a.table(0), k=found.top_k)
