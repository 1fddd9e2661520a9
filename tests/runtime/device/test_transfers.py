"""Bytes that are written to a device are those that are read, however many and wherever they come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from mmap import PAGESIZE

import numpy as np
import pytest
from devices import opened

from satchel.errors import DeviceError
from satchel.runtime.device.device import LINK, PREFETCH, STATE, WEIGHT, Device
from satchel.runtime.device.libraries import libraries

HAVE = {found.name for found in libraries() if not found.reason}
PIECE = 16 << 20  # bytes of staging memory on a GPU
SIZES = (1, PIECE // 2, PIECE // 2 + 1, PIECE + 3, 3 * PIECE + 5)


@pytest.fixture(scope="module", params=["cpu", "remote", "emulated"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param not in HAVE:
        pytest.skip(f"needs the backend {request.param}")
    with opened(request.param) as device:
        yield device


@pytest.mark.parametrize("usage", [WEIGHT, STATE, PREFETCH])
def test_what_is_written_is_read(device: Device, usage: int) -> None:
    data = np.random.default_rng(usage).integers(0, 256, max(SIZES) + 9, np.uint8)
    buffer, out = device.alloc(data.nbytes, usage), np.empty_like(data)
    with closing(buffer):
        for size in SIZES:
            buffer.write(0, np.zeros_like(data))
            buffer.write(7, data[:size])
            buffer.read_into(0, out)
            assert not out[:7].any() and not out[7 + size :].any()
            assert np.array_equal(out[7 : 7 + size], data[:size])


def test_locked_memory_is_sent_from_where_it_lies(device: Device) -> None:
    data = np.random.default_rng(1).integers(0, 256, PIECE + 4 * PAGESIZE, np.uint8)
    if not device.can_pin:
        with pytest.raises(DeviceError, match="locks no host memory"):
            device.pin(data, 0, PAGESIZE)
        return
    out = np.empty_like(data)
    with closing(device.alloc(data.nbytes, PREFETCH)) as buffer:
        memory = device.pin(data, PAGESIZE, PIECE + 2 * PAGESIZE)
        for start, end in (
            (0, 10),
            (PAGESIZE, PIECE),
            (PAGESIZE + 1, PIECE + 3 * PAGESIZE),
            (0, data.nbytes),
        ):
            buffer.write(start, data[start:end])
            buffer.read_into(0, out)
            assert np.array_equal(out[start:end], data[start:end])
        buffer.write(PAGESIZE, data[PAGESIZE : PIECE + PAGESIZE])
        memory.close()  # waits for what is sent
        memory.close()
        data[:] = 0
        buffer.read_into(0, out)
        assert out[PAGESIZE : PIECE + PAGESIZE].any()


def test_locked_memory_is_read_to_where_it_lies(device: Device) -> None:
    if not device.can_pin:
        return
    data = np.random.default_rng(2).integers(0, 256, PIECE + 2 * PAGESIZE, np.uint8)
    there = np.zeros(data.nbytes + 2 * PAGESIZE, np.uint8)
    start = -there.ctypes.data % PAGESIZE
    here, out = there[start : start + data.nbytes], np.empty_like(data)
    with closing(device.alloc(data.nbytes, STATE)) as buffer:
        with closing(device.pin(there, start, data.nbytes, writable=True)):
            buffer.write(0, data)
            buffer.read_into(0, here)
            assert np.array_equal(here, data)
            here[:] = ~data
            buffer.write(0, here)
            here[:] = 0  # the bytes have been read by then
        buffer.read_into(0, out)
        assert np.array_equal(out, ~data)


def test_the_hosts_memory_is_seen_where_it_lies(device: Device) -> None:
    with closing(device.alloc(5 * PAGESIZE + 3, LINK)) as buffer:
        memory = buffer.memory
        if device.name != "cpu":
            assert memory is None
            return
        assert memory is not None and memory.size == 5 * PAGESIZE + 3
        assert memory.ctypes.data % PAGESIZE == 0  # on pages of its own
        buffer.write(7, np.arange(9, dtype=np.uint8))
        assert memory[7:16].tolist() == list(range(9)) and not memory[16:].any()
        memory[-1] = 5
        last = np.empty(1, np.uint8)
        buffer.read_into(memory.size - 1, last)
        assert last[0] == 5
