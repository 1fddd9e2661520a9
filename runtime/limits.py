"""What a device can do at most, measured when it is asked for: bytes read and multiply-adds, a second.

A device measures itself where it can, by its own instructions and threads; numpy reads memory for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from satchel.quant import RequestError
from satchel.runtime.bandwidth import LARGEST, read_bandwidth
from satchel.runtime.device import Device
from satchel.runtime.work import Work

BEYOND_CACHE = 1 << 29  # bytes: more than the last-level cache of most machines
NUMBERS = ("int8", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class Limits:
    """read: bytes a second from memory, of a buffer beyond the caches. multiply: multiply-adds a second by
    the numbers multiplied, of NUMBERS; only those that the device has instructions for and can measure.
    """

    read: float
    multiply: Mapping[str, float]

    def giga(self, number: str) -> float | None:
        """Multiply-adds of such numbers, in units of 10^9 a second."""
        rate = self.multiply.get(number)
        return rate and rate / 1e9

    def peak(self, kind: str) -> float | None:
        """Multiply-adds a second of a kind of product, see Work. A bfloat16 times the sum of two takes two of
        the bf16 instruction's, or one of float32, whichever is quicker.
        """
        f32 = self.multiply.get("f32")
        if kind == "bf16x2":
            return max(self.multiply.get("bf16", 0.0) / 2, f32) if f32 else None
        return self.multiply.get(kind)

    def least_seconds(self, work: Work) -> float | None:
        """The time of the work's multiply-adds at their peaks; None where one is not known."""
        seconds = 0.0
        for kind, macs in work.macs.items():
            peak = self.peak(kind)
            if peak is None:
                return None
            seconds += macs / peak
        return seconds


def read_rate(device: Device, size: int) -> float:
    """Bytes a second at which all threads of the device read `size` bytes again and again, at most 1 GiB."""
    if size < 1:
        raise RequestError(f"bandwidth of {size} bytes: it must be 1 or more")
    found = device.measure("read", min(size, LARGEST))
    return found if found is not None else read_bandwidth(size, device.info().threads)


def measure(device: Device) -> Limits:
    """Measures a device, which takes about a second. Nothing else should run meanwhile."""
    rates = {name: device.measure(name) for name in NUMBERS}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    return Limits(read_rate(device, BEYOND_CACHE), known)
