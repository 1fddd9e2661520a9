"""Weight encoders: error at most a reference quantizer's, extreme rows, importance, loops equal to numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from trained import relative_error, trained_like

from satchel.quant import FORMATS
from satchel.quant.jit.compiled import link
from satchel.quant.search import block_loops, lanes, least_squares, numpy_steps, scales, step_loops
from satchel.quant.search import steps as compiled_steps

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


def cases() -> list[F32]:
    """Groups in the search steps' layout: [tiles, size, lanes]."""
    rng = np.random.default_rng(21)
    normal = rng.standard_normal((2, 32, step_loops.LANES)).astype(np.float32)
    extreme = np.zeros_like(normal)
    extreme[:, :, 0] = 0.5
    extreme[:, :, 1] = -0.5
    extreme[:, 3, 2] = 1.0
    extreme[:, :, 3] = 1e-30
    extreme[:, :, 4] = (np.arange(32) - 16) / 32
    extreme[:, ::2, 5] = -1.0
    extreme[:, :, 6] = -1e-42
    return [normal, normal * np.float32(1e-6), extreme]


def steps(name: str, x: F32, module: object) -> list[F32]:
    """A search step's results, including arrays changed in place."""
    function, w = getattr(module, name), np.abs(x) + np.float32(0.5)
    if name == "scale_groups":
        return [
            function(x, w, least, -least - 1, np.float32(least) + least_squares.MANY) for least in (-8, -32)
        ]
    if name == "affine_groups":
        plain = function(x, w, 15, False, np.float32(15) + least_squares.FEW)
        return [*plain, *function(x, w, 31, True, np.float32(31) + least_squares.MANY)]
    d = np.abs(x).max(axis=1) / 300
    units, lows = np.full(d.shape, 20, np.float32), np.full(d.shape, 63, np.float32)
    units[:, 1] = 0
    if name.startswith("scale"):
        found = function(x, w, -d, units, -32, 31)
    else:
        found = function(x, w, d, d / 2, units, lows, 15)
    return [units, lows, *(() if found is None else found)]


@pytest.mark.parametrize(
    "name",
    ["scale_groups", "affine_groups", "scale_refine", "scale_fit", "affine_refine", "affine_fit"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_loops_equal_plain_numpy_bit_for_bit(name: str) -> None:
    for x in cases():
        for loop, plain in zip(steps(name, x, step_loops), steps(name, x, numpy_steps), strict=True):
            assert np.array_equal(loop, plain, equal_nan=True)


def rows_of_every_kind() -> F32:
    """34 rows of 1024 values, which do not fill a batch of blocks: usual, tiny, huge, constant and empty
    ones.
    """
    rng = np.random.default_rng(22)
    x = trained_like(5)[:34].copy()
    x[20:30] *= np.exp(rng.uniform(-90, 11, (10, 1))).astype(np.float32)
    x[30], x[31], x[32, 300:700], x[33, ::7] = 0, -0.0, 0.25, -1e-42
    return x


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q2_0", "q5_k", "q4_k", "q6_k"])
@pytest.mark.parametrize("weighted", [False, True])
def test_compiled_equals_plain_numpy(name: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="numba is not installed: only the numpy search is there")
    x = rows_of_every_kind()
    w = np.random.default_rng(5).lognormal(0, 1.5, 1024).astype(np.float32) if weighted else None
    compiled = encode(name, x, w).tobytes()
    monkeypatch.setattr(least_squares, "step", lambda step: getattr(numpy_steps, step))
    assert encode(name, x, w).tobytes() == compiled


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("count", [1, 6, 7])
def test_blocks_are_laid_out_as_numpy_does(group: int, count: int) -> None:
    x = rows_of_every_kind().reshape(-1, 256)[70 : 70 + count]
    share = np.random.default_rng(6).uniform(0.1, 1, (3, 256)).astype(np.float32)
    plain = lanes.lanes(np.resize(x, (count + 2, 256))[:count], share, group)
    near, w = np.full_like(plain.x, np.nan), np.full_like(plain.w, np.nan)
    power = np.empty(block_loops.TILES * step_loops.LANES * group // 256)
    block_loops.load(np.ascontiguousarray(x), share, 0, near, w, power)
    assert np.array_equal(near, plain.x)
    assert np.array_equal(power[:count], plain.power)
    there = np.arange(plain.w[:, 0].size).reshape(-1, 1, step_loops.LANES) < count * 256 // group
    assert np.array_equal(np.where(there, w, 0), plain.w)
    q, step = np.empty((count, 256), np.uint8), np.full(near[:, 0].shape, 1 / 64, np.float32)
    block_loops.store(np.ascontiguousarray(x), 0, step, step * 3, power, -128, 127, q)
    codes = np.rint(64 * near + 3).clip(-128, 127)
    assert np.array_equal(q, plain.codes(codes + np.float32(128)))


def test_scales_are_rounded_as_numpy_does() -> None:
    rng = np.random.default_rng(23)
    x = rng.standard_normal(4000) * np.exp2(rng.uniform(-40, 30, 4000))
    ties = np.arange(2048, 4096, dtype=np.float64) / 2048 * 1.000244140625
    x = np.concatenate([x, ties, [0.0, -0.0, 65519.99, 65520.0, -1e39, np.inf, np.nan, 2.0**-14, 2.0**-25]])
    with np.errstate(all="ignore"):
        for mine, plain in ((block_loops.half, scales.half), (block_loops.unit, scales.unit)):
            found = np.array([mine(value) for value in x])
            assert np.array_equal(found, plain(x), equal_nan=True)
            assert np.array_equal(np.signbit(found), np.signbit(plain(x)))
        by = np.array([0.0, np.inf, 0.37, -2.0])
        units = scales.whole(np.tile(x[:100], (4, 1)), by, -128, 127)
        assert all(
            block_loops.whole(x[k], by[n], -128, 127) == units[n, k] for n in range(4) for k in range(100)
        )


def test_compiles_where_no_cache_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba", reason="numba is not installed: nothing is compiled")
    asked: list[bool] = []
    real = numba.njit

    def refuse(function: object, *, cache: bool, **options: object) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return real(function, cache=False, **options)

    monkeypatch.setattr(numba, "njit", refuse)
    found = link.__wrapped__(compiled_steps.LOOPS, numba)["scale_groups"]
    assert set(asked) == {True, False}
    x, tries = cases()[0], np.float32(-8) + least_squares.MANY
    assert np.array_equal(found(x, x * x, -8, 7, tries), numpy_steps.scale_groups(x, x * x, -8, 7, tries))
