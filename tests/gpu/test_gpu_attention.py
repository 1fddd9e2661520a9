"""Attention by the tensor cores of sm_90: which calls get its kernels (on the device "dry", which has CUDA's
host code and tables), and `pytest -m gpu` their results beside the definition.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import Tokens, attention_case
from gpu_calls import DRAFTS, FEW, RUNS, SHORT, attention
from kernel_cases import check
from one_step import Case, define, generator, kernels_of, plan_of, run

from satchel.runtime.device.device import Device

FORMATS = ("f16", "bf16", "fp8", "q8_0", "q4_0")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 50},
    "self alone": {"window": 1},
    "chunk": {"chunk": 64, "window": 40},
    "ahead": {"causal": 0},
    "ahead, window": {"causal": 0, "window": 30},
    "cap": {"cap": 2.0},
    "ALiBi": {"alibi": 1},
    "all": {"cap": 20.0, "alibi": 1, "causal": 0},
}


def first_kernel(device: Device, one: Case) -> str:
    return kernels_of(device, "attention", one)[0]


@pytest.mark.parametrize(
    ("heads", "args", "wide", "split"),
    [
        ((8, 2, 64), {}, "64", "64_8"),
        ((20, 2, 64), {}, "64", "64_16"),
        ((71, 1, 64), {"sinks": 1.0, "window": 9, "chunk": 8}, "64", "64_16"),
        ((4, 2, 128), {}, "128", "128_8"),
        ((40, 2, 128), {}, "128", "128_16"),
        ((40, 2, 256), {}, "256", "256_8"),
        ((4, 2, 64), {"cap": 5.0}, "any_64", "any_128"),
        ((4, 2, 64), {"causal": 0}, "any_64", "any_128"),
        ((4, 2, 96), {}, "any_128", "any_128"),
        ((4, 2, 32), {"alibi": 1}, "any_64", "any_128"),
        ((4, 2, 192), {}, "any_256", "any_256"),
        ((4, 2, 256), {"cap": 5.0}, "any_256", "any_256"),
        ((4, 2, 512), {}, "any_512", "any_512"),
    ],
)
def test_calls_get_a_kernel_of_tensor_cores(
    dry: Device, heads: tuple[int, int, int], args: dict[str, Any], wide: str, split: str
) -> None:
    """Of few tokens one; up to 128 tokens it joins the splits too."""
    few = f"attention_split_{split}_f16"
    some = f"attention_wide_{wide}_f16+{few}"
    assert first_kernel(dry, attention("f16", heads, FEW, **args)) == few
    assert first_kernel(dry, attention("f16", heads, SHORT, **args)) == some
    assert first_kernel(dry, attention("f16", heads, RUNS, **args)) == f"{some}+attention_join_f16"


@pytest.mark.parametrize(
    ("heads", "format"), [((4, 2, 520), "f16"), ((4, 2, 68), "f16"), ((4, 2, 64), "f32")]
)
def test_other_calls_get_portable_kernels(dry: Device, heads: tuple[int, int, int], format: str) -> None:
    one = attention_case(generator("other"), format, heads, FEW)
    segment = plan_of("attention", one, 64)[0]
    assert dry.refusal(segment) or dry.kernels(segment, 0)[0] == "attention"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", FORMATS)
def test_kinds_of_attention_equal_the_definition(cuda: Device, format: str, kind: str) -> None:
    for i, tokens in enumerate((FEW, RUNS, SHORT)):
        for d, sinks in ((64, 0.0), (128, 4.0), (256, 0.0), (512, 30.0)):
            one = attention(format, (4, 2, d), tokens, sinks=sinks if i % 2 else 0.0, **KINDS[kind])
            assert "attention_split" in first_kernel(cuda, one)
            check(one, run(cuda, "attention", one), define("attention", one))


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS)
def test_heads_of_any_size_equal_the_definition(cuda: Device, format: str) -> None:
    sizes = (32, 96, 160, 192, 320) + (() if format[0] == "q" else (40, 72, 80, 264))
    for d in sizes:
        for heads in ((3, 3, d), (20, 1, d)):
            for tokens in (FEW, RUNS):
                one = attention(format, heads, tokens)
                assert "attention_split" in first_kernel(cuda, one)
                check(one, run(cuda, "attention", one), define("attention", one))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "window", "self alone", "chunk"])
@pytest.mark.parametrize("format", FORMATS)
def test_draft_tokens_equal_the_definition(cuda: Device, format: str, kind: str) -> None:
    """A group takes a run of tokens at once, up to 16 heads of them. More than 8 heads of a KV head go token
    by token.
    """
    for d in (64, 128):
        for heads in ((2, 2, d), (4, 2, d), (6, 2, d), (5, 1, d), (8, 1, d), (16, 1, d)):
            one = attention(format, heads, DRAFTS, sinks=4.0 if heads[0] == 6 else 0.0, **KINDS[kind])
            assert "attention_split" in first_kernel(cuda, one)
            check(one, run(cuda, "attention", one), define("attention", one))


@pytest.mark.gpu
def test_a_tokens_attention_beside_drafts_is_that_of_the_token_alone(cuda: Device) -> None:
    whole = attention("f16", (8, 2, 128), DRAFTS)
    found = run(cuda, "attention", whole)
    for at in (0, 6, 7, 12):
        alone = replace(
            whole,
            shape=(1, *whole.shape[1:]),
            inputs=tuple((a[at : at + 1], f) if len(a) == len(DRAFTS) else (a, f) for a, f in whole.inputs),
        )
        np.testing.assert_allclose(run(cuda, "attention", alone)[0], found[at], rtol=0, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [FEW, RUNS, SHORT])
def test_a_head_that_sees_only_its_sink_is_small(cuda: Device, tokens: Tokens) -> None:
    """A sink far above all scores takes the weights; one far below takes none."""
    one = attention("f16", (4, 2, 64), tokens)
    for sink in (80.0, -80.0):
        full = replace(one, inputs=(*one.inputs, (np.full(4, sink, np.float32), "f32")))
        got = run(cuda, "attention", full)
        check(full, got, define("attention", full))
        assert (np.abs(got).max() < 1e-20) == (sink > 0)
