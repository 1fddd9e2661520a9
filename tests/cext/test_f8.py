"""Products of 8-bit floats with bf16x2 activations on tiles: against the definition, equal for any number of
columns; NaN and infinity stay non-finite.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from accuracy import nmse
from one_step import Case, define, encode, f32, generator, open_set, random_blocks, run

from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Array

EIGHT_BITS = ("f8_e4m3", "f8_e5m2")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    yield from open_set("amx", monkeypatch, 2)


def linear(x: Array, format: str, *weights: Array) -> Case:
    shape = (len(x), sum(len(w) for w in weights))
    return Case(format, ((x, "bf16x2"), *((w, format) for w in weights)), shape)


@pytest.mark.parametrize("format", EIGHT_BITS)
@pytest.mark.parametrize("columns", [1, 3, 16, 17, 33, 64, 75])
@pytest.mark.parametrize("k", [128, 640])
def test_a_product_equals_its_definition(device: Device, format: str, columns: int, k: int) -> None:
    rng = generator(format)
    x = encode("bf16x2", f32(rng, columns, k)[0])
    one = linear(x, format, random_blocks(rng, format, 300, k), random_blocks(rng, format, 17, k))
    assert nmse(run(device, "linear", one), define("linear", one)) < 1e-10


@pytest.mark.parametrize("format", EIGHT_BITS)
@pytest.mark.parametrize("rows", [16, 48, 272])
def test_a_column_does_not_depend_on_the_others(device: Device, format: str, rows: int) -> None:
    rng = generator(format)
    x, w = encode("bf16x2", f32(rng, 67, 384)[0]), random_blocks(rng, format, rows, 384)
    together = run(device, "linear", linear(x, format, w))
    for column in (0, 15, 16, 31, 32, 63, 66):
        alone = run(device, "linear", linear(x[column : column + 1], format, w))
        assert np.array_equal(alone[0].view(np.uint32), together[column].view(np.uint32))


@pytest.mark.parametrize("format", EIGHT_BITS)
@pytest.mark.parametrize("columns", [1, 40])
def test_every_code_is_itself(device: Device, format: str, columns: int) -> None:
    """Each of the 256 codes alone in a row, at every position of a word, is multiplied by 1: the product is
    its value. An infinity may become NaN, because the activations' lower halves are zeros.
    """
    w = np.zeros((256, 1), FORMATS[format].dtype)
    w["d"] = 1
    codes = np.arange(256)
    w[w.dtype.names[1]][codes, 0, codes * 5 % 128] = codes
    x = encode("bf16x2", np.ones((columns, 128), np.float32))
    got = run(device, "linear", linear(x, format, w))
    want = FORMATS[format].decode(w)[codes, codes * 5 % 128]
    finite = np.isfinite(want)
    assert np.array_equal(got[:, finite], np.broadcast_to(want[finite], (columns, finite.sum())))
    assert not np.isfinite(got[:, ~finite]).any()
