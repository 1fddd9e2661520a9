"""Calls of CUDA's own kernels, products and attention, whose operands are usual numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from attention_cases import BLOCK, Tokens, attention_case
from one_step import Case, encode, extremes, f32, generator, kernels_of, random_blocks

from satchel.runtime.device.device import Device

PACKED = ("q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q5_0", "iq4_nl", "iq4_xs", "mxfp4", "i8_g128")
PRODUCT_BOUND = 5e-5  # nmse: weights and activations meet as bfloat16
COUNTS = (1, 3, 8, 9, 16, 30, 64, 100, 128, 129, 300)  # of tokens
# nmse: queries and weights are rounded to 11 bits, or to 8 with caches of bf16, q8_0 and q4_0
ATTENTION_BOUND = 1e-4
FEW: Tokens = [(0, 300), (1, 2), (1, 3), (2, 1500)]
RUNS: Tokens = [(0, p) for p in range(90, 290)] + [(1, p) for p in range(40)]
# At most 16 tokens, most of them with draft tokens behind them.
DRAFTS: Tokens = [(0, p) for p in range(120, 127)] + [
    (1, 40),
    *[(2, p) for p in range(900, 905)],
    (3, 5),
    (3, 6),
]
SHORT: Tokens = [(s, 37 * s + p) for s in range(11) for p in range(3)]  # runs of few tokens


def product(op: str, format: str, tokens: int, k: int, n: int, *, wild: bool = False) -> Case:
    rng = generator(f"{op} {format} {k} {n}")
    block = f32(rng, max(COUNTS), k)[0]
    if wild:
        block[:12] = extremes(rng, 12, k)
    pair = format.split("/") * 2  # one format, or those of two weights side by side
    weights = [(random_blocks(rng, f, n, k), f) for f in pair[: 1 if op == "linear_add" else 2]]
    for array, _ in weights:
        for scale in {"d", "dmin", "m"} & set(array.dtype.names or ()):
            array[scale] = (array[scale].astype(np.float32) / 64).astype(array.dtype[scale])
    more = [f32(rng, max(COUNTS), n)] if op == "linear_add" else []
    inputs = ((block[:tokens], "f32"), *weights, *[(a[:tokens], f) for a, f in more])
    return Case(
        f"{op} {format} {tokens}x{k}x{n}",
        inputs,
        (tokens, 2 * n if op == "linear" else n),
        bound=PRODUCT_BOUND,
    )


def weights_of(one: Case) -> tuple[int, ...]:
    return tuple(i for i in range(1, len(one.inputs)) if one.inputs[i][1] in PACKED)


def packed_kernels(device: Device, op: str, one: Case) -> tuple[str, ...]:
    """kernels_of() a product whose weights are packed."""
    return kernels_of(device, op, one, weights_of(one))


def attention(
    format: str, heads: tuple[int, int, int], tokens: Tokens, *, sinks: float = 0, **args: Any
) -> Case:
    """Caches of usual numbers. sinks: their size, 0: none."""
    rng = generator(f"{format} {heads} {len(tokens)} {args}")
    one = attention_case(rng, format, heads, tokens, scale=heads[2] ** -0.5)
    q, k, v, *rest = one.inputs
    _, kv, d = heads
    shape = (k[0].shape[0], kv, BLOCK, -1)
    caches = [(encode(format, f32(rng, shape[0] * kv * BLOCK, d)[0]).reshape(shape), format) for _ in (k, v)]
    more = [f32(rng, heads[0], scale=sinks)] if sinks else []
    more += [f32(rng, heads[0], scale=0.05)] if args.get("alibi") else []
    args = {**one.args, **args}
    return replace(one, inputs=(q, *caches, *rest, *more), args=args, bound=ATTENTION_BOUND)
