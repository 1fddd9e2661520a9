"""Latent attention of DeepSeek's size (rows of 512 + 64 numbers) on a GPU against the CPU: all cache formats,
one and many tokens, runs and single tokens of several slots in one step, all positions, listed ones, and
those of one rank's blocks; `pytest -m gpu`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from accuracy import nmse
from attention_cases import Tokens
from context_cases import parts_case
from kernel_cases import check
from latent_cases import past_of
from one_step import Case, encode, f32, generator, kernels_of, run

from satchel.quant import FORMATS
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Array

LATENT, ROW = 512, 576
ROUNDED = 1e-3  # nmse: rows in blocks are met as bfloat16, and large scores are the more wrong for it
FORMATS_OF_TENSOR_CORES = [f for f in CACHE_TYPES if f in ("f16", "bf16", "fp8", "q8_0", "q4_0")]
STEPS: dict[str, tuple[int, Tokens]] = {
    "one": (16, [(0, 0)]),
    "one at a border": (16, [(0, 64)]),
    "one far": (16, [(0, 2500)]),
    "of 128 heads": (128, [(0, 130), (0, 131)]),
    "of 40 heads": (40, [(0, 130), (1, 3), (1, 4)]),
    "batch": (16, [(s, 37 * s) for s in range(20)]),
    "prompt": (16, [(0, p) for p in range(20, 320)]),
    "mixed": (16, [(2, 900), (1, 0), (1, 1), *((0, p) for p in range(5, 160)), (3, 63), (4, 64)]),
    "prompt of 128 heads": (128, [(0, p) for p in range(140)]),
}


def has_wgmma(card: Device) -> bool:
    return card.info().variant == "cuda 9.0"


def is_portable(card: Device) -> bool:
    """Whether it has none but the portable kernels for latent attention."""
    return card.info().variant == "cuda 7.5"


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS_OF_TENSOR_CORES)
@pytest.mark.parametrize("step", STEPS)
def test_it_equals_the_cpus(card: Device, cpu: Device, format: str, step: str) -> None:
    heads, tokens = STEPS[step]
    rng = generator(f"{format} {step}")
    cache, place = past_of(rng, format, tokens, ROW)
    inputs = (f32(rng, len(tokens), heads, ROW), cache, cache, *place)
    shape, args = (len(tokens), heads * LATENT), {"scale": 0.07, "window": 0, "cap": 0.0, "value": LATENT}
    one = Case(f"{format} {step}", inputs, shape, args=args, bound=ROUNDED)
    kernel = f"attention_cut_{format}+attention_cut_join_{format}"
    if is_portable(card):
        kernel = "attention"
    elif not has_wgmma(card):
        kernel = f"attention_latent_warp_{format}+attention_cut_join_{format}"
    elif len(tokens) > 128:
        kernel = f"attention_latent_{format}"
    check(one, run(card, "attention", one, kernel=kernel), run(cpu, "attention", one))


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS_OF_TENSOR_CORES)
def test_listed_positions_equal_the_cpus(card: Device, cpu: Device, format: str) -> None:
    rng = generator(f"{format} listed")
    tokens = [(0, 5), (0, 699), (0, 700), (1, 63), (2, 64), (3, 0)]
    for heads, most in ((16, 64), (128, 300)):
        cache, place = past_of(rng, format, tokens, ROW)
        positions = np.full((len(tokens), most), -1, np.int32)
        for row, (_, pos) in zip(positions, tokens, strict=True):
            n = min(most, pos + 1) - (pos == 699)  # one list ends before it must
            row[:n] = np.sort(rng.permutation(pos + 1)[:n])
        inputs = (f32(rng, len(tokens), heads, ROW), cache, cache, *place, (positions, "i32"))
        shape, args = (len(tokens), heads * LATENT), {"scale": 0.07, "value": LATENT}
        one = Case(f"{format} {heads}", inputs, shape, args=args, bound=ROUNDED)
        first = "attention_listed" if has_wgmma(card) else "attention_listed_warp"
        kernel = f"{first}_{format}+attention_listed_join_{format}"
        if is_portable(card):
            kernel = "sparse_attention"
        check(one, run(card, "sparse_attention", one, kernel=kernel), run(cpu, "sparse_attention", one))


def states_of(parts: Array, heads: int) -> tuple[Array, Array]:
    """Values (T, H, LATENT) that heads found, and the logarithms of their sums of weights (T, H); -inf where
    they saw no position. The largest score itself may be rounded either way.
    """
    sums, most, total = np.split(parts, [heads * LATENT, heads * (LATENT + 1)], axis=1)
    with np.errstate(divide="ignore"):
        weighed = most + np.log(total)
    return sums.reshape(-1, heads, LATENT) / np.maximum(total, 1e-30)[..., None], weighed


def as_met(one: Case, format: str) -> Case:
    """The call with queries and rows as tensor cores meet them: f16 for caches of f16 and FP8, else bfloat16.
    With rows of q8_0, whose scores are large here, that alone moves a logarithm of a sum of weights by 0.16.
    """
    (q, _), (rows, _), *rest = one.inputs
    kind = "f16" if format in ("f16", "fp8") else "bf16"
    numbers = (q, FORMATS[format].decode(rows))
    met, cache = ((FORMATS[kind].decode(encode(kind, x)), "f32") for x in numbers)
    return replace(one, inputs=(met, cache, cache, *rest[1:]))


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS_OF_TENSOR_CORES)
@pytest.mark.parametrize("step", STEPS)
def test_softmax_states_of_dealt_blocks_are_the_cpus(
    card: Device, cpu: Device, format: str, step: str
) -> None:
    """Blocks are dealt at random: of a short past a rank may have none."""
    heads, tokens = STEPS[step]
    rng = generator(f"{format} {step} dealt")
    for deal in ((1, 0), (2, 0), (2, 1), (3, 2)):
        one = parts_case(rng, format, (heads, 1, ROW), tokens, deal, value=LATENT, turns=False, scale=0.07)
        kernel = f"deal_blocks+attention_dealt_{format}+attention_dealt_join" if has_wgmma(card) else ""
        found, weighed = states_of(run(card, "attention_parts", one, kernel=kernel), heads)
        exact = as_met(one, format) if kernel else one
        wanted, meant = states_of(run(cpu, "attention_parts", exact), heads)
        assert nmse(found, wanted) <= ROUNDED, one.name
        np.testing.assert_allclose(weighed, meant, rtol=1e-3, atol=0.01)


@pytest.mark.parametrize("format", FORMATS_OF_TENSOR_CORES)
def test_which_dealt_blocks_tensor_cores_take(dry: Device, format: str) -> None:
    """Rows of 576 numbers without caps; others have the portable kernel, and so has a cache of float32."""
    rng = generator(f"{format} which")
    tokens: Tokens = [(0, 130), (1, 3)]

    def first(heads: int, row: int, value: int, kind: str, **args: float) -> str:
        one = parts_case(rng, kind, (heads, 1, row), tokens, (2, 1), value=value, turns=False, **args)
        return kernels_of(dry, "attention_parts", one, pad=0)[0]

    dealt = f"deal_blocks+attention_dealt_{format}+attention_dealt_join"
    assert first(16, ROW, LATENT, format) == first(128, ROW, LATENT, format) == dealt
    assert first(16, ROW, LATENT, format, cap=5.0) == "attention_parts"
    assert first(16, 96, 64, format) == "attention_parts"
    assert first(16, ROW, LATENT, "f32") == "attention_parts"
