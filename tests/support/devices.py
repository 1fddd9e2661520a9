"""The devices that a test needs: what skips it where they cannot be used, with the reason, and opens them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend, libraries


def missing(name: str) -> str:
    """Why the device cannot be used here; "" if it can."""
    reasons = [f.reason for f in libraries() if f.name == name]
    return "" if "" in reasons else next(iter(reasons), "its library was not built")


def needs(name: str) -> pytest.MarkDecorator:
    """A mark for tests of a device."""
    why = missing(name)
    return pytest.mark.skipif(bool(why), reason=f"{name}: {why}")


def skip_without(name: str) -> None:
    if why := missing(name):
        pytest.skip(f"{name}: {why}")


@contextlib.contextmanager
def opened(name: str) -> Iterator[Device]:
    skip_without(name)
    with find_backend(name).open() as device:
        yield device
