"""Test cases of the mixture-of-experts ops: every weight format, few and many tokens, ties, NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from one_step import CASES, WEIGHTS, Case, case, encode, f32, random_blocks

from satchel.quant import FORMATS
from satchel.runtime.graph import Array


def choose(rng: np.random.Generator, tokens: int, experts: int, k: int) -> tuple[Array, str]:
    """k different experts for each token; low ids are more frequent."""
    chance = 1 / np.arange(1, experts + 1)
    chosen = [rng.choice(experts, k, replace=False, p=chance / chance.sum()) for _ in range(tokens)]
    return np.array(chosen, np.int32).reshape(tokens, k), "i32"


def stack(rng: np.random.Generator, format: str, experts: int, n: int, k: int) -> tuple[Array, str]:
    return random_blocks(rng, format, experts * n, k).reshape(experts, n, -1), format


@case("top_experts")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for tokens, experts, k in ((1, 8, 2), (40, 128, 8), (3, 5, 5), (2, 1, 1), (1, 300, 1)):
        logits = f32(rng, tokens, experts)
        yield Case(f"{tokens}x{experts}", (logits,), (tokens, k), "i32", {"k": k}, 0)
    for groups, kept, sigmoid in ((4, 2, 1), (4, 1, 0), (1, 1, 1)):
        args = {"k": 3, "groups": groups, "kept": kept, "sigmoid": sigmoid}
        inputs = (f32(rng, 20, 24), f32(rng, 24)) if sigmoid else (f32(rng, 20, 24),)
        yield Case(f"groups-{groups}-{sigmoid}", inputs, (20, 3), "i32", args, 0)
    ties = np.round(f32(rng, 9, 20)[0])
    ties[0], ties[1, ::2], ties[2, 1:], ties[3] = 0, -0.0, np.nan, -np.inf
    ties[4, 5], ties[5, 7:], ties[6, 19] = np.inf, -np.inf, np.nan
    ties[3, 4], ties[3, 2] = np.nan, -3e38
    yield Case("ties", ((ties, "f32"),), (9, 6), "i32", {"k": 6}, 0)


@case("expert_weights")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for norm in (0, 1, 2):
        for tokens, experts, k in ((1, 8, 2), (30, 128, 8), (4, 21, 17), (2, 1, 1)):
            inputs = (f32(rng, tokens, experts, scale=4), choose(rng, tokens, experts, k))
            yield Case(f"{norm}-{tokens}x{experts}", inputs, (tokens, k), args={"norm": norm})
        far = f32(rng, 3, 19, scale=60)[0]
        top = np.argsort(-far, -1)[:, :3].astype(np.int32)
        far[1, 1:] = -np.inf
        top[1] = 0, 3, 4
        far[2] = 3e38
        yield Case(f"{norm}-far", ((far, "f32"), (top, "i32")), (3, 3), args={"norm": norm})


def products(
    rng: np.random.Generator,
    format: str,
    weights: int,
    t: int,
    k: int,
    n: int,
    own: bool,
    *,
    of: tuple[int, int] = (3, 6),
) -> Case:
    """own: each expert of a token has an input row of its own, (T, k, K); else the token has one, (T, K). of:
    experts of a token, and in all.
    """
    act = (FORMATS[format].act if FORMATS[format].block > 1 else None) or "f32"
    used, experts = of
    act = "f32" if k % FORMATS[act].block else act
    x = encode(act, f32(rng, *((t, used, k) if own else (t, k)))[0])
    stacks = [stack(rng, format, experts, n, k) for _ in range(weights)]
    # The codes are random; scale them so that the gate's input is near 1.
    if format not in ("f32", "f16", "bf16"):
        for array, _ in stacks:
            for scale in {"d", "dmin", "m"} & set(array.dtype.names or ()):
                array[scale] = (array[scale].astype(np.float32) / 64).astype(array.dtype[scale])
    name = f"{format}-{t}x{k}x{n}{'-own' * own}"
    return Case(name, ((x, act), *stacks, choose(rng, t, experts, used)), (t, used, n), bound=1e-10)


def product_cases(rng: np.random.Generator, weights: int, own: bool) -> Iterator[Case]:
    for format in WEIGHTS:
        block = max(FORMATS[format].block, 32)
        for t, k, n in ((1, 2 * block, 33), (5, 768, 16), (90, 256, 150)):
            yield products(rng, format, weights, t, k, n, own)
    yield products(rng, "f32", weights, 3, 77, 5, own)
    one = products(rng, "f32", weights, 4, 64, 3, own)
    everyone = (np.full((4, 3), 2, np.int32), "i32")
    yield Case("one-expert", (*one.inputs[:-1], everyone), one.shape)


def elsewhere(rng: np.random.Generator, one: Case, share: float) -> Case:
    """The same call, with this share of expert ids on another device (-1)."""
    ids = np.array(one.inputs[-1][0])
    ids[rng.random(ids.shape) < share] = -1
    ids[0, 0] = -(1 << 31)
    return replace(one, name=f"{one.name}-elsewhere", inputs=(*one.inputs[:-1], (ids, "i32")))


@case("expert_linear")
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield from product_cases(rng, 1, False)
    yield from product_cases(rng, 1, True)
    for format, share in (("q8_0", 0.5), ("q4_k", 0.9), ("f32", 1.0)):
        for tokens in (1, 90):
            yield elsewhere(rng, products(rng, format, 1, tokens, 512, 70, tokens > 1), share)


@case("expert_swiglu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield from product_cases(rng, 2, False)
    gate, up = (products(rng, f, 1, 7, 256, 40, False) for f in ("q4_k", "q6_k"))
    mixed = Case("mixed", (*gate.inputs[:2], *up.inputs[1:]), gate.shape, bound=1e-10)
    yield mixed
    yield elsewhere(rng, mixed, 0.4)


def headed(rng: np.random.Generator, format: str, t: int, n: int, k: int) -> Case:
    """head_linear of t tokens with three heads' matrices of n rows of k."""
    act = (FORMATS[format].act if FORMATS[format].block > 1 else None) or "f32"
    x = encode(act, f32(rng, t, 3, k)[0])
    return Case(f"{format}-{t}", ((x, act), stack(rng, format, 3, n, k)), (t, 3, n), bound=1e-10)


