"""The kernels for compute capability 8.0 and later ones without wgmma, and the few of 7.5: which calls get
them (on the device "dry", which has CUDA's host code and tables, and passes for such a card). `pytest -m gpu`
computes by them, where the library has them (SATCHEL_CUDA_LOWERED).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fused_cases
import numpy as np
import pytest
from attention_cases import Tokens
from devices import opened
from eight_bits import check_tokens, halves
from expert_cases import products
from gpu_calls import FEW, PACKED, RUNS, SHORT, attention, packed_kernels, product, weights_of
from kernel_cases import check
from latent_cases import past_of
from one_step import Case, define, f32, generator, kernels_of, refused, run

from satchel.quant import FORMATS
from satchel.runtime.device.device import Device

CARDS = ("dry 8.0", "dry 8.6", "dry 8.9")
BOUND = 1e-3  # nmse: weights and activations meet as bfloat16, or in 16 bits
INT8 = "columns_int8_convert+columns_int8"  # prompts by int8, whose activations have 16 bits
INT8_BOUND = 1e-6  # nmse of a token
TILES = 5e-5  # nmse of mixtures' prompts, of usual numbers
GATED = {"expert_linear": 1, "expert_swiglu": 2}  # weights of these ops
FP8 = ("f8_e4m3", "f8_e5m2")
FP8_OPS = ("linear", "linear_add", "linear_swiglu")
FP8_BOUND = 1e-8  # nmse of a token, whose activations the definition gets as E4M3 numbers


@pytest.fixture(scope="module", params=CARDS)
def dry_card(request: pytest.FixtureRequest) -> Iterator[Device]:
    with opened(request.param) as device:
        yield device


def kernel_of(device: Device, op: str, one: Case, packed: tuple[int, ...]) -> str:
    return kernels_of(device, op, one, packed)[0]


def large(device: Device) -> bool:
    """Whether its groups have 163 KB of shared memory, not 99."""
    return device.info().variant.endswith("8.0")


@pytest.mark.parametrize("format", PACKED)
def test_packed_products_of_any_number_of_columns_have_a_fast_kernel(dry_card: Device, format: str) -> None:
    for tokens in (1, 3, 4, 5, 8, 9, 16, 30, 64, 100, 300):
        for op in ("linear", "linear_add", "linear_swiglu"):
            one = product(op, format, tokens, 512, 256)
            packed = weights_of(one)
            found = kernel_of(dry_card, op, one, packed)
            several = tuple(f"columns_convert+columns_{kind}_" for kind in ("chunk", "warp", "shared"))
            if tokens > 64 and not large(dry_card):
                several += (INT8,)
            assert found.startswith("gemv" if tokens <= 4 else several), (tokens, found)
            if tokens <= 16 or tokens > 64:  # of more columns where they fit beside the weights
                assert ("chunk" in found) == (5 <= tokens <= 16), (tokens, found)
            elif large(dry_card):
                assert "chunk" in found, (tokens, found)


def test_prompts_unpack_a_weight_once_for_256_columns(dry_card: Device) -> None:
    """Where groups have room for the operands, of 16-bit weights for 128 columns. Other cards take int8."""
    for format, columns in (("q4_k", 256), ("q6_k", 256), ("q8_0", 128)):
        one = product("linear", format, 256, 256, 16384)
        found = packed_kernels(dry_card, "linear", one)
        assert found[0] == (f"columns_convert+columns_shared_{columns}" if large(dry_card) else INT8), format
        assert any("columns_shared" in kernel for kernel in found) == large(dry_card)


@pytest.mark.parametrize("op", ["linear", "linear_add", "linear_swiglu"])
def test_prompts_are_in_int8_where_float32_sums_have_half_rate(op: str) -> None:
    """By the table of cext/cuda/rates.h; up to 64 tokens the way of the weights counts."""
    for capability in ("8.0", "8.6", "8.7", "8.9"):
        with opened(f"dry {capability}") as device:
            for tokens in (64, 65, 300):
                one = product(op, "q4_k", tokens, 4096, 4096)
                found = kernel_of(device, op, one, weights_of(one))
                assert (found == INT8) == (tokens > 64 and capability in ("8.6", "8.9")), (capability, found)


@pytest.mark.parametrize("format", PACKED)
def test_the_tuner_may_choose_between_bf16_and_int8(dry_card: Device, format: str) -> None:
    for op in ("linear", "linear_add", "linear_swiglu"):
        for tokens in (16, 100, 300):
            one = product(op, format, tokens, 512, 256)
            found = packed_kernels(dry_card, op, one)
            assert INT8 in found, (op, tokens)
            assert any(kernel.startswith("columns_convert+columns_warp_") for kernel in found), (op, tokens)
    for op in ("norm_linear", "norm_linear_swiglu", "norm_linear_geglu"):
        one = fused_cases.normed(generator(op), (format, format), 100, 256, 48)
        args = {"style": 0} if op == "norm_linear_geglu" else {}
        shape = (100, 96 if op == "norm_linear" else 48)
        one = replace(one, shape=shape, args={**one.args, **args})
        assert INT8 in kernels_of(dry_card, op, one, (1, 2)), op


def test_cards_with_wgmma_and_the_oldest_have_no_int8_for_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SATCHEL_CUDA_CAPABILITY", raising=False)  # of the card that is open meanwhile
    for name in ("dry", "dry 7.5"):
        with opened(name) as device:
            one = product("linear", "q4_k", 300, 512, 256)
            assert INT8 not in kernels_of(device, "linear", one, weights_of(one))


def test_rows_too_long_for_gemv_are_for_warps(dry_card: Device) -> None:
    """Four columns of 14,336 numbers take 123 KB beside the rings."""
    for format in ("q4_k", "q8_0"):
        found = kernel_of(dry_card, "linear", product("linear", format, 4, 14336, 64), (1, 2))
        assert found == "columns_convert+columns_chunk_8"


def test_groups_of_eight_waves_serve_where_those_of_sixteen_find_no_room(dry_card: Device) -> None:
    """Rings of sixteen waves take 107 KB for Q6_K, 139 KB for Q8_0."""
    for format in ("q6_k", "q8_0"):
        found = kernel_of(dry_card, "linear", product("linear", format, 1, 4096, 64), (1, 2))
        assert found == (f"gemv_{format}" if large(dry_card) else f"gemv_8_{format}")
    found = kernel_of(dry_card, "linear", product("linear", "q4_k/q6_k", 1, 4096, 64), (1, 2))
    assert found == ("gemv_mixed" if large(dry_card) else "gemv_8_mixed")


def test_other_weights_have_kernels_by_mma_for_prompts(dry_card: Device) -> None:
    for format in ("f16", "q2_k", "iq2_s"):
        assert (
            kernel_of(dry_card, "linear", product("linear", format, 100, 512, 256), ())
            == "wide_tiles+linear_warp"
        )


@pytest.mark.parametrize("op", ["linear", "linear_add", "linear_swiglu"])
def test_weights_of_16_bits_have_a_kernel_for_few_columns(dry_card: Device, op: str) -> None:
    for format in ("f16", "bf16"):
        for tokens, columns in ((5, 8), (9, 16), (30, 32), (64, 64)):
            found = kernel_of(dry_card, op, product(op, format, tokens, 512, 256), ())
            assert found == f"columns_convert+columns_dense_warp_{columns}"
        assert "columns_dense" not in kernel_of(dry_card, op, product(op, format, 100, 512, 256), ())


@pytest.mark.parametrize(
    ("heads", "args", "wide", "split"),
    [
        ((8, 2, 64), {}, "64", "64_8"),
        ((20, 2, 64), {}, "64", "64_16"),
        ((40, 2, 128), {}, "128", "128_16"),
        ((4, 2, 96), {"cap": 5.0}, "any_128", "any_128"),
        ((40, 2, 256), {}, "256", "256_8"),
        ((8, 2, 256), {"cap": 5.0}, "any_256", "any_256"),
        ((4, 2, 512), {}, "any_512", "any_512"),
    ],
)
def test_attention_has_kernels_where_their_room_suffices(
    dry_card: Device, heads: tuple[int, int, int], args: dict[str, Any], wide: str, split: str
) -> None:
    few = f"attention_split_{split}_f16"
    assert kernel_of(dry_card, "attention", attention("f16", heads, FEW, **args), ()) == few
    some, found = (
        kernel_of(dry_card, "attention", attention("f16", heads, tokens, **args), ())
        for tokens in (SHORT, RUNS)
    )
    if heads[2] > 256 and not large(dry_card):
        assert "attention_wide" not in found
    else:
        if heads[2] == 256 and not large(dry_card):
            wide = wide.replace("256", "halved_256")
        assert some == f"attention_wide_{wide}_f16+{few}"
        assert found == f"{some}+attention_join_f16"


def test_latent_attention_of_deepseeks_size_has_a_kernel(dry_card: Device) -> None:
    for heads, tokens in ((16, FEW), (128, FEW), (16, RUNS)):
        cache, place = past_of(generator("latent"), "f16", tokens, 576)
        inputs = (f32(generator("q"), len(tokens), heads, 576), cache, cache, *place)
        args = {"scale": 0.07, "window": 0, "cap": 0.0, "value": 512}
        one = Case("latent", inputs, (len(tokens), heads * 512), args=args)
        want = "attention_latent_warp_f16+attention_cut_join_f16"
        assert kernel_of(dry_card, "attention", one, ()) == want


def mixture(op: str, format: str, tokens: int, k: int, n: int, of: tuple[int, int]) -> Case:
    """A product of experts, of: those of a token and in all. Gate and up have one input row for all."""
    one = products(
        generator(f"{op} {format} {tokens}"), format, GATED[op], tokens, k, n, GATED[op] == 1, of=of
    )
    (x, act), *rest = one.inputs
    return replace(one, inputs=((FORMATS[act].decode(x), "f32"), *rest), bound=TILES)


@pytest.mark.parametrize("op", GATED)
@pytest.mark.parametrize("format", PACKED)
def test_prompts_of_mixtures_have_tiles_of_pairs_for_every_format(
    dry_card: Device, format: str, op: str
) -> None:
    """Few pairs of token and expert have groups of their own; narrow tiles are for few pairs of an expert."""
    weights = tuple(range(1, 1 + GATED[op]))
    tiles = {n: f"expert_list_{n}+expert_warp_{n}_{format}" for n in (32, 64)}
    for tokens, found in ((8, f"experts_few_{format}"), (100, tiles[32]), (400, tiles[64])):
        kernel = kernel_of(dry_card, op, mixture(op, format, tokens, 512, 64, (4, 32)), weights)
        assert kernel == found, tokens


@pytest.mark.parametrize("op", FP8_OPS)
@pytest.mark.parametrize("format", FP8)
def test_fp8_weights_have_tensor_cores_from_8_9_on(dry_card: Device, format: str, op: str) -> None:
    """For any number of tokens; before that kernels of other weights take them."""
    for tokens, columns in ((1, 8), (8, 8), (9, 16), (32, 32), (64, 64), (65, 64), (300, 64)):
        found = kernel_of(dry_card, op, product(op, format, tokens, 512, 256), ())
        named = found == f"fp8_quantize+fp8_few_{columns}"
        assert named == dry_card.info().variant.endswith("8.9"), (tokens, found)


@pytest.mark.parametrize("format", PACKED)
def test_packed_weights_have_kernels_on_the_oldest_cards(format: str) -> None:
    """Of any number of tokens and any length of rows, as there is no other kernel that reads them."""
    with opened("dry 7.5") as device:
        for k in (512, 4096, 14336):
            for tokens in (1, 4, 5, 64, 300):
                one = product("linear", format, tokens, k, 64)
                found = kernel_of(device, "linear", one, weights_of(one))
                several = "batch_convert+batch_7_32+batch_finish"
                assert found == several or (tokens <= 4 and found == f"gemv_7_{format}"), (k, tokens, found)
                assert tokens > 1 or k > 4096 or found != several
        for op, count in GATED.items():
            for tokens, want in ((8, "experts_few"), (400, "experts_many")):
                one = mixture(op, format, tokens, 5120, 64, (2, 3))
                found = kernel_of(device, op, one, tuple(range(1, 1 + count)))
                assert found == f"{want}_{format}", (tokens, found)


# --- on a card


@pytest.mark.gpu
@pytest.mark.parametrize("op", GATED)
@pytest.mark.parametrize("format", PACKED)
def test_prompts_of_mixtures_equal_their_definition(card: Device, format: str, op: str) -> None:
    """Experts that nobody chose, of one pair and of several tiles, by every kernel that the card has."""
    weights = tuple(range(1, 1 + GATED[op]))
    for tokens, k, n, of in ((30, 256, 48, (8, 128)), (130, 512, 130, (2, 5)), (600, 1024, 272, (1, 4))):
        one = mixture(op, format, tokens, k, n, of)
        want = define(op, one)
        for kernel in kernels_of(card, op, one, weights):
            how = replace(one, name=f"{one.name} {kernel}")
            check(how, run(card, op, one, packed=weights, kernel=kernel), want)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["linear", "linear_add", "linear_swiglu"])
@pytest.mark.parametrize("format", [*PACKED, "f16", "bf16", "q2_k", "q4_k/q6_k"])
def test_products_equal_their_definition(card: Device, format: str, op: str) -> None:
    if op == "linear_add" and "/" in format:
        pytest.skip("it has one weight")
    for tokens in (1, 2, 4, 5, 8, 13, 16, 17, 32, 33, 64, 65, 130, 300):
        for k, n in ((256, 48), (1024, 130), (4096, 272)):
            one = replace(product(op, format, tokens, k, n), bound=BOUND)
            packed = weights_of(one)
            check(one, run(card, op, one, packed=packed), define(op, one))


def needs_int8(device: Device, op: str, one: Case, packed: tuple[int, ...]) -> None:
    if INT8 not in kernels_of(device, op, one, packed):
        pytest.skip(f"{device.info().variant} has no kernel for prompts in int8")


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["linear", "linear_add", "linear_swiglu"])
@pytest.mark.parametrize("format", [*PACKED, "q4_k/q6_k", "q8_0/q4_k"])
def test_prompts_in_int8_equal_their_definition(card: Device, format: str, op: str) -> None:
    """Rows of one chunk, of less than one and of parts of K; matrices of less than a group's rows."""
    if op == "linear_add" and "/" in format:
        pytest.skip("it has one weight")
    narrow = all(FORMATS[f].block == 32 for f in format.split("/"))
    for tokens, k, n in (
        (65, 288 if narrow else 256, 48),
        (130, 1024, 130),
        (300, 4096, 272),
        (66, 14336, 40),
    ):
        one = replace(product(op, format, tokens, k, n), bound=INT8_BOUND)
        packed = weights_of(one)
        needs_int8(card, op, one, packed)
        found, want = run(card, op, one, packed=packed, kernel=INT8), define(op, one)
        for t in (0, 15, 16, 63, 64, tokens - 1):
            check(replace(one, name=f"{one.name} token {t}"), found[t : t + 1], want[t : t + 1])
        check(one, found, want)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["linear", "linear_add"])
