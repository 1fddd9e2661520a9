"""Errors of devices that no longer work for this process, or cannot be reached from it."""

from __future__ import annotations

from satchel.errors import DeviceError


class DeviceLost(DeviceError):
    """The device's driver gave an error that is final: whatever it holds is gone."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device} was lost: {reason}")
        self.device, self.reason = device, reason


class LinkLost(DeviceLost):
    """The connection to a device's host ended. What the device held for it is gone, but a new connection may
    reach the device.
    """


class DeviceUnreachable(DeviceError):
    """The host of a device does not answer, or takes no connection."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device} cannot be reached: {reason}")
        self.device, self.reason = device, reason