@case("head_linear")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in ("f32", "bf16", "q8_0", "q4_k"):
        for t in (1, 7):
            yield headed(rng, format, t, 40, 256)


@case("expert_add")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for t, n in ((1, 33), (9, 64)):
        inputs = (f32(rng, t, 2, n), f32(rng, 5, n), choose(rng, t, 5, 2))
        one = Case(f"{t}x{n}", inputs, (t, 2, n), bound=0)
        yield one
        yield elsewhere(rng, one, 0.5)


@case("expert_gate_limited")
def _(rng: np.random.Generator) -> Iterator[Case]:
    args = {"limit": 7.0, "alpha": 1.702}
    for t, n in ((1, 33), (2, 256), (9, 64)):
        halves = ((f32(rng, t, 2, n, scale=9), f32(rng, 5, n)) for _ in range(2))
        inputs = (*(x for half in halves for x in half), choose(rng, t, 5, 2))
        one = Case(f"{t}x{n}", inputs, (t, 2, n), args=args)
        yield one
        yield elsewhere(rng, one, 0.5)


@case("swiglu_limited")
def _(rng: np.random.Generator) -> Iterator[Case]:
    args = {"limit": 7.0, "alpha": 1.702}
    for n in (1, 33, 256):
        yield Case(str(n), (f32(rng, 5, n, scale=9), f32(rng, 5, n, scale=9)), (5, n), args=args)


@case("take")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for start, size in ((0, 64), (64, 32), (95, 1)):
        args = {"start": start, "size": size}
        yield Case(f"{start}", (f32(rng, 5, 3, 96),), (5, 3, size), args=args, bound=0)


