"""Products of FP8 weights with FP8 activations (cext/cuda/fp8.cu): the error of their scaling, in a numpy
model, and how the host splits them. The kernels run with `-m gpu` and in bench/gpu_kernels/fp8.cu.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from accuracy import nmse
from eight_bits import SCALED, halves, mxfp8

from satchel.quant import FORMATS

ROOT = Path(__file__).parents[2]


def activations(kind: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((16, 1024)).astype(np.float32)
    if kind == "outlying":
        x[:, rng.choice(1024, 4)] *= 1000
    if kind == "spread":
        x *= np.exp(3 * rng.standard_normal(x.shape)).astype(np.float32)
    return x


def bfloat16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("kind", ["normal", "outlying", "spread"])
def test_two_halves_keep_more_than_bfloat16_and_one_costs_a_thousandth(kind: str) -> None:
    x = activations(kind)
    w = (
        FORMATS["f8_e4m3"]
        .decode(
            FORMATS["f8_e4m3"].encode(
                np.random.default_rng(5).standard_normal((256, 1024)).astype(np.float32)
            )
        )
        .reshape(256, 1024)
    )
    want = x.astype(np.float64) @ w.T
    kept = (halves(x, 2), halves(x, 1), bfloat16(x))
    two, one, rounded = (nmse(v.astype(np.float64) @ w.T, want) for v in kept)
    assert two < rounded / 2
    assert two < 2e-6 < one < 2e-3  # one half: only for --precision fast


@pytest.mark.parametrize("kind", ["normal", "outlying", "spread"])
def test_mxfp8_activations_cost_mxfp4_weights_less_than_a_thousandth(kind: str) -> None:
    """What --precision fast adds to products of MXFP4 weights on block-scaled tensor cores. Most of the
    weights' own error, which the file has already, is larger.
    """
    x = activations(kind)
    real = np.random.default_rng(5).standard_normal((256, 1024)).astype(np.float32)
    blocks = FORMATS["mxfp4"].encode(real)  # type: ignore[misc]
    w = FORMATS["mxfp4"].decode(blocks).reshape(real.shape).astype(np.float64)
    want = x.astype(np.float64) @ w.T
    rounded, plain = (nmse(v.astype(np.float64) @ w.T, want) for v in (mxfp8(x), bfloat16(x)))
    assert plain < 1e-5 and 2e-5 < rounded < 1.5e-3
    assert rounded < nmse(want, x.astype(np.float64) @ real.T) / 10


def test_mxfp8_has_the_smallest_scale_that_fits() -> None:
    x = np.zeros((4, 64), np.float32)
    x[0, :4] = 448, 447, 1, 2.0**-9  # nothing is lost: the last is the smallest number
    x[1, :4] = 449, 1, 2.0**-8, 2.0**-10  # twice the scale
    x[2, :3] = 3e38, 1e-45, 1
    x[3, :2] = 2.0**-130, 1e-45
    got = mxfp8(x)
    assert got[0, :4].tolist() == [448, 448, 1, 2.0**-9]
    assert got[1, :4].tolist() == [448, 1, 2.0**-8, 0]
    assert abs(got[2, 0] / 3e38 - 1) < 2.0**-4 and got[2, 1:3].tolist() == [0, 0]
    assert got[3, :2].tolist() == [2.0**-130, 0]
    assert (got[:, 32:] == 0).all()
    x[0, 3], x[1, 40] = np.inf, np.nan
    found = np.isnan(mxfp8(x))
    assert found[0, :32].all() and found[1, 32:].all() and found.sum() == 64


def test_every_number_of_a_block_is_within_its_bound() -> None:
    x = activations("spread")
    most = np.repeat(np.abs(x.reshape(16, -1, SCALED)).max(-1), SCALED, axis=1)
    floor = most / 448 * 2.0**-10  # half of the smallest step
    assert (np.abs(halves(x, 1) - x) <= np.maximum(np.abs(x) * 2.0**-4, floor) * 1.0001).all()
    assert (np.abs(halves(x, 2) - x) <= np.maximum(np.abs(x) * 2.0**-8, floor) * 1.0001).all()


def test_zeros_stay_zeros_and_what_is_not_finite_is_seen() -> None:
    x = activations("normal")
    x[0] = 0
    x[1, :SCALED] = 0
    x[2, 5], x[3, 200] = np.inf, np.nan
    x[4] = 1e-38
    got = halves(x, 2)
    assert (got[0] == 0).all() and (got[1, :SCALED] == 0).all() and np.isfinite(got[1]).all()
    assert np.isnan(got[2, :SCALED]).all() and np.isfinite(got[2, SCALED:]).all()
    assert np.isnan(got[3, SCALED : 2 * SCALED]).all() and np.isfinite(got[3, :SCALED]).all()
    assert (np.abs(got[4]) < 1e-29).all()


@pytest.mark.parametrize("name", ["f8_e4m3", "f8_e5m2"])
def test_weights_that_are_not_finite_reach_the_product(name: str) -> None:
    fmt = FORMATS[name]
    blocks = fmt.encode(np.ones((2, 256), np.float32))
    field = blocks.dtype.names[-1]
    blocks.reshape(2, 2)[0, 1][field][3] = 0x7F if name == "f8_e4m3" else 0x7C
    with np.errstate(invalid="ignore"):
        y = halves(np.ones((1, 256), np.float32), 2) @ fmt.decode(blocks).reshape(2, 256).T
    assert not np.isfinite(y[0, 0]) and y[0, 1] == 256


CUTS = r"""
#include <stdio.h>
#include "fp8_shape.h"
int main(void) {
    static const int tokens[] = {17, 32, 64, 128, 200, 512}, rows[] = {1, 100, 4096, 28672};
    static const int widths[] = {128, 640, 4096, 14336};
    for (int t = 0; t < 6; t++)
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < 4; k++)
                for (int fast = 0; fast < 2; fast++) {
                    gpu_call c = {.n_in = 2, .flags = (uint32_t)fast};
                    int n = tokens[t] <= 32 ? 32 : tokens[t] <= 64 ? 64 : 128;
                    c.mode = FP8_WIDE | (uint32_t)n << FP8_COLUMNS;
                    c.v[0].shape[0] = c.v[1].shape[0] = tokens[t];
                    c.v[1].shape[1] = widths[k], c.v[2].shape[0] = rows[r];
                    fp8_cut cut = fp8_cut_of(&c, 132);
                    int stage = fp8_stage(n, fp8_halves(&c), cut.teams);
                    int item = fp8_item(n, fp8_halves(&c)) * fp8_blocks(&c);
                    printf("%d %d %d %d ", tokens[t], rows[r], widths[k], n);
                    printf("%d %d %d ", cut.teams, cut.parts, (int)cut.tiles);
                    printf("%d %d %d\n", stage, fp8_stages(stage), (int)fp8_scratch(&c) / item);
                }
    return 0;
}
"""


def test_cuts_cover_the_output_and_fit_into_shared_memory(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    (tmp_path / "cuts.c").write_text(CUTS)
    out = tmp_path / "cuts"
    subprocess.run(
        [compiler, "-std=gnu11", "-Wall", "-Werror", f"-I{ROOT}/cext/cuda", "-o", out, tmp_path / "cuts.c"],
        check=True,
        timeout=60,
    )
    rows = subprocess.run([out], check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert len(rows) == 6 * 4 * 4 * 2
    for row in rows:
        tokens, slots, width, n, teams, parts, tiles, stage, stages, across = map(int, row.split())
        assert across == -(-tokens // n) and tiles == -(-slots // (64 * teams)) * across
        assert 1 <= parts <= min(8, width // 128) and (parts == 1 or across == 1)
        assert stages >= 3 and stages * stage + 1024 + 128 + 512 * teams <= 227 << 10
        assert n * 4 * 64 * teams <= stages * stage  # a cluster's sums reuse the ring's memory
