"""AWQ's column scales: the error is measured on the unscaled product, and scales are used only where they
lower it.
"""

from __future__ import annotations

import numpy as np
import pytest

from satchel.quant import FORMATS
from satchel.quant.calibration.awq import SPAN, Sample, best_scales, power_scales, scale_hessian, scaled_error
from satchel.quant.calibration.gptq import encode_matrix, prepare
from satchel.quant.format import F32


def inputs(width: int, seed: int, spread: float = 1.5) -> F32:
    """Rows of correlated inputs whose columns differ in size."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * width, width)) @ (np.eye(width) + 0.2 * rng.standard_normal((width, width)))
    return (x * np.exp(spread * rng.standard_normal(width))).astype(np.float32)


def sample(x: F32, fmt: str, gptq: bool, seed: int = 3, uneven: float = 0.0) -> Sample:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((24, x.shape[1])) * np.exp(uneven * rng.standard_normal(x.shape[1]))
    squares = np.square(x).mean(axis=0)
    hessian = prepare(x.T.astype(np.float64) @ x / len(x)) if gptq else None
    return Sample(FORMATS[fmt], w.astype(np.float32), 2.0, squares, hessian)


@pytest.mark.parametrize(
    "squares",
    [np.ones(8), np.zeros(8), np.r_[0, 1e30, np.ones(6)], np.geomspace(1e-30, 1e30, 8), np.full(8, 3e38)],
)
@pytest.mark.parametrize("exponents", [(0.0, 0.5), (1.0, 0.5), (1.0, 0.0), (0.5, 1.0)])
def test_scales_are_finite_and_near_one(squares: F32, exponents: tuple[float, float]) -> None:
    other = np.random.default_rng(1).random(8).astype(np.float32)
    for pair in ((squares.astype(np.float32), other), (other, squares.astype(np.float32))):
        scales = power_scales(*pair, *exponents)
        assert scales.dtype == np.float32 and np.isfinite(scales).all()
        assert (scales > 0.99 / SPAN).all() and (scales < 1.01 * SPAN).all()


def test_scales_are_the_powers_that_they_say() -> None:
    a, b = np.float32([1, 4, 16, 0.25]), np.float32([9, 1, 1, 1])
    found = power_scales(a, b, 0.5, 1.0)
    wanted = np.array([1, 4, 16, 0.25]) ** 0.25 / np.array([3, 1, 1, 1])
    assert np.allclose(found, wanted / np.exp(np.log(wanted).mean()), rtol=1e-6)


def test_a_scaled_hessian_is_that_of_divided_inputs() -> None:
    x = inputs(64, 5, spread=0.3)
    h = x.T.astype(np.float64) @ x / len(x)
    scales = power_scales(np.square(x).mean(axis=0), np.ones(64, np.float32), 0.7, 0.0)
    made = scale_hessian(prepare(h), scales)
    assert np.allclose(made.matrix, prepare(h).matrix / np.outer(scales, scales), rtol=1e-5)
    # The factor is of the same matrix: with d the inverse of its pivots, feed + 1 turns it diagonal.
    ordered = made.matrix[np.ix_(made.order, made.order)].astype(np.float64)
    unit = np.eye(64) + made.feed
    rest = np.linalg.inv(unit).T @ ordered @ np.linalg.inv(unit)
    other = unit.T @ np.diag(np.diag(rest)) @ unit
    assert np.allclose(other, ordered, rtol=1e-3, atol=1e-4 * np.abs(ordered).max())


@pytest.mark.parametrize("gptq", [False, True])
@pytest.mark.parametrize("fmt", ["q4_0", "q2_k"])
def test_the_error_is_that_of_the_outputs(fmt: str, gptq: bool) -> None:
    x = inputs(256, 6)
    given = sample(x, fmt, gptq)
    scales = power_scales(given.importance, np.ones(256, np.float32), 0.5, 0.0)
    hessian = None if given.hessian is None else scale_hessian(given.hessian, scales)
    blocks = encode_matrix(given.format, given.x * scales, hessian, given.importance / np.square(scales))
    e = (given.format.decode(blocks) / scales - given.x).astype(np.float64)
    h = np.diag(given.importance) if given.hessian is None else given.hessian.matrix
    assert scaled_error(given, scales) == pytest.approx(2 * np.einsum("ri,ij,rj->", e, h, e), rel=1e-3)
    one = scaled_error(given, np.ones(256, np.float32))
    assert scaled_error(given, None) == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("gptq", [False, True])
@pytest.mark.parametrize(("uneven", "gains"), [(0.0, False), (1.5, True)])
def test_scales_are_taken_where_they_help(gptq: bool, uneven: float, gains: bool) -> None:
    """Columns of different sizes share a block's scale badly."""
    x = inputs(256, 7, spread=0.0 if not gains else 0.5)
    if not gains:
        x = np.random.default_rng(0).standard_normal((1024, 256)).astype(np.float32)
    given = sample(x, "q4_0", gptq, uneven=uneven)
    weights = np.square(given.x).mean(axis=0)
    found = best_scales([given, given], given.importance, weights, lambda s: s)
    plain = scaled_error(given, None)
    if gains:
        assert found is not None and scaled_error(given, found) < 0.9 * plain
    else:
        assert found is None or scaled_error(given, found) < plain


def test_numbers_that_overflow_are_left_alone() -> None:
    x = inputs(64, 8)
    given = sample(x, "q8_0", False)
    huge = Sample(given.format, np.full((4, 64), 3e38, np.float32), 1.0, given.importance, None)
    assert best_scales([huge], given.importance, np.ones(64, np.float32), lambda s: s) is None


def test_shared_scales_reach_every_column() -> None:
    given = sample(inputs(128, 9), "q4_0", False, uneven=1.5)
    halves = np.square(given.x).mean(axis=0).reshape(2, 64).mean(axis=0)
    pooled = given.importance.reshape(2, 64).mean(axis=0)
    seen: list[F32] = []

    def spread(scales: F32) -> F32:
        seen.append(scales)
        return np.tile(scales, 2)

    best_scales([given], pooled, halves, spread)
    assert seen and all(s.shape == (64,) for s in seen)
