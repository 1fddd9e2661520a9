"""Test cases of the fused ops and of rope, which share a cos/sin table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from one_step import (
    ACTIVATIONS,
    CASES,
    WEIGHTS,
    Case,
    case,
    encode,
    extremes,
    f32,
    i32,
    random_blocks,
)

from satchel.quant import FORMATS
from satchel.runtime import ops
from satchel.runtime.graph import Array


def frequencies(n_rot: int) -> tuple[Array, str]:
    return (10000.0 ** -(np.arange(n_rot // 2) * 2 / n_rot)).astype(np.float32), "f32"


@case("rope_table")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for n_rot, scale, pos in ((64, 1.0, i32(0, 1, 77, 40000)), (2, 1.25, i32(3)), (96, 0.5, i32(*range(70)))):
        shape = (len(pos[0]), n_rot)
        yield Case(f"{n_rot}", (pos, frequencies(n_rot)), shape, args={"scale": scale}, bound=1e-12)


def cos_sin(n_rot: int, pos: tuple[Array, str], scale: float = 1.25) -> tuple[Array, str]:
    return ops.rope_table.define(pos[0], frequencies(n_rot)[0], scale=scale), "f32"


@case("rope")
def _(rng: np.random.Generator) -> Iterator[Case]:
    pos = i32(0, 1, 77, 40000)
    for style in (0, 1):
        for n_rot, d in ((64, 64), (32, 80), (2, 2), (18, 20)):
            inputs = (f32(rng, 4, 3, d), cos_sin(n_rot, pos))
            yield Case(f"{style}-{n_rot}", inputs, (4, 3, d), args={"style": style}, bound=1e-12)


@case("rope_kv_write")
def _(rng: np.random.Generator) -> Iterator[Case]:
    slot, pos = i32(0, 1, 1, 0), i32(0, 15, 16, 39)
    table = rng.permutation(8).astype(np.int32).reshape(2, 4)
    for format in ("f32", "f16", "bf16"):
        for style, d, n_rot in ((0, 24, 24), (1, 64, 64), (1, 40, 6)):
            cache = encode(format, f32(rng, 8 * 2 * 16, d)[0]).reshape(8, 2, 16, d)
            inputs = ((cache, format), f32(rng, 4, 2, d), cos_sin(n_rot, pos), slot, pos, (table, "i32"))
            # a product halfway between two values of the cache format may be rounded either way
            bound = {"f32": 1e-12, "f16": 1e-8, "bf16": 1e-6}[format]
            yield Case(f"{format}-{style}-{d}", inputs, (), format, {"style": style}, bound)


CACHES = ("f16", "bf16", "f32", "fp8", "q8_0", "q4_0")


def qkv(rng: np.random.Generator, format: str, tokens: int, heads: tuple[int, int, int], **more: Any) -> Case:
    """The steps between a Q, K, V product and attention, of slots whose pasts are random: two, in turn, or
    places (slot, position). heads: query heads, KV heads, D. extreme: keys and values of one token are
    large, those of the next 0. block: positions of a block.
    """
    n, kv, d = heads
    size = more.get("block", 16)
    style, n_rot, kind = more.get("style", 1), more.get("n_rot", d), more.get("kind", "plain")
    places = more.get("places") or [(t % 2, t // 2 + more.get("past", 37)) for t in range(tokens)]
    slot, pos = ((np.array(column, np.int32), "i32") for column in zip(*places, strict=True))
    blocks, slots = -(-(int(pos[0].max()) + 1) // size), max(2, int(slot[0].max()) + 1)
    table = (rng.permutation(slots * blocks).astype(np.int32).reshape(slots, blocks), "i32")
    caches = [(encode(format, f32(rng, slots * blocks * kv * size, d)[0]), format) for _ in range(2)]
    caches = [(a.reshape(slots * blocks, kv, size, -1), f) for a, f in caches]
    x = [f32(rng, tokens, h, d)[0] for h in (n, kv, kv)]
    if more.get("extreme"):
        for one in x[1:]:  # not the queries: a product of both would leave softmax no second best
            one[0] *= 100
            one[1:2] = 0
    rest = {"plain": [], "biases": [f32(rng, h * d) for h in (n, kv, kv)], "norms": [f32(rng, d)] * 2}[kind]
    inputs = (
        (x[0], "f32"),
        *caches,
        slot,
        pos,
        table,
        cos_sin(n_rot, pos, 1.0),
        (x[1], "f32"),
        (x[2], "f32"),
    )
    args = {"style": style, "biases": int(kind == "biases"), "norms": int(kind == "norms"), "eps": 1e-6}
    name = f"{format}-{tokens}-{n}x{kv}x{d}-{kind}-{style}"
    return Case(name, (*inputs, *rest), (tokens, n, d), args=args, bound=1e-11)


@case("rope_qkv_write")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in CACHES:
        for i, kind in enumerate(("plain", "biases", "norms")):
            for tokens, heads in ((1, (4, 2, 64)), (2, (2, 1, 128)), (4, (6, 3, 96)), (8, (8, 1, 32))):
                yield qkv(rng, format, tokens, heads, kind=kind, style=i % 2, extreme=tokens == 4)
    yield qkv(rng, "f16", 40, (4, 2, 64), n_rot=32)
    yield qkv(rng, "q8_0", 3, (4, 4, 256), kind="norms", n_rot=64)


@case("rope_qkv_attention")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in ("f16", "bf16", "fp8", "q8_0", "q4_0"):
        for i, kind in enumerate(("plain", "biases", "norms")):
            for past, window, heads in (
                (0, 0, (4, 2, 64)),
                (37, 20, (8, 2, 128)),
                (600, 0, (8, 1, 64)),
                (1500, 1000, (6, 3, 128)),
            ):
                one = qkv(rng, format, 1, heads, kind=kind, style=i % 2, past=past, extreme=past == 37)
                args = {**one.args, "scale": heads[2] ** -0.5, "window": window}
                one = replace(one, shape=(1, heads[0] * heads[2]), args=args)
                yield one
                seen = {**args, "cap": 0.5 * past, "chunk": 256 if past > 256 else 0}
                yield replace(one, inputs=(*one.inputs, f32(rng, heads[0], scale=4)), args=seen)


def tame(w: Array) -> Array:
    """Random codes with small scales, so that the gate's inputs are near 1 in magnitude."""
    out = w.copy()
    for scale in {"d", "dmin", "m"} & set(w.dtype.names or ()):
        out[scale] = (w[scale].astype(np.float32) / 64).astype(w.dtype[scale])
    return out


