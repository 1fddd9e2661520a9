"""RoPE of many tokens with the writes of keys and values (cext/cuda/rope_rows.cu). On the device "dry", which
has CUDA's host code and tables, which calls get it; `pytest -m gpu` computes by it.
"""

from __future__ import annotations

import fused_cases
import numpy as np
import pytest
from accuracy import nmse
from kernel_cases import check
from one_step import define, generator, kernels_of, run_all

from satchel.quant import FORMATS
from satchel.runtime.device.device import Device

ROPE, PORTABLE = "rope_qkv_rows", "rope_qkv_write"
CACHES = ("f32", "f16", "bf16", "fp8")
KINDS = ("plain", "biases", "norms")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", CACHES)
def test_many_tokens_have_a_group_each_for_all_their_heads(dry: Device, cache: str, kind: str) -> None:
    for heads in ((4, 2, 64), (3, 1, 128), (2, 2, 256), (6, 3, 32)):
        many = fused_cases.qkv(generator("rope"), cache, 40, heads, kind=kind)
        assert kernels_of(dry, PORTABLE, many)[0] == ROPE
        few = fused_cases.qkv(generator("rope"), cache, 20, heads, kind=kind)
        assert kernels_of(dry, PORTABLE, few) == (PORTABLE,)


def test_other_heads_and_caches_in_blocks_have_the_portable_kernel(dry: Device) -> None:
    for cache, heads, n_rot in (("q8_0", (4, 2, 64), 64), ("f16", (4, 2, 96), 96), ("f16", (4, 2, 64), 20)):
        one = fused_cases.qkv(generator("rope"), cache, 40, heads, n_rot=n_rot)
        assert kernels_of(dry, PORTABLE, one) == (PORTABLE,), (cache, heads, n_rot)


# --- on a card


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", CACHES)
def test_rope_of_many_tokens_has_the_portable_kernels_numbers(card: Device, cache: str, kind: str) -> None:
    """Its very bits, but for the order in which a head's norm sums; both kinds of pairs, heads of which a
    part is rotated, more heads than a group takes at a time, and keys and values that are large or 0.
    """
    for style in (0, 1):
        for tokens, heads, n_rot in (
            (32, (4, 2, 64), 64),
            (77, (32, 8, 128), 128),
            (40, (24, 24, 128), 32),
            (33, (8, 2, 256), 64),
            (50, (70, 10, 32), 32),
        ):
            one = fused_cases.qkv(
                generator(f"rope {cache}"),
                *(cache, tokens, heads),
                kind=kind,
                style=style,
                n_rot=n_rot,
                extreme=tokens == 40,
            )
            found = run_all(card, PORTABLE, one, kernel=ROPE)
            want = run_all(card, PORTABLE, one, kernel=PORTABLE)
            check(one, found[0], define(PORTABLE, one))
            for got, same in zip(found, want, strict=True):
                if kind == "norms":
                    decoded = [
                        x if x.dtype == np.float32 else FORMATS[cache].decode(x).astype(np.float64)
                        for x in (got, same)
                    ]
                    assert nmse(*decoded) <= 1e-5, one.name  # one step of FP8 here and there
                else:
                    assert got.tobytes() == same.tobytes(), one.name
