"""GPTQ: standard blocks, no row worse, the same bytes however rows are split, and numpy's sums of the
minimized error.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

from satchel.quant import FORMATS
from satchel.quant.calibration.gptq import (
    Hessian,
    encode_matrix,
    gptq_codes,
    improve,
    one_blas_thread,
    prepare,
    row_errors,
)
from satchel.quant.calibration.gptq_grids import GRIDS, blocks_of, parts

K = 512


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    with one_blas_thread():
        yield


def inputs(seed: int, rows: int = 700) -> np.ndarray:
    """Correlated rows: a few directions dominate, and columns differ in size."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 40)) @ rng.standard_normal((40, K)) + 0.3 * rng.standard_normal((rows, K))
    return x * np.exp(rng.standard_normal(K))


@functools.cache
def hessian(seed: int = 0) -> Hessian:
    x = inputs(seed)
    return prepare(x.T @ x / len(x))


def weight(seed: int, rows: int = 9) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, K)) * 0.05).astype(np.float32)


def errors(name: str, x: np.ndarray, blocks: np.ndarray, h: Hessian) -> np.ndarray:
    """e H e^T of each row, in float64 from the blocks."""
    e = (FORMATS[name].decode(blocks) - x).astype(np.float64)
    return np.einsum("rk,kl,rl->r", e, h.matrix.astype(np.float64), e)


@pytest.mark.parametrize("name", GRIDS)
def test_parts_give_the_same_blocks_and_the_same_numbers(name: str) -> None:
    fmt, grid = FORMATS[name], GRIDS[name]
    assert fmt.encode is not None
    blocks = fmt.encode(weight(1) * 3 + 0.01, None)
    found = parts(grid, blocks)
    np.testing.assert_allclose(found.values().T, fmt.decode(blocks), rtol=1e-6, atol=1e-7)
    assert blocks_of(fmt, grid, found).tobytes() == blocks.tobytes()


@pytest.mark.parametrize("name", GRIDS)
def test_the_error_of_the_product_falls(name: str) -> None:
    fmt, h, x = FORMATS[name], hessian(), weight(2)
    assert fmt.encode is not None
    plain = errors(name, x, fmt.encode(x, h.diagonal), h)
    fed = errors(name, x, encode_matrix(fmt, x, h, None), h)
    assert (fed <= plain * (1 + 1e-4)).all()
    assert fed.sum() < 0.75 * plain.sum()


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "q4_1"])
def test_each_step_only_lowers_the_error(name: str) -> None:
    fmt, grid, h = FORMATS[name], GRIDS[name], hessian()
    assert fmt.encode is not None
    x = weight(4)
    w = np.ascontiguousarray(x.T)
    found = parts(grid, fmt.encode(x, None))
    assert not np.array_equal(gptq_codes(grid, found, w, h), found.code)
    last = row_errors(w - found.values(), h.matrix)
    for _ in range(3):
        found = improve(grid, found, w, h.matrix)
        now = row_errors(w - found.values(), h.matrix)
        assert (now <= last * (1 + 1e-4)).all()
        last = now
    blocks = blocks_of(fmt, grid, found)
    np.testing.assert_allclose(fmt.decode(blocks), found.values().T, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", GRIDS)
def test_codes_and_scales_stay_in_range(name: str) -> None:
    grid, fmt = GRIDS[name], FORMATS[name]
    x = weight(5) * np.exp(3 * np.random.default_rng(6).standard_normal((9, K))).astype(np.float32)
    found = parts(grid, encode_matrix(fmt, x, hessian(), None))
    for values, (least, most) in (
        (found.code, grid.codes),
        (found.unit, grid.units),
        (found.low, grid.lows),
    ):
        assert least <= values.min() and values.max() <= most
    assert grid.signed or found.dmin.min() >= 0


def test_rows_may_be_cut_anywhere() -> None:
    h, x, fmt = hessian(), weight(7, 300), FORMATS["q4_k"]
    whole = fmt.decode(encode_matrix(fmt, x, h, None))
    cut = np.concatenate(
        [fmt.decode(encode_matrix(fmt, part, h, None)) for part in (x[:1], x[1:140], x[140:])]
    )
    # sums of another order may tip a code; almost all are the same
    assert np.mean(whole != cut) < 0.01


def test_independent_inputs_change_little() -> None:
    h, x, fmt = prepare(np.eye(K)), weight(8), FORMATS["q5_0"]
    assert fmt.encode is not None
    assert np.mean(encode_matrix(fmt, x, h, None)["qs"] != fmt.encode(x, None)["qs"]) < 0.05


@pytest.mark.parametrize("fill", [0.0, 1e-30, 1e4])
def test_flat_weights_and_extreme_sizes(fill: float) -> None:
    for name in GRIDS:
        x = np.full((3, K), fill, np.float32)
        x[1] *= -1
        back = FORMATS[name].decode(encode_matrix(FORMATS[name], x, hessian(), None))
        assert np.isfinite(back).all()
        assert np.abs(back - x).max() <= 0.35 * fill + 1e-7


@pytest.mark.parametrize("name", GRIDS)
def test_rows_that_overflow_are_left_as_they_were(name: str) -> None:
    fmt, x = FORMATS[name], weight(13)
    assert fmt.encode is not None
    x[4] *= 1e12
    with np.errstate(all="raise"):
        fed = encode_matrix(fmt, x, hessian(), None)
    assert fed[4].tobytes() == fmt.encode(x, hessian().diagonal)[4].tobytes()
    assert np.isfinite(fmt.decode(np.delete(fed, 4, axis=0))).all()


def test_inputs_that_never_came_keep_their_codes() -> None:
    x = inputs(9)
    x[:, 100:300] = 0
    h = prepare(x.T @ x / len(x))
    w = weight(10)
    back = FORMATS["q4_k"].decode(encode_matrix(FORMATS["q4_k"], w, h, None))
    assert np.isfinite(back).all()
    assert np.abs(back - w).max() < 0.06


def test_no_hessian_and_other_formats_are_encoded_plainly() -> None:
    x = weight(11)
    for name, h in (("q4_k", None), ("bf16", hessian())):
        fmt = FORMATS[name]
        assert fmt.encode is not None
        assert encode_matrix(fmt, x, h, None).tobytes() == fmt.encode(x, None).tobytes()


@pytest.mark.parametrize("bad", [np.full((4, 4), np.nan), -np.eye(4), np.ones((2, 3)), np.eye(4) - 5])
def test_what_is_no_hessian_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        prepare(bad)


def test_all_zero_inputs_are_a_hessian() -> None:
    assert np.isfinite(prepare(np.zeros((4, 4))).feed).all()


def test_factors_are_those_of_the_damped_matrix() -> None:
    h = hessian()
    assert sorted(h.order) == list(range(K)) and (np.diff(h.diagonal[h.order]) <= 0).all()
    unit = np.eye(K) + h.feed.astype(np.float64).T
    ordered = h.matrix.astype(np.float64)[np.ix_(h.order, h.order)]
    inverse = np.linalg.inv(unit)
    left = inverse @ ordered @ inverse.T
    off = left - np.diag(left.diagonal())
    assert np.abs(off).max() < 1e-3 * np.abs(left).max()
