"""Non-finite values and invalid codes in every format are found, with their position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satchel.formats.gguf import TENSOR_TYPES, TensorSource, open_gguf, write_gguf
from satchel.formats.verify_values import NO_CODE, NOT_A_NUMBER, SUBNORMAL, judge, scan
from satchel.quant import FORMATS

FILE_FORMATS = [kind.name for kind in TENSOR_TYPES.values() if kind.name in FORMATS]


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_what_is_called_no_number_decodes_to_none_and_nothing_else_does(name: str) -> None:
    """Random bytes: most blocks of most formats have a non-finite scale."""
    fmt = FORMATS[name]
    rng = np.random.default_rng(fmt.id)
    raw = rng.integers(0, 256, (400, 4, fmt.block_bytes), dtype=np.uint8)
    raw[:50] = 0
    raw[50:60] = 255
    # Bytes of one value make exponents that are all ones.
    raw[60:100, :, -2:] = rng.choice(np.array([0, 0x7C, 0x7F, 0xFC, 0xFF], np.uint8), (40, 4, 2))[
        ..., : raw.shape[-1]
    ]
    blocks = np.ascontiguousarray(raw).view(fmt.dtype).reshape(400, 4)
    with np.errstate(all="ignore"):
        finite = np.isfinite(fmt.decode(blocks).reshape(400, 4, fmt.block)).all(axis=-1)
    found = judge(fmt, blocks).get(NOT_A_NUMBER, np.zeros((400, 4), bool))
    want = ~finite if found.shape == (400, 4) else ~finite.all(axis=1, keepdims=True)
    assert np.array_equal(found, want)


@pytest.mark.parametrize("name", [n for n in FILE_FORMATS if FORMATS[n].encode is not None])
def test_what_an_encoder_writes_is_clean(name: str) -> None:
    fmt = FORMATS[name]
    assert fmt.encode is not None
    x = np.random.default_rng(2).standard_normal((4, 1024)).astype(np.float32) * 0.02
    assert judge(fmt, fmt.encode(x, np.ones(1024, np.float32)).reshape(4, -1)) == {}


# format, field, byte that is no code; where it is put: block 1 of row 2
NO_CODES = [
    ("tq2_0", "qs", 0b11),
    ("tq2_0", "qs", 0b11000000),
    ("tq1_0", "qs", 1),
    ("tq1_0", "qh", 99),
    ("mxfp4", "e", 0xFF),
    ("nvfp4", "scales", 0x7F),
    ("nvfp4", "scales", 0x80),
]


@pytest.mark.parametrize(("name", "field", "byte"), NO_CODES)
def test_a_code_out_of_its_table_is_found(name: str, field: str, byte: int) -> None:
    fmt = FORMATS[name]
    blocks = np.zeros((3, 2), fmt.dtype)
    assert judge(fmt, blocks) == {}
    values = blocks[field].reshape(3, 2, -1)
    values[2, 1, -1] = byte
    found = judge(fmt, blocks)
    assert list(found) == [NO_CODE] and np.argwhere(found[NO_CODE]).tolist() == [[2, 1]]


def test_every_ternary_byte_that_a_writer_makes_is_a_code() -> None:
    """Five base-3 digits as the published packing writes them: v * 256 / 243, rounded up."""
    fmt = FORMATS["tq1_0"]
    blocks = np.zeros((243, 1), fmt.dtype)
    blocks["qs"][:, 0, 5] = (np.arange(243) * 256 + 242) // 243
    blocks["qh"][:, 0, 0] = (np.arange(243) // 3 * 3 * 256 + 242) // 243
    assert judge(fmt, blocks) == {}


@pytest.mark.parametrize(
    ("name", "tiny"), [("f32", 1e-40), ("f16", 1e-7), ("bf16", 1e-40), ("f64", 1e-310), ("q8_0", 1e-7)]
)
def test_rows_of_subnormal_numbers_are_odd(name: str, tiny: float) -> None:
    fmt = FORMATS[name]
    if fmt.dtype.names:
        blocks = np.zeros((4, 2), fmt.dtype)
        blocks["d"][1, 0] = tiny
        blocks["d"][2] = 0.01
    else:
        x = np.zeros((4, 64), np.float64)
        x[1, 3], x[2] = tiny, 1.0
        x[2, 5] = tiny  # among others it is nothing odd
        blocks = (
            x.astype(fmt.dtype)
            if name != "bf16"
            else (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        )
    found = judge(fmt, blocks)
    assert list(found) == [SUBNORMAL] and np.flatnonzero(found[SUBNORMAL].any(axis=1)).tolist() == [1]


def test_the_first_place_and_the_count_are_exact(tmp_path: Path) -> None:
    """Across chunks and threads: a tensor of 40 MB, and small ones around it."""
    x = np.ones((10_000, 1024), np.float32)
    bad = np.random.default_rng(4).choice(len(x), 37, replace=False)
    x[bad, bad % 1024] = np.nan
    small = np.ones((2, 32), np.float32)
    path = tmp_path / "m.gguf"
    tensors = [
        TensorSource("a", (2, 32), "f32", small),
        TensorSource("big", x.shape, "f32", x),
        TensorSource("empty", (0, 32), "f32", b""),
        TensorSource("scalar", (), "f32", np.array(np.inf, np.float32)),
        TensorSource("ints", (3,), "i32", np.array([-1, 2, 3], np.int32)),
    ]
    write_gguf(path, {"general.architecture": "none"}, tensors)
    calls: list[tuple[int, int]] = []
    with open_gguf(path) as gguf:
        found = scan(gguf, progress=lambda done, total: calls.append((done, total)))
        info = gguf.tensors["big"]
        alone = scan(gguf, skip={"big", "scalar"})
    assert [(d.tensor, d.kind, d.row, d.count) for d in found] == [
        ("big", NOT_A_NUMBER, int(bad.min()), 37),
        ("scalar", NOT_A_NUMBER, 0, 1),
    ]
    assert found[0].at == info.offset + int(bad.min()) * 4096 and found[0].grave
    assert alone == [] and calls[-1][0] == calls[-1][1] and calls == sorted(calls)
