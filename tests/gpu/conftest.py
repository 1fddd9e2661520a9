"""Open devices, one of each for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from devices import opened
from gpus import OLDER

from satchel.runtime.device.device import Device


@pytest.fixture(scope="module")
def cuda() -> Iterator[Device]:
    with opened("cuda") as device:
        yield device


@pytest.fixture(scope="module", params=["cuda", *OLDER])
def card(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The GPU, and as it passes for older ones."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module")
def cpu() -> Iterator[Device]:
    with opened("cpu") as device:
        yield device


@pytest.fixture(scope="module")
def dry() -> Iterator[Device]:
    """CUDA's host code and kernel tables, over a driver without a device."""
    with opened("dry") as device:
        yield device
