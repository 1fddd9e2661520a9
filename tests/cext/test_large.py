"""M24: weights of more than 2^31 elements. Their memory is one zero page mapped repeatedly, except for the
last row.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
import pytest
from devices import needs

from satchel import cext
from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array
from satchel.runtime.plan import BufferSpec, Segment

N, K = 70_000, 32_768
STEP, OUT, WEIGHT, CONST = 4, 5, 0, 1

pytestmark = needs("cpu")


@pytest.fixture(scope="module")
def weight() -> Iterator[tuple[mmap.mmap, Array]]:
    """A Q4_0 matrix (N, K) that is zero except for its last row, and that row's values."""
    row = FORMATS["q4_0"].row_bytes(K)
    memory = mmap.mmap(-1, N * row)
    values = np.random.default_rng(0).standard_normal(K).astype(np.float32)
    encode = FORMATS["q4_0"].encode
    assert encode is not None and N * K > 2**31
    blocks = encode(values, None)
    memory[(N - 1) * row :] = blocks.tobytes()
    yield memory, FORMATS["q4_0"].decode(blocks)
    memory.close()


def view(buffer: int, format: str, shape: tuple[int, ...]) -> Array:
    row = np.zeros((), cext.dtype_of("hal_view"))
    row["buffer"], row["format"], row["count"] = buffer, FORMATS[format].id, -1
    row["stride"] = FORMATS[format].row_bytes(shape[-1]) if len(shape) > 1 else FORMATS[format].block_bytes
    row["ndim"], row["shape"] = len(shape), [*shape, 1, 1, 1][:4]
    return row


def run(device: Device, op: str, memory: mmap.mmap, views: list[Array], given: Array) -> Array:
    """One step: views of output and inputs over the buffers out 0, weight 1, given 2, step 3."""
    size = int(views[0]["shape"][0]) * int(views[0]["stride"])
    sizes = (size, len(memory), given.nbytes, 32)
    described = tuple(
        BufferSpec(n, u, s)
        for (n, u), s in zip(
            (("out", OUT), ("weights.0", WEIGHT), ("given", CONST), ("step", STEP)), sizes, strict=True
        )
    )
    ops = np.zeros(1, cext.dtype_of("hal_op"))
    ops["name"] = op.encode()
    steps = np.array([(0, len(views) - 1, 0, 0)], cext.dtype_of("hal_step"))
    segment = Segment("", (), (), steps, np.array(views), ops, b"", described)
    buffers = [device.wrap(memory) if b.usage == WEIGHT else device.alloc(b.size, b.usage) for b in described]
    buffers[2].write(0, given.view(np.uint8))
    exec = device.compile(segment, buffers)
    exec.run(cext.ffi.new("uint8_t[]", 32), 32)
    exec.wait()
    out = np.empty(size // 4, np.float32)
    buffers[0].read_into(0, out)
    for child in (exec, *buffers):
        child.close()
    return out


def test_m24_a_product_reaches_the_last_row(weight: tuple[mmap.mmap, Array]) -> None:
    memory, row = weight
    x = np.random.default_rng(1).standard_normal((1, K)).astype(np.float32)
    encode = FORMATS["a8_32"].encode
    assert encode is not None
    act = encode(x, None)
    with find_backend("cpu").open() as device:
        views = [view(0, "f32", (1, N)), view(2, "a8_32", (1, K)), view(1, "q4_0", (N, K))]
        out = run(device, "linear", memory, views, act)
    wanted = float(FORMATS["a8_32"].decode(act)[0].astype(np.float64) @ row.astype(np.float64))
    assert not out[:-1].any() and out[-1] == pytest.approx(wanted, rel=1e-5)


def test_m24_the_last_row_is_found_by_its_number(weight: tuple[mmap.mmap, Array]) -> None:
    memory, row = weight
    with find_backend("cpu").open() as device:
        views = [view(0, "f32", (2, K)), view(1, "q4_0", (N, K)), view(2, "i32", (2,))]
        out = run(device, "get_rows", memory, views, np.array([N - 1, N - 2], np.int32))
    np.testing.assert_array_equal(out[:K], row)
    assert not out[K:].any()
