"""Peak rates of a device, measured on demand: bytes read and multiply-adds per second, for a roofline.

A device measures itself if it can, with its own instructions and threads; otherwise numpy measures memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from satchel.errors import RequestError
from satchel.runtime.compiler.cost import PlanCost
from satchel.runtime.device.bandwidth import LARGEST, read_bandwidth
from satchel.runtime.device.device import Device

BEYOND_CACHE = 1 << 29  # bytes: more than the last-level cache of most machines
NUMBERS = ("int8", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Peak rates."""

    read: float | None  # bytes per second from memory beyond the caches; None: unknown
    # multiply-adds per second by operand type, of NUMBERS; empty if several devices share a model
    multiply: Mapping[str, float]

    def giga(self, number: str) -> float | None:
        """10^9 multiply-adds per second of this operand type."""
        rate = self.multiply.get(number)
        return rate and rate / 1e9

    def peak(self, kind: str) -> float | None:
        """Multiply-adds per second of a PlanCost operand type. bf16 x bf16x2 takes two bf16 multiply-adds or
        one of float32, whichever is faster.
        """
        f32 = self.multiply.get("f32")
        if kind == "bf16x2":
            return max(self.multiply.get("bf16", 0.0) / 2, f32) if f32 else None
        return self.multiply.get(kind)

    def least_seconds(self, cost: PlanCost) -> float | None:
        """Seconds of the cost's multiply-adds at peak rates; None if a peak is unknown."""
        seconds = 0.0
        for kind, macs in cost.macs.items():
            peak = self.peak(kind)
            if peak is None:
                return None
            seconds += macs / peak
        return seconds


def read_rate(devices: Mapping[Device, float]) -> float | None:
    """Bytes per second when the devices, one after another, read these numbers of bytes each; sizes beyond 1
    GiB are measured with 1 GiB. None if a device cannot tell.
    """
    sizes = {device: size for device, size in devices.items() if size >= 1}
    if not sizes:
        raise RequestError("bandwidth of no bytes: expected 1 or more on some device")
    rates = {device: _rate(device, int(size)) for device, size in sizes.items()}
    known = {device: rate for device, rate in rates.items() if rate}
    if len(known) < len(rates):
        return None
    return sum(sizes.values()) / sum(size / known[device] for device, size in sizes.items())


def _rate(device: Device, size: int) -> float | None:
    """The rate of one device: its own measurement, or numpy's if it computes in host memory."""
    found = device.measure("read", min(size, LARGEST))
    if found is None and device.can_wrap:
        return read_bandwidth(size, device.info().threads)
    return found


def measure(devices: Mapping[Device, float]) -> DevicePeaks:
    """Measures the devices that share a model; takes about a second each. The values are the bytes that each
    reads per token. Nothing else should run meanwhile.
    """
    known: dict[str, float] = {}
    if len(devices) == 1:
        rates = {name: device.measure(name) for device in devices for name in NUMBERS}
        known = {name: rate for name, rate in rates.items() if rate is not None}
    whole = sum(devices.values()) or 1.0
    return DevicePeaks(read_rate({d: max(1.0, BEYOND_CACHE * n / whole) for d, n in devices.items()}), known)