@pytest.mark.parametrize("format", PACKED)
def test_prompts_in_int8_of_extreme_activations(card: Device, format: str, op: str) -> None:
    """Zeros, tiny, huge and outlying rows, each beside the others; a row below 1e-36 counts as zeros, and a
    NaN stays in its row.
    """
    for tokens, k, n in ((70, 512, 130), (129, 4096, 48)):
        one = replace(product(op, format, tokens, k, n, wild=True), bound=INT8_BOUND)
        one.inputs[0][0][20, 5] = np.nan
        packed = weights_of(one)
        needs_int8(card, op, one, packed)
        found, want = run(card, op, one, packed=packed, kernel=INT8), define(op, one)
        for t in range(tokens):
            if t == 1 and op == "linear":
                assert np.abs(found[t]).max() <= 1e-35
            else:
                check(replace(one, name=f"{one.name} token {t}"), found[t : t + 1], want[t : t + 1])


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["norm_linear", "norm_linear_swiglu", "norm_linear_geglu"])
@pytest.mark.parametrize("format", PACKED)
def test_prompts_in_int8_with_a_norm_equal_their_definition(card: Device, format: str, op: str) -> None:
    for tokens, k, n in ((65, 256, 48), (130, 4096, 130)):
        one = fused_cases.normed(generator(f"{op} {format} int8"), (format, format), tokens, k, n)
        args = {"style": 0} if op == "norm_linear_geglu" else {}
        shape = (tokens, 2 * n if op == "norm_linear" else n)
        one = replace(one, bound=INT8_BOUND, shape=shape, args={**one.args, **args})
        needs_int8(card, op, one, (1, 2))
        check(one, run(card, op, one, packed=(1, 2), kernel=INT8), define(op, one))


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["post_norm_linear", "post_norm_linear_swiglu", "post_norm_linear_geglu"])
def test_prompts_in_int8_with_both_norms_equal_their_definition(card: Device, op: str) -> None:
    for formats in (("q4_k", "q6_k"), ("q8_0", "q8_0")):
        for tokens, k, n in ((65, 256, 48), (130, 1024, 132)):
            one = fused_cases.posted(generator(f"{op} {formats} int8"), formats, tokens, k, n)
            args = {"style": 1} if op == "post_norm_linear_geglu" else {}
            shape = (tokens, k + (2 * n if op == "post_norm_linear" else n))
            one = replace(one, bound=INT8_BOUND, shape=shape, args={**one.args, **args})
            needs_int8(card, op, one, (1, 2))
            check(one, run(card, op, one, packed=(1, 2), kernel=INT8), define(op, one))


