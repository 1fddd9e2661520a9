"""Tiny models divided among ranks: their graphs, their values, and a line that says what is divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import tiny

from satchel.quant import FORMATS
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.shard import BEFORE, sharding_of
from satchel.runtime.graph import LEAVES, Array, Node, Roots, Type, toposort
from satchel.runtime.layers.arch import Cache
from satchel.runtime.ops import OPS, evaluate
from satchel.runtime.shard.evaluate import evaluate_ranks
from satchel.runtime.shard.pieces import Piece
from satchel.runtime.shard.rank import rank_graph
from satchel.runtime.shard.sharding import Sharding
from satchel.runtime.shard.windows import separate

TOKENS = 5
CACHE = Cache(96, 2, block=16)


@dataclass(frozen=True)
class Sharded:
    """A tiny model's last output: the graph of all, and of each rank."""

    weights: tiny.TinyWeights
    sharding: Sharding
    plain: Roots  # before windows of products are separated
    separated: Roots
    ranks: tuple[Roots, ...]


def sharded(
    arch: str,
    format: str = "f32",
    shares: tuple[float, ...] = (1, 1),
    blocks: bool = False,
    **options: object,
) -> Sharded:
    """blocks: with context parallelism. options: of the cache."""
    cache = Cache(96, 2, block=16, **options)  # type: ignore[arg-type]
    weights = tiny.weights(arch, format)
    forward = tiny.build(arch, weights, cache)
    outputs = (
        ("tokens", "logits") if forward.causal else ("hidden",)
    )  # an engine has more, of the same layers
    plan = sharding_of((forward.roots(output) for output in outputs), shares, blocks=blocks)
    plain: Roots = forward.roots("logits" if forward.causal else "hidden")
    for step in BEFORE:
        plain = step(plain, Context((), lambda node: ""))
    apart = separate(plain)
    ranks = tuple(rank_graph(apart, plan, rank) for rank in range(len(shares)))
    return Sharded(weights, plan, plain, apart, ranks)


def piece_of(weights: tiny.TinyWeights, name: str) -> Array:
    """The blocks of a weight of a rank's graph."""
    piece = Piece.of(name)
    return piece.blocks(weights.tensors[piece.tensor])


def values(roots: Roots, weights: tiny.TinyWeights) -> dict[str, Array]:
    """Leaves of a prompt of TOKENS tokens in slot 0."""
    known = {
        "ids": np.random.default_rng(0).integers(0, 200, TOKENS),
        "pos": np.arange(TOKENS),
        "rows": np.arange(TOKENS),
    }
    found: dict[str, Array] = {}
    for node in toposort(roots):
        shape = _shape(node.type)
        if node.op == "weight":
            found[node.name] = piece_of(weights, node.name)
        elif node.op == "state":
            format = FORMATS[node.type.format]
            found[node.name] = np.zeros((*shape[:-1], shape[-1] // format.block), format.dtype)
        elif node.op == "input" and node.name.startswith("table"):
            found[node.name] = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
        elif node.op == "input":
            found[node.name] = np.asarray(known.get(node.name, np.zeros(shape)), np.int32)
    return found


def _shape(type: Type) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else TOKENS for d in type.shape)


def outputs(model: Sharded) -> tuple[Array, list[list[Array]]]:
    """The first root of the whole graph, and the roots of each rank."""
    whole = evaluate(model.plain, values(model.plain, model.weights))[0]
    return whole, evaluate_ranks(model.ranks, [values(roots, model.weights) for roots in model.ranks])


def nmse(found: Array, wanted: Array) -> float:
    return float(np.square(found - wanted).sum() / np.square(wanted).sum())


@lru_cache
def golden(arch: str, ranks: int) -> str:
    """What is divided: all-reduces a layer and beside the layers, gathers, the share of the matrices' bytes
    that is divided, and which matrices are whole and why.
    """
    model = sharded(arch, "f32", (1.0,) * ranks)
    first = toposort(model.ranks[0])
    layers = {n.name for n in first if n.name.startswith("blk.") and n.op not in LEAVES}
    reduces = [n.name for n in first if n.op == "reduce_add"]
    within = sum(name in layers for name in reduces)
    used, whole = set[str](), dict[str, str]()
    split = total = 0
    for roots in model.ranks:
        used |= {w.name for w in _matrices(roots)}
    for weight in sorted(_matrices(model.separated), key=lambda w: w.name):
        size = FORMATS[weight.type.format].row_bytes(weight.width) * int(np.prod(weight.shape[:-1]))
        total += size
        split += size * (weight.name not in used)
        if weight.name in used:
            whole[_kind(weight.name)] = model.sharding.whole.get(weight.name, "it has few rows")
    return (
        f"{arch} | {within / len(layers):.2f} | {len(reduces) - within} | "
        f"{sum(n.op == 'gather_columns' for n in first)} | {100 * split / total:.1f} % | "
        f"{_experts(model.sharding.experts)} | {'; '.join(f'{k}: {v}' for k, v in sorted(whole.items()))}"
    )


def _experts(experts: Mapping[str, object]) -> str:
    return ", ".join(sorted({_kind(name) for name in experts}))


def _matrices(roots: Roots) -> set[Node]:
    """Weights of products, look-ups and expert products."""
    found = (n for n in toposort(roots) if n.op not in LEAVES)
    return {s for n in found for s in n.src[OPS[n.op].weights] if s.op == "weight"}


def _kind(name: str) -> str:
    tensor = Piece.of(name).tensor.removesuffix(".weight")
    return tensor.split(".", 2)[2] if tensor.startswith("blk.") else tensor
