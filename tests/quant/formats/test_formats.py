"""Each format's decode against the gguf package on random and extreme blocks, and the table of formats."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from satchel.quant import BY_ID, FORMATS
from satchel.quant.codebook import even_signs, grid

# Special scales: zeros, subnormals, one, the largest, infinities, NaN.
HALVES = (
    0x0000,
    0x8000,
    0x0001,
    0x8001,
    0x03FF,
    0x0400,
    0x3C00,
    0xBC00,
    0x7BFF,
    0xFBFF,
    0x7C00,
    0xFC00,
    0x7E00,
)
REFERENCED = [
    *("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
    *("tq1_0", "tq2_0", "mxfp4", "nvfp4"),
]
# What the other operand of a product is rounded to; a format that is missing meets float32 or has no product.
ACTS = {
    "bf16x2": ("f16", "bf16", "f8_e4m3", "f8_e5m2"),
    "a8_32": (
        *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "nvfp4", "q1_0", "q2_0", "i8_g128"),
    ),
    "a8_256": (
        *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "tq1_0", "tq2_0"),
        *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"),
    ),
}
ACT_OF = {name: act for act, names in ACTS.items() for name in names}
NEWER = {"q2_0": 42}  # ggml's types that the gguf package may not know yet
EXTENSIONS = {"f8_e4m3": 2001, "f8_e5m2": 2002, "i8_g128": 2003}


def same(got: npt.NDArray[np.float32], want: npt.NDArray[np.float32]) -> bool:
    """Bitwise equality; any NaN equals any NaN, because payloads differ between processors."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype == np.float32
    both = np.isnan(got) & np.isnan(want)
    return bool(((got.view(np.uint32) == want.view(np.uint32)) | both).all())


def extreme_blocks(name: str) -> npt.NDArray[np.uint8]:
    """Random codes under every pair of special scales, as raw bytes (rows, bytes of a row)."""
    fmt = FORMATS[name]
    blocks = np.random.default_rng(7).integers(0, 256, (len(HALVES) ** 2, fmt.block_bytes), dtype=np.uint8)
    records = blocks.view(fmt.dtype)[:, 0]
    fields = [field for field in ("d", "dmin", "m", "s") if field in (fmt.dtype.names or ())]
    halves = np.array(HALVES, np.uint16).view(np.float16)
    for turn, field in enumerate(fields):
        records[field] = np.repeat(halves, len(HALVES)) if turn == 0 else np.tile(halves, len(HALVES))
    return blocks


@pytest.mark.parametrize("name", REFERENCED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_decode_equals_gguf(name: str) -> None:
    fmt = FORMATS[name]
    kind = gguf.GGMLQuantizationType(fmt.id)
    assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block, fmt.block_bytes)
    random = np.random.default_rng(1).integers(0, 256, (3, 64 * fmt.block_bytes), dtype=np.uint8)
    extreme = extreme_blocks(name) if fmt.dtype.names else np.arange(65536, dtype="<u2").view(np.uint8)[None]
    for raw in (random, extreme):
        assert same(fmt.decode(raw.view(fmt.dtype)), gguf.dequantize(raw, kind))


@pytest.mark.parametrize("name", REFERENCED)
def test_decode_takes_any_leading_shape_and_stride(name: str) -> None:
    fmt = FORMATS[name]
    raw = np.random.default_rng(2).integers(0, 64, (4, 3, 6 * fmt.block_bytes), dtype=np.uint8)
    blocks = raw.view(fmt.dtype)
    whole = fmt.decode(blocks)
    assert whole.shape == (4, 3, 6 * fmt.block)
    assert same(fmt.decode(blocks[::2, 1:]), whole[::2, 1:])
    assert fmt.decode(blocks[:0]).shape == (0, 3, 6 * fmt.block)


def test_every_code_of_the_small_blocks_decodes_to_its_place() -> None:
    """Each position takes each code under a scale of one, which proves the packing."""
    for name, offset in (("q4_0", 8), ("q5_0", 16)):
        fmt, encode = FORMATS[name], FORMATS[name].encode
        assert encode is not None
        codes = (np.arange(32)[None] + np.arange(2 * offset)[:, None]) % (2 * offset)
        x = (codes - offset).astype(np.float32)
        assert same(fmt.decode(encode(x, None)), x)