def gated(rng: np.random.Generator, formats: tuple[str, str], t: int, k: int, n: int, to: str = "") -> Case:
    """to: the format to which the result is quantized, or float32."""
    act = (FORMATS[formats[0]].act if FORMATS[formats[0]].block > 1 else None) or "f32"
    act = "f32" if k % FORMATS[act].block else act
    weights = tuple((tame(random_blocks(rng, f, n, k)), f) for f in formats)
    x, name = encode(act, f32(rng, t, k)[0]), f"{'+'.join(formats)}-{t}x{k}x{n}{to}"
    if to:
        return Case(name, ((x, act), *weights), (t, n), to, {"format": to}, 1e-5)
    return Case(name, ((x, act), *weights), (t, n), bound=1e-10)


@case("linear_swiglu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in WEIGHTS:
        block = max(FORMATS[format].block, 32)
        for t, k, n in ((1, 2 * block, 33), (13, 768, 16), (3, 3 * block, 5), (40, 256, 130)):
            yield gated(rng, (format, format), t, k, n)
    yield gated(rng, ("f32", "f32"), 2, 77, 40)
    yield gated(rng, ("q4_k", "q6_k"), 1, 256, 600)
    yield gated(rng, ("f32", "f16"), 7, 64, 300)


@case("linear_swiglu_quantize")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for to in ACTIVATIONS:
        block = FORMATS[to].block
        for t, n in ((1, 768), (13, 256), (3, 256 + block if block < 256 else 512), (37, 1024)):
            yield gated(rng, ("q4_k", "q6_k"), t, 256, n, to)
        yield gated(rng, ("q8_0", "q4_0"), 5, 64, 5 * max(block, 32), to)
    yield gated(rng, ("f16", "f16"), 2, 40, 32, "a8_32")
    yield gated(rng, ("f16", "f16"), 2, 40, 21, "f16")


def normed(rng: np.random.Generator, formats: tuple[str, ...], t: int, k: int, n: int) -> Case:
    """A product of x after rms_norm. The first token's numbers are usual ones."""
    x = extremes(rng, t + 2, k)[-t:]
    x[0] = rng.standard_normal(k)
    weights = tuple((tame(random_blocks(rng, f, n, k)), f) for f in formats)
    name = f"{'+'.join(formats)}-{t}x{k}x{n}"
    shape = (t, n * len(formats))
    return Case(name, ((x, "f32"), *weights, f32(rng, k)), shape, args={"eps": 1e-5}, bound=1e-10)


@case("norm_linear")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for formats in (("f16",), ("bf16", "bf16"), ("q8_0",), ("q4_k", "q4_k", "q6_k")):
        for t, k, n in ((1, 256, 48), (2, 512, 64), (4, 768, 33), (8, 256, 130)):
            yield normed(rng, formats, t, k, n)


def normed_gates(rng: np.random.Generator) -> Iterator[Case]:
    for formats in (("f16", "f16"), ("bf16", "bf16"), ("q4_k", "q6_k"), ("q8_0", "q8_0")):
        for t, k, n in ((1, 256, 48), (2, 512, 64), (4, 768, 33), (8, 256, 130)):
            yield replace(normed(rng, formats, t, k, n), shape=(t, n))


@case("norm_linear_swiglu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield from normed_gates(rng)


@case("norm_linear_geglu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for i, one in enumerate(normed_gates(rng)):
        yield replace(one, args={**one.args, "style": i % 2})


def posted(rng: np.random.Generator, formats: tuple[str, ...], t: int, k: int, n: int) -> Case:
    """A product of h = r + rms_norm(x, post) after its rms_norm, with h beside it."""
    one = normed(rng, formats, t, k, n)
    shape = (t, n * len(formats) + k)
    return replace(one, inputs=(*one.inputs, f32(rng, k), f32(rng, t, k)), shape=shape)


POSTED = ((1, 256, 48), (2, 512, 64), (4, 768, 36), (8, 256, 132))


@case("post_norm_linear")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for formats in (("f16",), ("bf16", "bf16"), ("q8_0",), ("q4_k", "q4_k", "q6_k")):
        for t, k, n in POSTED:
            yield posted(rng, formats, t, k, n)


def posted_gates(rng: np.random.Generator) -> Iterator[Case]:
    for formats in (("f16", "f16"), ("bf16", "bf16"), ("q4_k", "q6_k"), ("q8_0", "q8_0")):
        for t, k, n in POSTED:
            yield replace(posted(rng, formats, t, k, n), shape=(t, n + k))


@case("post_norm_linear_swiglu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield from posted_gates(rng)


@case("post_norm_linear_geglu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for i, one in enumerate(posted_gates(rng)):
        yield replace(one, args={**one.args, "style": i % 2})


__all__ = ["CASES"]
