"""Weight encoders: error at most a reference quantizer's, extreme rows, importance."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from trained import relative_error, trained_like

from satchel.quant import FORMATS

F32 = npt.NDArray[np.float32]
WEIGHTS = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]
# Root mean square error over root mean square that ggml's own quantizer (0.25.3, without importance) leaves
# on `trained_like(seed)` below: measured once, by ggml_quantize_chunk of the llama-cpp-python package.
REFERENCE: dict[int, dict[str, float]] = {
    11: {
        "q8_0": 0.006372,
        "q4_0": 0.101155,
        "q4_1": 0.085983,
        "q5_0": 0.050466,
        "q5_1": 0.041554,
        "q4_k": 0.078964,
        "q5_k": 0.040046,
        "q6_k": 0.020349,
    },
    12: {
        "q8_0": 0.006486,
        "q4_0": 0.103081,
        "q4_1": 0.086747,
        "q5_0": 0.051709,
        "q5_1": 0.041988,
        "q4_k": 0.079852,
        "q5_k": 0.040381,
        "q6_k": 0.020686,
    },
}
# What a code's worth of step can miss: half a step of the coarsest group, as a share of its largest element.
STEPS = {"q8_0": 254, "q4_0": 14, "q4_1": 15, "q5_0": 30, "q5_1": 31, "q4_k": 15, "q5_k": 31, "q6_k": 62}


def encode(name: str, x: F32, importance: F32 | None = None) -> npt.NDArray[Any]:
    function = FORMATS[name].encode
    assert function is not None
    return np.asarray(function(x, importance))


def trip(name: str, x: F32, importance: F32 | None = None) -> F32:
    return FORMATS[name].decode(encode(name, x, importance))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("seed", [11, 12])
def test_error_is_at_most_the_reference_quantizers(name: str, seed: int) -> None:
    x = trained_like(seed)
    assert relative_error(x, trip(name, x)) <= REFERENCE[seed][name] * 1.0001


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_same_bytes_every_time_and_for_every_cut(name: str) -> None:
    x = trained_like(3)[:10]
    whole = encode(name, x)
    assert whole.tobytes() == encode(name, x.copy()).tobytes()
    cut = [encode(name, part).tobytes() for part in (x[:1], x[1:7], x[7:])]
    assert whole.tobytes() == b"".join(cut)
    assert encode(name, x[:0]).shape == (0, whole.shape[1])


@pytest.mark.parametrize("name", WEIGHTS)
def test_importance_moves_error_away_from_what_counts(name: str) -> None:
    x = trained_like(4)
    importance = np.random.default_rng(4).lognormal(0, 2, 1024).astype(np.float32)
    plain, weighted = (relative_error(x, trip(name, x, w), importance) for w in (None, importance))
    assert weighted == plain if name == "q8_0" else weighted < plain * 0.97


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.encode])
def test_rows_of_one_block_are_weighted_as_those_of_two(name: str) -> None:
    size = FORMATS[name].block
    x = np.random.default_rng(5).standard_normal((6, size)).astype(np.float32)
    w = np.random.default_rng(6).lognormal(0, 2, size).astype(np.float32)
    one, two = encode(name, x, w), encode(name, np.hstack([x, x]), np.tile(w, 2))
    assert np.hstack([one.reshape(6, -1)] * 2).tobytes() == two.tobytes()


def constant(value: float) -> F32:
    return np.full((1, 256), value, np.float32)


def one_outlier(value: float) -> F32:
    x = np.zeros((1, 256), np.float32)
    x[0, 77] = value
    return x


@pytest.mark.parametrize("name", WEIGHTS)
def test_zeros_stay_zeros(name: str) -> None:
    for zero in (0.0, -0.0, 1e-45, -3e-39):  # no f16 scale can hold the last two
        assert not trip(name, constant(zero)).any()


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("value", [1.0, -1.0, 0.37, -2.3e-3, 900.0, -31000.0])
@pytest.mark.parametrize("make", [constant, one_outlier])
def test_a_single_value_comes_back_within_its_f16_scales(name: str, value: float, make: object) -> None:
    x = constant(value) if make is constant else one_outlier(value)
    y = trip(name, x)
    # Two or three roundings of scales lie between, the coarsest to six bits.
    assert np.abs(y - x).max() <= abs(value) * 2.0**-7, np.abs(y - x).max()
    if name in ("q8_0", "q4_0", "q5_0", "q6_k"):
        assert not y[x == 0].any()


# Not q8_0 at 1e-4: its codes are defined by d before the rounding to f16, which is coarse there.
@pytest.mark.parametrize(
    ("name", "scale"), [(n, s) for n in WEIGHTS for s in (1e-4, 1.0, 1e4) if (n, s) != ("q8_0", 1e-4)]
)
def test_no_element_misses_by_more_than_a_step(name: str, scale: float) -> None:
    x = (np.random.default_rng(9).uniform(-1, 1, (64, 256)) * scale).astype(np.float32)
    y = trip(name, x)
    # A searched scale may clip the largest element, and a K-group's scale is itself rounded.
    assert np.abs(y - x).max() <= 2 * scale / STEPS[name] * 1.25


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_largest_scales_stay_finite_and_larger_ones_overflow_visibly(name: str) -> None:
    ramp = np.linspace(-1, 1, 256, dtype=np.float32)[None]
    y = trip(name, ramp * np.float32(60000))
    assert np.isfinite(y).all()
    assert relative_error(ramp * np.float32(60000), y) < 0.1
    assert not np.isfinite(trip(name, ramp * np.float32(1e30))).all()