@case("concat")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for heads in (3, 1):
        yield Case(str(heads), (f32(rng, 5, 3, 33), f32(rng, 5, heads, 8)), (5, 3, 41), bound=0)


@case("position_scale")
def _(rng: np.random.Generator) -> Iterator[Case]:
    far = (np.array([0, 7, 8, 8190, 8191, 16384, 1 << 30], np.int32), "i32")
    for step in (8, 8192):
        yield Case(str(step), (far,), (7, 1), args={"step": step, "slope": 0.1})


@case("expert_sum")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for tokens, k, n in ((1, 8, 2048), (7, 3, 33), (40, 1, 700)):
        inputs = (f32(rng, tokens, k, n), f32(rng, tokens, k))
        yield Case(f"{tokens}x{k}x{n}", inputs, (tokens, n))


def routed(rng: np.random.Generator, t: int, experts: int, bias: bool) -> tuple[tuple[Array, str], ...]:
    """Logits (T, E) of a router, and maybe a bias of its scores."""
    return f32(rng, t, experts, scale=2), *((f32(rng, experts),) if bias else ())


def gates(
    rng: np.random.Generator,
    format: str,
    t: int,
    k: int,
    n: int,
    *,
    sigmoid: int = 0,
    of: tuple[int, int] = (3, 6),
) -> Case:
    """norm_expert_swiglu, each token having some of the experts; with sigmoid, also a bias."""
    one = products(rng, format, 2, t, k, n, False, of=of)
    logits, *bias = routed(rng, t, of[1], bool(sigmoid))
    inputs = (f32(rng, t, k), *one.inputs[1:3], f32(rng, k), logits, *bias)
    args = {"eps": 1e-5, "k": of[0], "sigmoid": sigmoid}
    return Case(f"{one.name}-{sigmoid}", inputs, one.shape, args=args, bound=1e-10)


def sums(
    rng: np.random.Generator,
    format: str,
    t: int,
    k: int,
    n: int,
    *,
    norm: int = 1,
    sigmoid: int = 0,
    of: tuple[int, int] = (3, 6),
) -> Case:
    """expert_linear_sum, each token having some of the experts; with sigmoid, also a bias."""
    one = products(rng, format, 1, t, k, n, True, of=of)
    logits, *bias = routed(rng, t, of[1], bool(sigmoid))
    inputs = (f32(rng, t, of[0], k), one.inputs[1], logits, f32(rng, t, n), *bias)
    args = {"k": of[0], "sigmoid": sigmoid, "norm": norm, "scale": 1.5}
    return Case(f"{one.name}-{norm}-{sigmoid}", inputs, (t, n), args=args, bound=1e-10)


@case("norm_expert_swiglu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in ("f32", "bf16", "q8_0", "q4_k"):
        for t, sigmoid in ((1, 0), (5, 1)):
            yield gates(rng, format, t, 512, 40, sigmoid=sigmoid)


@case("expert_sum_add")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for tokens, k, n in ((1, 8, 2048), (7, 3, 36), (40, 1, 700)):
        for norm, sigmoid in ((0, 0), (1, 0), (1, 1)):
            ids = choose(rng, tokens, 12, k)
            inputs = (f32(rng, tokens, k, n), f32(rng, tokens, 12, scale=4), ids, f32(rng, tokens, n))
            args = {"norm": norm, "sigmoid": sigmoid, "scale": 1.5}
            yield Case(f"{tokens}x{k}x{n}-{norm}-{sigmoid}", inputs, (tokens, n), args=args)


@case("expert_linear_sum")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in ("f32", "bf16", "q8_0", "q4_k"):
        for t, norm, sigmoid in ((1, 0, 0), (5, 1, 1), (2, 1, 0)):
            yield sums(rng, format, t, 256, 70, norm=norm, sigmoid=sigmoid)


__all__ = ["CASES"]
