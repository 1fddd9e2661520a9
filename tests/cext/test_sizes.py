"""A19 of the hostile requests: every backend refuses sizes that do not fit 64 bits, whatever a file or a plan
states. A wrapped size would end this process, by a division by 0 or a write past a buffer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from satchel import cext
from satchel.errors import DeviceError
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend

EDGES = (-(2**63), -1, 0, 1, 16, 32, 256, 2**20, 2**31 - 1, 2**32, 2**58, 2**59, 2**62, 2**63 - 1)
FORMATS = range(48)
ROOM = 1 << 16


@pytest.fixture(params=["cpu", "null", "remote", "emulated"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    try:
        found = find_backend(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    made = found.open(threads=1)
    yield made
    made.close()


def test_a19_no_size_wraps(device: Device) -> None:
    table, ffi, rng = device.backend.table, cext.ffi, random.Random(19)
    if not table.packed:
        pytest.skip("it packs nothing")
    desc, made = ffi.new("hal_bufdesc *", {"size": ROOM, "usage": 0}), ffi.new("hal_buffer **")
    assert table.alloc(device.handle, desc, made) == 0
    source = ffi.new("uint8_t[]", ROOM)
    for _ in range(20_000):
        format, rows, columns = rng.choice(FORMATS), rng.choice(EDGES), rng.choice(EDGES)
        stack = rng.choice((1, 1, rng.choice(EDGES)))
        offset = rng.choice((0, 0, 2**64 - rng.randrange(1, 300)))
        size = device.packed(format, stack, rows, columns)
        assert not size or (min(stack, rows, columns) > 0 and size >= stack * rows * columns // 16), (
            f"format {format}, {stack} x {rows} x {columns}: {size} bytes"
        )
        if not size or size > ROOM or offset:
            code = table.pack(made[0], offset, format, stack, rows, columns, source)
            assert code < 0, f"format {format}, {stack} x {rows} x {columns} is packed at {offset}"
    table.free(made[0])
