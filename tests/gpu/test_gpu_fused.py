"""Fused ops for few tokens against their parts on the same GPU, with random and extreme inputs;
`pytest -m gpu`."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import expert_cases
import fused_cases
import latent_cases
import numpy as np
import pytest
from gpus import LOWERED, lacks, skip_where_none
from kernel_cases import check
from one_step import Case, define, define_all, f32, generator, kernels_of, refused, run, run_all

from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Array

TOKENS = (1, 2, 4, 8)
ROUNDED = 1e-3  # nmse: tensor cores round activations, before the norm's factor or after it


def normed_parts(device: Device, op: str, one: Case, packed: tuple[int, ...]) -> Array:
    """rms_norm, then the product, of GeGLU its halves and the gate."""
    x, *weights, w = one.inputs
    norm = run(device, "rms_norm", Case("", (x, w), x[0].shape, args={"eps": one.args["eps"]})), "f32"
    whole = replace(one, inputs=(norm, *weights), args={})
    if op != "norm_linear_geglu":
        return run(device, op[len("norm_") :], whole, packed=packed)
    n = one.shape[1]
    both = run(device, "linear", replace(whole, shape=(one.shape[0], 2 * n)), packed=packed)
    halves = tuple((np.ascontiguousarray(h), "f32") for h in (both[:, :n], both[:, n:]))
    return run(device, "geglu", replace(one, inputs=halves, args={"style": one.args["style"]}))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [*TOKENS, 3, 5, 16, 33, 128])
@pytest.mark.parametrize("op", ["norm_linear", "norm_linear_swiglu", "norm_linear_geglu"])
def test_a_product_with_its_norm_equals_its_parts(cuda: Device, op: str, tokens: int) -> None:
    rng = generator(f"{op} {tokens}")
    packed = [f for f in FORMATS if cuda.packed(FORMATS[f].id, 1, 16, 256)]
    mixed = [("q4_k", "q6_k"), ("q4_0", "q8_0")]
    tried = 0
    for formats in [("f16", "f16"), ("bf16", "bf16"), *((f, f) for f in packed), *mixed]:
        for style, (k, n) in enumerate(((256, 48), (1024, 130), (4096, 64))):
            one = fused_cases.normed(rng, formats, tokens, k, n)
            args = {"style": style % 2} if op == "norm_linear_geglu" else {}
            shape = (tokens, 2 * n if op == "norm_linear" else n)
            one = replace(one, bound=ROUNDED, shape=shape, args={**one.args, **args})
            own = (1, 2) if formats[0] in packed else ()
            if (LOWERED or not own) and refused(cuda, op, one, packed=own):
                continue
            found = run(cuda, op, one, packed=own)
            check(one, found, define(op, one))
            check(one, found, normed_parts(cuda, op, one, own))
            tried += 1
    skip_where_none(op, tried)
    assert LOWERED or tried >= 3 * len(packed)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_a_router_with_its_norm_equals_its_definition(cuda: Device, tokens: int) -> None:
    rng, tried = generator(f"router {tokens}"), 0
    for k, n in ((2048, 64), (2048, 128), (7168, 256), (516, 7)):
        one = replace(fused_cases.normed(rng, ("f32",), tokens, k, n), bound=1e-9)
        if not lacks(cuda, "norm_linear", one):
            check(one, run(cuda, "norm_linear", one), define("norm_linear", one))
            tried += 1
    skip_where_none("norm_linear", tried)


# (experts of a token, in all), K and N of their weights
MIXTURES = (
    ((8, 128), 256, 48),
    ((8, 12), 2048, 768),
    ((6, 64), 512, 90),
    ((1, 5), 768, 7),
    ((17, 300), 256, 16),
)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 5, 16])
@pytest.mark.parametrize("sigmoid", [0, 1])
def test_experts_of_few_tokens_equal_their_definition(cuda: Device, tokens: int, sigmoid: int) -> None:
    """Gate and up of the selected experts after the norm, and their weighted sum with a residual: every
    packed format, scores that tie, and sizes at which a group has several tiles.
    """
    rng, tried = generator(f"experts {tokens} {sigmoid}"), 0
    packed = [f for f in FORMATS if cuda.packed(FORMATS[f].id, 1, 16, 256)]
    for format, (of, k, n) in itertools.product(packed, MIXTURES):
        if k == 2048 and format not in ("q4_k", "q6_k"):
            continue  # the definition takes long
        gate = expert_cases.gates(rng, format, tokens, k, n, sigmoid=sigmoid, of=of)
        down = expert_cases.sums(rng, format, tokens, k, n, norm=sigmoid, sigmoid=sigmoid, of=of)
        for op, one, weights in (("norm_expert_swiglu", gate, (1, 2)), ("expert_linear_sum", down, (1,))):
            logits = one.inputs[weights[-1] + 1 + (op == "norm_expert_swiglu")][0]
            logits[0, 1::2] = logits[0, 0]
            one = replace(one, bound=ROUNDED)
            if not lacks(cuda, op, one, weights):
                check(one, run(cuda, op, one, packed=weights), define(op, one))
                tried += 1
    skip_where_none("norm_expert_swiglu and expert_linear_sum", tried)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 3, 18, 128])
def test_matrices_of_heads_equal_their_definition(cuda: Device, tokens: int) -> None:
    """Rows of one to four chunks, and of more, which other kernels take."""
    rng = generator(f"heads {tokens}")
    packed = [f for f in FORMATS if cuda.packed(FORMATS[f].id, 1, 16, 256)]
    for format, (n, k) in itertools.product(packed, ((128, 512), (40, 256), (16, 1024), (20, 1280))):
        one = replace(expert_cases.headed(rng, format, tokens, n, k), bound=ROUNDED)
        x = f32(rng, tokens, 3, k)
        one = replace(one, inputs=(x, *one.inputs[1:]))
        check(one, run(cuda, "head_linear", one, packed=(1,)), define("head_linear", one))


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["f16", "bf16", "fp8", "q8_0", "q4_0"])
@pytest.mark.parametrize("tokens", [1, 5, 16])
def test_queries_and_rows_of_latents_equal_their_definition(cuda: Device, tokens: int, format: str) -> None:
    """Queries, and the cache with the rows that the step has written."""
    rng, op, tried = generator(f"latent {tokens} {format}"), "rope_latent_write", 0
    places = [(i % 3, 7 * i + i // 3) for i in range(tokens)]
    sizes = ((512, 128, 64), (64, 64, 32), (128, 256, 64))
    for weights, size, style in itertools.product(("q8_0", "q4_0", "q5_0", "iq4_nl", "mxfp4"), sizes, (0, 1)):
        one = latent_cases.written(rng, (format, weights), size, places, heads=4, style=style)
        one = replace(one, bound=ROUNDED)
        if lacks(cuda, op, one, (8,)):
            continue
        found, want = run_all(cuda, op, one, packed=(8,)), define_all(op, one)
        check(one, found[0], want[0])
        check(replace(one, format=format), found[1], want[1])
        tried += 1
    skip_where_none(op, tried)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [*TOKENS, 3, 5, 16, 33, 128])
@pytest.mark.parametrize("gate", ["", "_swiglu", "_geglu"])
def test_a_product_with_its_post_norm_equals_its_parts(cuda: Device, gate: str, tokens: int) -> None:
    """The products beside those of h, and h, which stands after them, beside rms_norm_add."""
    op, parts = f"post_norm_linear{gate}", f"norm_linear{gate}"
    rng, tried = generator(f"{op} {tokens}"), 0
    packed = [f for f in FORMATS if cuda.packed(FORMATS[f].id, 1, 16, 256)]
    args: dict[str, Any] = {"eps": 1e-5, **({"style": tokens % 2} if gate == "_geglu" else {})}
    for formats in [("f16", "f16"), ("bf16", "bf16"), *((f, f) for f in packed), ("q4_k", "q6_k")]:
        for k, n in ((256, 48), (1024, 132), (4096, 64)):
            one = fused_cases.posted(rng, formats, tokens, k, n)
            width = n if gate else 2 * n
            one = replace(one, bound=ROUNDED, shape=(tokens, width + k), args=args)
            own = (1, 2) if formats[0] in packed else ()
            if (LOWERED or not own) and refused(cuda, op, one, packed=own):
                continue
            found = run(cuda, op, one, packed=own)
            x, first, second, w, post, r = one.inputs
            normed = Case("h", (x, post, r), (tokens, k), args={"eps": 1e-5}, bound=1e-10)
            h = run(cuda, "rms_norm_add", normed)
            check(normed, np.ascontiguousarray(found[:, width:]), h)
            after = replace(one, inputs=((h, "f32"), first, second, w), shape=(tokens, width))
            check(after, np.ascontiguousarray(found[:, :width]), define(parts, after))
            tried += 1
    skip_where_none(op, tried)


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["f16", "bf16", "fp8", "q8_0", "q4_0"])
@pytest.mark.parametrize("kind", ["plain", "biases", "norms"])
def test_attention_with_its_heads_equals_its_parts(cuda: Device, kind: str, format: str) -> None:
    """The result and both caches, at positions with one split of the past and with many, and windows; the
    same with attention sinks, soft caps and chunks.
    """
    rng, op, tried = generator(f"{kind} {format}"), "rope_qkv_attention", 0
    shapes = ((0, 0, (4, 2, 64)), (5, 0, (8, 1, 128)), (300, 17, (8, 2, 64)), (2000, 0, (6, 3, 128)))
    more: tuple[dict[str, Any], ...] = ({}, {"cap": 5.0}, {"chunk": 128}, {"cap": 30.0, "chunk": 1500})
    for (past, window, heads), extreme, style, seen in itertools.product(shapes, (False, True), (0, 1), more):
        rotated = 32 if "chunk" in seen else heads[2]
        one = fused_cases.qkv(
            rng, format, 1, heads, kind=kind, past=past, extreme=extreme, style=style, n_rot=rotated
        )
        args = {**one.args, "scale": heads[2] ** -0.5, "window": window, **seen}
        sinks = (f32(rng, heads[0], scale=4),) if style else ()
        shape = (1, heads[0] * heads[2])
        # a large score's rounding decides between keys, or a key and a sink, where these are near each other;
        # keys in blocks are met as bfloat16
        bound = 2e-2 if extreme and (sinks or seen or format == "q8_0") else ROUNDED
        one = replace(one, inputs=(*one.inputs, *sinks), shape=shape, args=args, bound=bound)
        tried += equals_parts(cuda, one, format)
    skip_where_none(op, tried)


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["f16", "bf16", "fp8", "q8_0", "q4_0"])
def test_attention_with_its_heads_by_each_kernel_and_number_of_splits(cuda: Device, format: str) -> None:
    """One split that fills a ring many times, splits of a few positions, blocks of 16 positions or more."""
    rng, op, tried = generator(f"splits {format}"), "rope_qkv_attention", 0
    shapes = ((2000, 0, (4, 2, 64), 16), (2077, 0, (8, 1, 128), 32), (3011, 1700, (6, 3, 128), 128))
    for past, window, heads, block in (*shapes, (2500, 0, (16, 8, 64), 64), (9000, 0, (2, 1, 128), 16)):
        one = fused_cases.qkv(rng, format, 1, heads, past=past, block=block)
        args = {**one.args, "scale": heads[2] ** -0.5, "window": window}
        one = replace(one, shape=(1, heads[0] * heads[2]), args=args, bound=ROUNDED)
        if lacks(cuda, op, one):
            continue
        for kernel in kernels_of(cuda, op, one):
            found = run_all(cuda, op, one, kernel=kernel)
            for got, want in zip(found, define_all(op, one), strict=True):
                check(one if got is found[0] else replace(one, format=format), got, want)
            tried += 1
    skip_where_none(op, tried)


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["f16", "bf16", "fp8"])
def test_attention_with_its_heads_reads_no_position_that_is_not_there(cuda: Device, format: str) -> None:
    """Pasts that end anywhere in a run of 16 positions or a tile of 64; NaN stands behind the token."""
    rng, op, tried = generator(f"ends {format}"), "rope_qkv_attention", 0
    pasts = (0, 1, 15, 16, 17, 47, 63, 64, 65, 128, 200, 255, 256, 257, 271, 500, 513, 1027)
    for past, heads in itertools.product(pasts, ((4, 2, 64), (8, 1, 128))):
        one = fused_cases.qkv(rng, format, 1, heads, past=past, block=64)
        none = {"f16": 0x7E00, "bf16": 0x7FC0, "fp8": 0x7F}[format]
        for cache, _ in one.inputs[1:3]:
            rows = cache[one.inputs[5][0][0, past // 64]]
            rows.view(np.uint8 if format == "fp8" else np.uint16)[:, past % 64 + 1 :] = none
        args = {**one.args, "scale": heads[2] ** -0.5, "window": 0}
        one = replace(one, shape=(1, heads[0] * heads[2]), args=args, bound=ROUNDED)
        if not lacks(cuda, op, one):
            check(one, run(cuda, op, one), define(op, one))
            tried += 1
    skip_where_none(op, tried)


# Slots and positions of a step's tokens: sequences with one token each, runs of draft tokens behind short and
# long pasts, tokens of two slots in turn, and positions of a slot that are not in a row. Of more than 16
# tokens each is taken by itself, also where they are a prompt's.
STEPS: dict[str, list[tuple[int, int]]] = {
    "apart": [(i, (0, 5, 300, 17, 1100, 63, 64, 2)[i % 8]) for i in range(16)],
    "run": [(1, 40 + i) for i in range(8)],
    "long run": [(0, 3000 + i) for i in range(16)],
    "runs": [(0, 2000), *((1, 2500 + i) for i in range(7)), *((2, i) for i in range(5)), (3, 1), (4, 900)],
    "in turn": [(i % 2, 600 + i // 2) for i in range(9)],
    "holes": [(0, 70), (0, 75), (1, 8), (0, 73), (0, 1500)],
    "many apart": [(i, (0, 5, 300, 17, 1100, 63, 64, 2)[i % 8]) for i in range(128)],
    "many runs": [*((i, 270 + 9 * i + j) for i in range(6) for j in range(4)), *((7, j) for j in range(13))],
    "a prompt": [(1, 290 + i) for i in range(70)],
    "many in turn": [(i % 3, 600 + i // 3) for i in range(100)],
    "many holes": [*((0, 90 + 3 * (i * 7 % 40)) for i in range(40)), *((1, 7 * i) for i in range(20))],
}


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["f16", "bf16", "fp8", "q8_0", "q4_0"])
@pytest.mark.parametrize("step", STEPS)
def test_attention_of_several_tokens_with_their_heads_equals_its_parts(
    cuda: Device, step: str, format: str
) -> None:
    """Each token sees the keys that the step itself writes, as far as they are before it."""
    rng, op, tried, places = generator(f"{step} {format}"), "rope_qkv_attention", 0, STEPS[step]
    more: tuple[dict[str, Any], ...] = ({}, {"window": 6}, {"window": 700, "cap": 5.0}, {"chunk": 128})
    for kind, heads in itertools.product(
        ("plain", "biases", "norms"), ((4, 2, 64), (8, 1, 128), (6, 3, 128))
    ):
        for style, seen in enumerate(more):
            rotated = heads[2] if style < 2 else 16 * style
            how = {"kind": kind, "style": style % 2, "places": places, "n_rot": rotated}
            one = fused_cases.qkv(rng, format, len(places), heads, **how)
            args = {**one.args, "scale": heads[2] ** -0.5, "window": 0, **seen}
            sinks = (f32(rng, heads[0], scale=4),) if style == 1 else ()
            shape = (len(places), heads[0] * heads[2])
            one = replace(one, inputs=(*one.inputs, *sinks), shape=shape, args=args, bound=ROUNDED)
            tried += equals_parts(cuda, one, format)
    skip_where_none(op, tried)


def equals_parts(device: Device, one: Case, format: str) -> bool:
    """Compares attention with its heads, and both caches of a format, with their definition and with what the
    steps give one by one. False: the device has no kernel for it.
    """
    op = "rope_qkv_attention"
    if lacks(device, op, one):
        return False
    found, parts = run_all(device, op, one), attention_parts(device, one)
    for got, part, want in zip(found, parts, define_all(op, one), strict=True):
        how = one if got is found[0] else replace(one, format=format)
        check(how, got, want)
        check(how, got, part)
    return True


def attention_parts(device: Device, one: Case) -> list[Array]:
    """rope_qkv_write, then attention over the caches that it has written."""
    plain = {name: one.args[name] for name in ("style", "biases", "norms", "eps")}
    q = one.inputs[0]
    own = 9 + 3 * one.args["biases"] + 2 * one.args["norms"]
    before = replace(one, inputs=one.inputs[:own], shape=q[0].shape, args=plain)
    rotated, *caches = run_all(device, "rope_qkv_write", before)
    formats = [format for _, format in one.inputs[1:3]]
    inputs = ((rotated, "f32"), *zip(caches, formats, strict=True), *one.inputs[3:6], *one.inputs[own:])
    args = {name: one.args[name] for name in ("scale", "window", "cap", "chunk") if name in one.args}
    return [run(device, "attention", Case("", inputs, one.shape, args=args)), *caches]


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 6])
def test_attention_with_its_heads_leaves_its_counters_zero(cuda: Device, tokens: int) -> None:
    """The counters of splits serve every run of a program, so a second run gives the bits of the first."""
    one = fused_cases.qkv(generator("again"), "f16", tokens, (8, 2, 128), past=3000)
    one = replace(one, shape=(tokens, 1024), args={**one.args, "scale": 0.1, "window": 0})
    op = "rope_qkv_attention"
    skip_where_none(op, not lacks(cuda, op, one))
    first = run(cuda, op, one)
    for _ in range(3):
        assert run(cuda, op, one).tobytes() == first.tobytes()
