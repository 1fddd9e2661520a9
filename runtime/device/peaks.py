"""Peak rates of a device, measured on demand: bytes read and multiply-adds per second, as a roofline needs.

A device measures itself where it can, by its own instructions and threads; numpy reads memory for the others.
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
    """read: bytes a second from memory, of a buffer beyond the caches; None where a device cannot tell.
    multiply: multiply-adds a second by the numbers multiplied, of NUMBERS; only those that the device has
    instructions for and can measure, and none where several devices share a model.
    """

    read: float | None
    multiply: Mapping[str, float]

    def giga(self, number: str) -> float | None:
        """Multiply-adds of such numbers, in units of 10^9 a second."""
        rate = self.multiply.get(number)
        return rate and rate / 1e9

    def peak(self, kind: str) -> float | None:
        """Multiply-adds a second of a kind of product, see PlanCost. bf16 x (bf16 + bf16) takes two of the
        bf16 instruction's, or one of float32, whichever is faster.
        """
        f32 = self.multiply.get("f32")
        if kind == "bf16x2":
            return max(self.multiply.get("bf16", 0.0) / 2, f32) if f32 else None
        return self.multiply.get(kind)

    def least_seconds(self, cost: PlanCost) -> float | None:
        """Seconds of the cost's multiply-adds at their peaks; None where a peak is unknown."""
        seconds = 0.0
        for kind, macs in cost.macs.items():
            peak = self.peak(kind)
            if peak is None:
                return None
            seconds += macs / peak
        return seconds


def read_rate(devices: Mapping[Device, float]) -> float | None:
    """Bytes a second at which devices, one after the other, read so many bytes each, again and again; sizes
    beyond 1 GiB are measured with 1 GiB. None where one of them cannot tell.
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
    """The rate of one device: its own measure, or numpy's where it computes in the host's memory."""
    found = device.measure("read", min(size, LARGEST))
    if found is None and device.can_wrap:
        return read_bandwidth(size, device.info().threads)
    return found


def measure(devices: Mapping[Device, float]) -> DevicePeaks:
    """Measures the devices that share a model, and how many bytes each reads for a token; takes about a
    second each. Nothing else should run meanwhile.
    """
    known: dict[str, float] = {}
    if len(devices) == 1:
        rates = {name: device.measure(name) for device in devices for name in NUMBERS}
        known = {name: rate for name, rate in rates.items() if rate is not None}
    whole = sum(devices.values()) or 1.0
    return DevicePeaks(read_rate({d: max(1.0, BEYOND_CACHE * n / whole) for d, n in devices.items()}), known)