@pytest.mark.parametrize("name", list(FORMATS))
def test_table(name: str) -> None:
    fmt = FORMATS[name]
    assert BY_ID[fmt.id] is fmt
    if name in EXTENSIONS:
        assert fmt.id == EXTENSIONS[name] and fmt.weights
    elif fmt.weights:
        assert gguf.GGMLQuantizationType.__members__.get(name.upper(), NEWER.get(name)) == fmt.id
    else:
        assert 1000 < fmt.id < 2000 and name.upper() not in gguf.GGMLQuantizationType.__members__
    assert fmt.act == ACT_OF.get(name)
    assert fmt.row_bytes(4 * fmt.block) == 4 * fmt.block_bytes
    if fmt.act is not None:
        act = FORMATS[fmt.act]
        assert act.encode is not None and not act.weights
        assert fmt.block == 1 or fmt.block % act.block == 0
    if fmt.block > 1:
        with pytest.raises(ValueError, match="multiple"):
            fmt.row_bytes(fmt.block + 1)


def test_every_scale_byte_of_the_four_bit_floats() -> None:
    """All 256, each over all codes: subnormal powers, the NaN that counts as zero, the ignored top bit."""
    codes = np.arange(16, dtype=np.uint8) * 17
    for name, fields in (("mxfp4", ("e", 1, 1)), ("nvfp4", ("scales", 4, 2))):
        fmt, (scale, count, repeat) = FORMATS[name], fields
        blocks = np.zeros((256 // count, 1), fmt.dtype)
        blocks[scale] = np.arange(256).reshape(blocks[scale].shape)
        blocks["qs"] = np.tile(codes, repeat)
        raw = blocks.view(np.uint8).reshape(len(blocks), fmt.block_bytes)
        assert same(fmt.decode(blocks), gguf.dequantize(raw, gguf.GGMLQuantizationType(fmt.id)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_scattered_scale_of_iq1_m() -> None:
    fmt = FORMATS["iq1_m"]
    blocks = np.random.default_rng(3).integers(0, 256, (len(HALVES), fmt.block_bytes), dtype=np.uint8)
    words = blocks.view(fmt.dtype)["scales"]
    words &= 0xFFF
    words |= (np.array(HALVES, np.uint16)[:, None, None] >> np.array([0, 4, 8, 12]) & 15).astype(
        np.uint16
    ) << 12
    assert same(fmt.decode(blocks.view(fmt.dtype)), gguf.dequantize(blocks, gguf.GGMLQuantizationType.IQ1_M))


@pytest.mark.parametrize("name", ["iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s"])
def test_codebooks_equal_the_gguf_packages(name: str) -> None:
    theirs = getattr(gguf.quants, name.upper())
    theirs.init_grid()
    assert np.array_equal(grid(name), theirs.grid.reshape(theirs.grid_shape))


def test_signs_of_even_parity_equal_the_gguf_packages() -> None:
    bits = np.unpackbits(
        np.frombuffer(gguf.quants.IQ2_XXS.ksigns, np.uint8)[:, None], axis=1, bitorder="little"
    )
    assert np.array_equal(even_signs(), 1 - 2.0 * bits)


def test_f8_codes_stand_for_what_the_standard_says() -> None:
    """Sign, exponent and fraction combined by plain arithmetic, for all codes under a scale of one."""
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    for name, bits, bias in (("f8_e4m3", 3, 7), ("f8_e5m2", 2, 15)):
        fmt = FORMATS[name]
        blocks = np.zeros(2, fmt.dtype)
        blocks["d"], blocks[(fmt.dtype.names or ())[-1]] = 1, codes
        got = fmt.decode(blocks).tolist()
        for code, value in enumerate(got):
            exponent, fraction = code % 128 >> bits, code % 2**bits
            size = (fraction / 2**bits + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
            if name == "f8_e4m3" and code % 128 == 127:
                size = math.nan
            elif name == "f8_e5m2" and exponent == 31:
                size = math.inf if fraction == 0 else math.nan
            want = math.copysign(size, -1 if code > 127 else 1)
            assert value == want or (math.isnan(value) and math.isnan(want)), code


def test_q1_0_bit_by_bit() -> None:
    """Its layout is ggml's; the gguf package knows only its size."""
    fmt = FORMATS["q1_0"]
    blocks = np.random.default_rng(4).integers(0, 256, (9, fmt.block_bytes), dtype=np.uint8)
    for raw, got in zip(blocks, fmt.decode(blocks.view(fmt.dtype)), strict=True):
        d = float(raw[:2].view(np.float16)[0])
        want = [d if raw[2 + i // 8] >> i % 8 & 1 else -d for i in range(128)]
        assert np.array_equal(got, np.array(want, np.float32), equal_nan=True)


def test_q2_0_code_by_code() -> None:
    """Its layout is ggml's: an f16 scale, then four codes in a byte, the lowest bits first; code 1 is zero. A
    scale of 2 and bytes 0xAA, which are codes 2, is 2 everywhere.
    """
    fmt = FORMATS["q2_0"]
    assert (fmt.block, fmt.block_bytes) == (64, 18)
    known = np.array([0x00, 0x40, *[0xAA] * 16], np.uint8)
    assert np.array_equal(fmt.decode(known.view(fmt.dtype)), np.full(64, 2, np.float32))
    random = np.random.default_rng(4).integers(0, 256, (9, fmt.block_bytes), dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        for raw in (*random, *extreme_blocks("q2_0")):
            d = raw[:2].view(np.float16)[0].astype(np.float32)
            codes = [(int(raw[2 + i // 4]) >> 2 * (i % 4) & 3) - 1 for i in range(64)]
            assert same(fmt.decode(raw.view(fmt.dtype)), np.array(codes, np.float32) * d)


def test_ternary_blocks_become_the_bytes_of_ggml() -> None:
    """ggml takes the largest size as d and the nearest code of each number."""
    fmt, rng = FORMATS["q2_0"], np.random.default_rng(6)
    d = rng.uniform(0.01, 3, (40, 1)).astype(np.float16)
    codes = rng.integers(0, 3, (40, 64), dtype=np.uint8)
    assert ((codes != 1).any(axis=1)).all() and fmt.encode is not None
    pairs = (codes.reshape(40, 16, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(axis=-1).astype(np.uint8)
    want = np.concatenate([d.view(np.uint8), pairs], axis=1)
    x = d.astype(np.float32) * (codes.astype(np.float32) - 1)
    assert fmt.encode(x, None).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["q8_k", "i8_g128"])
def test_bytes_under_one_float(name: str) -> None:
    fmt, rng = FORMATS[name], np.random.default_rng(5)
    blocks = rng.integers(0, 256, (9, fmt.block_bytes), dtype=np.uint8).view(fmt.dtype)
    blocks["d"] = rng.standard_normal(blocks["d"].shape)
    want = blocks["d"][..., None] * blocks["qs"].astype(np.float32)
    assert np.array_equal(fmt.decode(blocks), want.reshape(9, -1))


def test_f64_rounds_to_the_nearest_and_keeps_float32() -> None:
    x = np.array([1 + 2.0**-25, 1 + 2.0**-24 + 2.0**-50, -1e300, 1e-320, 0.1])
    want = np.array([1, 1 + 2.0**-23, -np.inf, 0, 0.1], np.float32)
    assert same(FORMATS["f64"].decode(x), want)
    encode = FORMATS["f64"].encode
    assert encode is not None and same(FORMATS["f64"].decode(encode(want, None)), want)


def test_records_tell_formats_apart() -> None:
    """The ops' definitions identify a format by its record, so no two formats share one."""
    records = [str(fmt.dtype.descr) for fmt in FORMATS.values()]
    assert len(set(records)) == len(records)


def test_integers_decode_exactly() -> None:
    assert same(FORMATS["i8"].decode(np.array([-128, -1, 127], "i1")), np.array([-128, -1, 127], np.float32))
    wide = np.array([-(2**63), 2**53 + 1, 7], "<i8")
    assert same(FORMATS["i64"].decode(wide), np.array([-(2.0**63), 2.0**53, 7], np.float32))
    assert same(
        FORMATS["i16"].decode(np.array([-32768, 32767], "<i2")), np.array([-32768, 32767], np.float32)
    )
    odd = np.array([-(2**31), 2**31 - 1, 2**24 + 1, -7], "<i4")
    assert same(FORMATS["i32"].decode(odd), np.array([-(2.0**31), 2.0**31, 2.0**24, -7], np.float32))


def test_import_stays_cheap() -> None:
    code = "import sys, satchel.quant; print([m for m in ('numba', 'gguf', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_table_of_types_is_true() -> None:
    """docs/formats.md has a row for each type that a file may hold, with its number and sizes."""
    page = Path(__file__).parents[3] / "docs" / "formats.md"
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) \| ([\d.]+) \| (\d+) \| (\d+) \|", page.read_text(), re.MULTILINE
    )
    assert {row[0] for row in rows} == {name for name, fmt in FORMATS.items() if fmt.weights}
    for name, *numbers in rows:
        fmt = FORMATS[name]
        bits = 8 * fmt.block_bytes / fmt.block
        assert [float(n) for n in numbers] == [fmt.id, float(f"{bits:.5g}"), fmt.block, fmt.block_bytes]
