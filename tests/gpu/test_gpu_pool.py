"""Memory that a GPU's buffers and plans free is reused by the next ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from satchel.runtime.device.device import OUT, STATE, WEIGHT, Device
from satchel.runtime.device.libraries import find_backend, libraries

SIZE = 1 << 20
TRIES = 20  # other processes use the card too: one undisturbed try shows that nothing is lost


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    why = next((f.reason for f in libraries() if f.name == request.param), "its library was not built")
    if why:
        pytest.skip(f"{request.param}: {why}")
    with find_backend(request.param).open() as opened:
        yield opened


def test_a_buffer_that_is_taken_again_is_zero(device: Device) -> None:
    for usage in (WEIGHT, STATE, OUT):
        first = device.alloc(SIZE, usage)
        first.write(0, np.full(SIZE, 0x5A, np.uint8))
        first.close()
        second, out = device.alloc(SIZE, usage), np.empty(SIZE, np.uint8)
        second.read_into(0, out)
        assert not out.any()
        second.close()


def test_buffers_in_use_never_share(device: Device) -> None:
    rng = np.random.default_rng(1)
    live: list[tuple[object, int]] = []
    for i in range(60):
        if len(live) > 4 and rng.random() < 0.6:
            buffer, mark = live.pop(int(rng.integers(len(live))))
            out = np.empty(buffer.size, np.uint8)  # type: ignore[attr-defined]
            buffer.read_into(0, out)  # type: ignore[attr-defined]
            assert (out == mark).all()
            buffer.close()  # type: ignore[attr-defined]
        size = int(rng.choice([1, 64, 4096, 4100, 65536, 70000]))
        made = device.alloc(size, STATE if i % 2 else OUT)
        made.write(0, np.full(size, i, np.uint8))
        live.append((made, i))


def test_what_is_spare_counts_as_free(device: Device) -> None:
    def counts() -> bool:
        before = device.info().memory_free
        held = device.alloc(8 * SIZE, STATE)
        during = device.info().memory_free
        held.close()
        after = device.info().memory_free
        return before - SIZE <= after and during <= before and during + 8 * SIZE <= after

    device.alloc(SIZE, STATE).close()
    assert any(counts() for _ in range(TRIES))


def test_many_of_one_size_take_the_room_of_one(device: Device) -> None:
    def takes_no_more() -> bool:
        before = device.info().memory_free
        for _ in range(20):
            device.alloc(16 * SIZE, STATE).close()
        return device.info().memory_free >= before - 16 * SIZE

    device.alloc(16 * SIZE, STATE).close()
    assert any(takes_no_more() for _ in range(TRIES))
