"""A device that does nothing more for this process, and how it is told."""

from __future__ import annotations

from satchel.errors import DeviceError


class DeviceLost(DeviceError):
    """The device's driver gave an error that is final: whatever it holds is gone."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device} was lost: {reason}")
        self.device, self.reason = device, reason