@pytest.mark.gpu
def test_prompts_in_int8_give_the_same_bits_again(card: Device) -> None:
    """Where parts of K are added by the last group too."""
    for format in ("q4_k", "q6_k", "q8_0"):
        one = product("linear", format, 100, 14336, 130)
        packed = weights_of(one)
        needs_int8(card, "linear", one, packed)
        first = run(card, "linear", one, packed=packed, kernel=INT8).tobytes()
        assert all(run(card, "linear", one, packed=packed, kernel=INT8).tobytes() == first for _ in range(3))


@pytest.mark.gpu
@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
@pytest.mark.parametrize("op", FP8_OPS)
@pytest.mark.parametrize("format", FP8)
def test_fp8_products_equal_their_definition_at_8_9(format: str, op: str, fast: bool) -> None:
    """By m16n8k32, of activations that are two E4M3 numbers, with --precision fast one. There are zeros,
    tiny, huge and outlying ones.
    """
    with opened("cuda 8.9", fast=fast) as device:
        for tokens in (1, 2, 5, 8, 9, 16, 17, 32, 33, 64, 65, 130, 300):
            for k, n in ((128, 40), (4096, 272) if tokens in (5, 64, 300) else (1024, 130)):
                one = product(op, format, tokens, k, n, wild=True)
                kernel = kernel_of(device, op, one, ())
                assert kernel.startswith("fp8_quantize+fp8_few_"), kernel
                (x, _), *others = one.inputs
                rounded = replace(one, inputs=((halves(x, 1 if fast else 2), "f32"), *others))
                with np.errstate(over="ignore", invalid="ignore"):
                    want = define(op, rounded)
                check_tokens(one, run(device, op, one), want, FP8_BOUND)


