"""Each format's decode against the gguf package on random and extreme blocks, and the table of formats."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from satchel.quant import BY_ID, FORMATS

# Scale patterns that arithmetic treats in its own way: zeros, subnormals, one, the largest, infinities, NaN.
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
    "f32",
    "f16",
    "bf16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q4_k",
    "q5_k",
    "q6_k",
]
ACTS = {
    "f32": None,
    "f16": "bf16x2",
    "bf16": "bf16x2",
    "q4_0": "a8_32",
    "q5_0": "a8_32",
    "q8_0": "a8_32",
    "q4_1": "a8_32",
    "q5_1": "a8_32",
    "q4_k": "a8_256",
    "q5_k": "a8_256",
    "q6_k": "a8_256",
}


def same(got: npt.NDArray[np.float32], want: npt.NDArray[np.float32]) -> bool:
    """Equal to the bit; of a NaN only that it is one: its payload differs between processors."""
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
    """Each position takes each code, under a scale of one: packing by position, not by luck."""
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
    if fmt.weights:
        assert gguf.GGMLQuantizationType[name.upper()] == fmt.id
    else:
        assert fmt.id > 1000 and name.upper() not in gguf.GGMLQuantizationType.__members__
    assert fmt.act == ACTS.get(name)
    assert fmt.row_bytes(4 * fmt.block) == 4 * fmt.block_bytes
    if fmt.act is not None:
        act = FORMATS[fmt.act]
        assert act.encode is not None and not act.weights
        assert fmt.block in (1, act.block)
    if fmt.block > 1:
        with pytest.raises(ValueError, match="multiple"):
            fmt.row_bytes(fmt.block + 1)


def test_integers_decode_exactly() -> None:
    assert same(FORMATS["i8"].decode(np.array([-128, -1, 127], "i1")), np.array([-128, -1, 127], np.float32))
    odd = np.array([-(2**31), 2**31 - 1, 2**24 + 1, -7], "<i4")
    assert same(FORMATS["i32"].decode(odd), np.array([-(2.0**31), 2.0**31, 2.0**24, -7], np.float32))


def test_import_stays_cheap() -> None:
    code = "import sys, satchel.quant; print([m for m in ('numba', 'gguf', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
