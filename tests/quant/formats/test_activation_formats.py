"""The encoders that kernels repeat bit for bit (f16, bf16, activations) against scalar restatements."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from satchel.quant import FORMATS

F32 = npt.NDArray[np.float32]


def encode(name: str, x: F32) -> npt.NDArray[Any]:
    function = FORMATS[name].encode
    assert function is not None
    return np.asarray(function(x, None))


def specials() -> F32:
    """Every exponent with a few fractions, both signs, including subnormals, ties, infinities and NaN."""
    fractions = np.array(
        [0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x400000, 0x7FFFFF]
    )
    bits = (np.arange(256)[:, None] << 23 | fractions).reshape(-1).astype(np.uint32)
    return np.concatenate([bits, bits | 0x80000000]).view(np.float32)


def half_by_hand(x: float) -> int:
    """IEEE binary16 of a float, by exact integer arithmetic."""
    if math.isnan(x):
        bits = int(np.float32(x).view(np.uint32))
        return bits >> 16 & 0x8000 | 0x7E00 | bits >> 13 & 0x3FF
    sign = 0x8000 if math.copysign(1, x) < 0 else 0
    if math.isinf(x):
        return sign | 0x7C00
    return sign | min(0x7C00, _magnitude(abs(x)))


def _magnitude(x: float) -> int:
    exponent = max(-14, math.frexp(x)[1] - 1) if x else -14
    units = round(x * 2.0 ** (10 - exponent))  # round() of a float sends ties to even; the product is exact
    return units + (exponent + 14) * 1024 if units >= 1024 or exponent > -14 else units


def test_f16_encodes_every_special_to_nearest_even() -> None:
    x = specials()
    got = encode("f16", x).view(np.uint16)
    bits = x.view(np.uint32)
    for value, pattern, code in zip(x.tolist(), bits.tolist(), got.tolist(), strict=True):
        if math.isnan(value):  # a Python float may have lost the payload
            assert code == (pattern >> 16 & 0x8000 | 0x7E00 | pattern >> 13 & 0x3FF)
        else:
            assert code == half_by_hand(value), value


def test_bf16_encodes_every_special_to_nearest_even() -> None:
    x = specials()
    got = encode("bf16", x).view(np.uint16).tolist()
    for pattern, code in zip(x.view(np.uint32).tolist(), got, strict=True):
        if pattern & 0x7FFFFFFF > 0x7F800000:
            assert code == pattern >> 16 | 0x40
        else:
            low, rest = divmod(pattern, 65536)
            assert code == low + (rest > 32768 or (rest == 32768 and low % 2 == 1))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_halves_survive_the_round_trip(name: str) -> None:
    fmt = FORMATS[name]
    every = np.arange(65536, dtype="<u2")
    x = fmt.decode(every.view(fmt.dtype))
    keep = ~np.isnan(x)
    assert np.array_equal(encode(name, x).view(np.uint16)[keep], every[keep])
    assert np.isnan(fmt.decode(encode(name, x)[~keep])).all()


def rows(count: int, width: int) -> F32:
    """Random rows over many magnitudes, with exact ties, zeros, subnormals and opposite extremes mixed in."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((count, width)) * 10.0 ** rng.integers(-44, 36, (count, 1))
    x = x.astype(np.float32)
    x[0] = 0
    x[1] = np.arange(width) % 255 - 127
    x[2] = (np.arange(width) % 256 - 127.5) * 0.5
    x[3, 5], x[3, 9] = -x[3].max() * 2, x[3].max() * 2
    x[4] = np.float32(1e-45)
    x[5] = -3.0
    return x


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_q8_0_and_a8_32_by_scalar_steps() -> None:
    x = rows(40, 32)
    got, sums = encode("q8_0", x), encode("a8_32", x)
    for row, block, with_sum in zip(x, got[:, 0], sums[:, 0], strict=True):
        most = np.float32(np.abs(row).max())
        inverse = np.float32(127) / most if most > 0 else np.float32(0)
        codes = [round(float(v * inverse)) if np.isfinite(inverse) else 0 for v in row]
        assert block["qs"].tolist() == with_sum["qs"].tolist() == codes
        want = half_by_hand(float(most / np.float32(127)))
        assert block["d"].view(np.uint16) == want and with_sum["d"] == np.float32(block["d"])
        assert with_sum["sum"] == sum(codes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a8_256_by_scalar_steps() -> None:
    x = rows(40, 256)
    for row, block in zip(x, encode("a8_256", x)[:, 0], strict=True):
        extreme = row[np.abs(row).argmax()]
        scale = np.float32(-127) / extreme if extreme else np.float32(0)
        usable = bool(extreme) and bool(np.isfinite(scale))
        codes = [min(127, round(float(scale * v))) if usable else 0 for v in row]
        assert block["qs"].tolist() == codes
        assert block["sums"].tolist() == [sum(codes[i : i + 16]) for i in range(0, 256, 16)]
        assert block["sums32"].tolist() == [sum(codes[i : i + 32]) for i in range(0, 256, 32)]
        assert not block["pad"].any()
        want = np.float32(1) / scale if usable else np.float32(0)
        assert block["d"].view(np.uint32) == want.view(np.uint32)


def bfloat_by_hand(x: Fraction) -> Fraction:
    """The nearest value of eight significant bits, ties to even, within float32's exponents."""
    exponent = max(-126, math.frexp(float(x))[1] - 1)
    unit = Fraction(2) ** (exponent - 7)
    return round(x / unit) * unit


def test_bf16x2_is_two_roundings_of_each_special() -> None:
    x = specials()
    x = x[np.isfinite(x) & (np.abs(x) < 3.38e38)]
    blocks = encode("bf16x2", x[: len(x) // 32 * 32])
    high, low = (FORMATS["bf16"].decode(blocks[part]).reshape(-1).tolist() for part in ("high", "low"))
    for value, h, part in zip(x.tolist(), high, low, strict=False):
        wanted = bfloat_by_hand(Fraction(value))
        assert Fraction(h) == wanted, value
        assert Fraction(part) == bfloat_by_hand(Fraction(value) - wanted), value


def test_bf16x2_keeps_sixteen_bits_and_is_exact_in_float32() -> None:
    x = rows(400, 64)
    x = x[(np.abs(x) > 1e-28).all(axis=1)]  # below that the low half nears bfloat16's smallest number
    blocks = encode("bf16x2", x)
    got = FORMATS["bf16x2"].decode(blocks)
    assert len(x) > 100 and (np.abs(got.astype(np.float64) - x) <= np.abs(x) * 2.0**-17).all()
    high, low = (FORMATS["bf16"].decode(blocks[part]).astype(np.float64) for part in ("high", "low"))
    assert np.array_equal((high + low).reshape(got.shape), got.astype(np.float64))


def test_bf16x2_keeps_the_largest_numbers_finite_and_what_is_not_finite_to_itself() -> None:
    top = np.array([0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x7F7F0000], np.uint32).view(np.float32)
    x = np.ones(32, np.float32)
    x[:4], x[4:8], x[8:11] = top, -top, (np.inf, -np.inf, np.nan)
    block = encode("bf16x2", x)[0]
    got = FORMATS["bf16x2"].decode(block[None])
    assert np.isfinite(got[:8]).all() and (np.abs(got[:8].astype(np.float64) - x[:8]) <= 2.0**112).all()
    assert got[8] == np.inf and got[9] == -np.inf and np.isnan(got[10])
    assert block["low"][8:11].tolist() == [0, 0, 0] and (got[11:] == 1).all()


@pytest.mark.parametrize(("name", "width"), [("q8_0", 32), ("a8_32", 32), ("a8_256", 256)])
@pytest.mark.parametrize("poison", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_poisons_its_block_and_no_other(name: str, width: int, poison: float) -> None:
    x = np.ones((1, 3 * width), np.float32)
    x[0, width + 3] = poison
    blocks = encode(name, x)
    assert np.isnan(blocks["d"]).tolist() == [[False, True, False]]
    assert not blocks["qs"][0, 1].any()
    assert np.isnan(FORMATS[name].decode(blocks)).reshape(3, width).all(axis=1).tolist() == [
        False,
        True,
        False,
    ]


def test_a_row_that_is_no_whole_number_of_blocks_is_refused() -> None:
    for name in ("q8_0", "a8_32", "a8_256", "bf16x2", "q4_0", "q4_k", "q6_k"):
        with pytest.raises(ValueError, match="multiple"):
            encode(name, np.zeros((2, 272 + 1), np.float32))