@pytest.mark.gpu
@pytest.mark.parametrize("format", FP8)
def test_an_activation_that_is_not_finite_reaches_its_token_alone_at_8_9(format: str) -> None:
    one = product("linear", format, 20, 512, 48)
    x = np.array(one.inputs[0][0])
    x[3, 100], x[7, 300] = np.inf, np.nan
    one = replace(one, inputs=((x, "f32"), *one.inputs[1:]))
    with opened("cuda 8.9") as device:
        got = run(device, "linear", one)
    assert np.isnan(got[[3, 7]]).all() and np.isfinite(np.delete(got, [3, 7], 0)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 4, 5, 16, 40, 128, 300])
@pytest.mark.parametrize("op", ["norm_linear", "norm_linear_swiglu", "norm_linear_geglu"])
def test_products_with_a_norm_equal_their_definition(card: Device, op: str, tokens: int) -> None:
    rng, checked = generator(f"{op} {tokens} older"), 0
    for format in PACKED:
        for k, n in ((256, 48), (4096, 130)):
            one = fused_cases.normed(rng, (format, format), tokens, k, n)
            args = {"style": 0} if op == "norm_linear_geglu" else {}
            shape = (tokens, 2 * n if op == "norm_linear" else n)
            one = replace(one, bound=BOUND, shape=shape, args={**one.args, **args})
            # Of so many tokens Hopper has a norm of its own; 7.5 has one of five and more, and of long rows.
            lacking = tokens > 128 or card.info().variant == "cuda 7.5"
            if lacking and refused(card, op, one, packed=(1, 2)):
                continue
            check(one, run(card, op, one, packed=(1, 2)), define(op, one))
            checked += 1
    assert checked or tokens > 4, "each card has it for few tokens"


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [FEW, RUNS, SHORT], ids=["few", "runs", "short"])
@pytest.mark.parametrize("format", ["f16", "bf16", "fp8", "q8_0", "q4_0"])
def test_attention_equals_its_definition(card: Device, format: str, tokens: Tokens) -> None:
    for heads, args in (
        ((8, 2, 64), {}),
        ((20, 2, 64), {"window": 50}),
        ((8, 2, 128), {}),
        ((40, 2, 128), {"chunk": 64}),
        ((4, 2, 96), {"cap": 2.0}),
        ((8, 2, 256), {}),
        ((4, 2, 512), {"alibi": 1}),
    ):
        one = attention(format, heads, tokens, **args)
        check(one, run(card, "attention", one), define("attention", one))
