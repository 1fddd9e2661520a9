"""The devices that a test needs: what skips it where they cannot be used, with the reason, and opens them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from satchel.errors import DeviceError
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
def passing_for(capability: str) -> Iterator[None]:
    """A CUDA device that is opened meanwhile passes for one of this compute capability; "": of its own."""
    with pytest.MonkeyPatch.context() as patch:
        if capability:
            patch.setenv("SATCHEL_CUDA_CAPABILITY", capability)
        yield


@contextlib.contextmanager
def opened(name: str, *, fast: bool = False) -> Iterator[Device]:
    """A device by its backend's name. "cuda 8.0": one that passes for that compute capability, as do all that
    are opened meanwhile; the test is skipped where the library has no kernels for that. fast: as by
    --precision fast.
    """
    backend, _, capability = name.partition(" ")
    skip_without(backend)
    with passing_for(capability):
        try:
            device = find_backend(backend).open(fast=fast)
        except DeviceError as error:
            if "SATCHEL_CUDA_LOWERED" not in str(error):
                raise
            pytest.skip(str(error))
        with device:
            yield device
