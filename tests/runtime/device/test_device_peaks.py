"""Measured peaks: positive where a device can measure, absent where it cannot, and their use."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from satchel.errors import RequestError
from satchel.runtime.compiler.cost import PlanCost
from satchel.runtime.device import bandwidth
from satchel.runtime.device import peaks as device_peaks
from satchel.runtime.device.device import MEASURE, Device
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.device.peaks import DevicePeaks

HAVE = {f.name for f in libraries() if not f.reason}
SETS = ("scalar", "avx2", "avxvnni", "avx512", "avx512bf16", "amx", "neon", "dotprod", "i8mm")
needs_cpu = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "SECONDS", 0.01)
    monkeypatch.setattr(device_peaks, "BEYOND_CACHE", 1 << 20)


@needs_cpu
@pytest.mark.parametrize("threads", [1, 3])
def test_a_cpu_measures_itself(threads: int) -> None:
    with find_backend("cpu").open(threads=threads) as device:
        found = device_peaks.measure({device: 1.0})
        assert found.read is not None and set(found.multiply) >= {"int8", "f32"}
        assert all(1e6 < rate < 1e16 for rate in (found.read, *found.multiply.values()))


@needs_cpu
@pytest.mark.parametrize("name", SETS)
def test_every_kernel_set_measures_its_own_instructions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from satchel.errors import DeviceError

    monkeypatch.setenv("SATCHEL_CPU", name)
    try:
        device = find_backend("cpu").open(threads=1)
    except DeviceError:
        pytest.skip(f"this CPU or library has no {name} kernels")
    with device:
        assert all((device.measure(kind, 5000) or 0) > 0 for kind in ("read", "int8", "f32"))
        assert (device.measure("bf16") is not None) == (name in ("avx512bf16", "amx"))


@needs_cpu
@pytest.mark.parametrize("size", [1, 63, 1024, 1025, 1 << 20])
def test_any_size_can_be_read(size: int) -> None:
    with find_backend("cpu").open(threads=2) as device:
        rate = device_peaks.read_rate({device: size})
        assert rate is not None and rate > 0


def test_what_cannot_be_read() -> None:
    with find_backend("numba").open() as device, pytest.raises(RequestError):
        device_peaks.read_rate({device: 0})


@pytest.mark.parametrize("name", ["numba", "null"])
def test_a_device_without_measures_gets_numpy_s_bandwidth(name: str) -> None:
    if name not in HAVE | {"numba"}:
        pytest.skip(f"no {name} backend is installed")
    with find_backend(name).open() as device:
        assert all(device.measure(what) is None for what in MEASURE)
        found = device_peaks.measure({device: 1.0})
        assert found.read is not None and found.read > 0 and not found.multiply
        assert found.peak("int8") is None and found.giga("f32") is None
        assert found.least_seconds(PlanCost(1.0, Counter(int8=1))) is None


class Known:
    """A device that reads at a rate of its own; None: it cannot tell, and has memory of its own."""

    can_wrap = False

    def __init__(self, rate: float | None) -> None:
        self.rate = rate

    def measure(self, what: str, size: int = 0) -> float | None:
        return self.rate


def test_devices_that_take_turns_add_their_times() -> None:
    fast, slow, silent = (cast(Device, Known(rate)) for rate in (4e9, 1e9, None))
    assert device_peaks.read_rate({fast: 4e9, slow: 1e9}) == pytest.approx(2.5e9)
    assert device_peaks.read_rate({fast: 4e9, silent: 0}) == pytest.approx(4e9)
    assert device_peaks.read_rate({fast: 4e9, silent: 1}) is None
    assert device_peaks.measure({fast: 2.0, slow: 1.0}).multiply == {}


@pytest.mark.parametrize(
    "name", ["emulated", *(name for name in ("cuda", "hip", "metal", "sycl") if name in HAVE)]
)
def test_a_gpu_measures_its_own_memory(name: str) -> None:
    if name not in HAVE or not find_backend(name).count():
        pytest.skip(f"no device of {name}")
    with find_backend(name).open() as device:
        assert all((device.measure("read", size) or 0) > 0 for size in (1, 1 << 20))
        assert device.measure("int8") is None


@pytest.mark.parametrize(
    ("rates", "kind", "peak"),
    [
        ({"int8": 8.0, "f32": 2.0}, "int8", 8.0),
        ({"int8": 8.0, "f32": 2.0}, "bf16x2", 2.0),
        ({"bf16": 32.0, "f32": 2.0}, "bf16x2", 16.0),
        ({"bf16": 3.0, "f32": 2.0}, "bf16x2", 2.0),
        ({"int8": 8.0}, "bf16x2", None),
    ],
)
def test_peaks_of_kinds(rates: dict[str, float], kind: str, peak: float | None) -> None:
    assert DevicePeaks(1.0, rates).peak(kind) == peak


def test_least_seconds_adds_what_each_kind_takes() -> None:
    found = DevicePeaks(1.0, {"int8": 100.0, "bf16": 80.0, "f32": 10.0})
    assert found.least_seconds(PlanCost(0.0, Counter(int8=50, bf16x2=20, f32=5))) == pytest.approx(1.5)
    assert found.least_seconds(PlanCost()) == 0
