"""The GPU backends over which tests are parametrized: the emulated one, those whose driver a test library or
the CPU replaces (where set up), and a real GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from one_step import Case, refused

from satchel.runtime.device.device import Device

GPUS = ["emulated", "hip", "sycl", "metal", pytest.param("cuda", marks=pytest.mark.gpu)]
# A real GPU that passes for an older one, as "cuda 8.0" (devices.opened).
OLDER = [pytest.param(f"cuda {capability}", marks=pytest.mark.gpu) for capability in ("7.5", "8.0", "8.6")]
LOWERED = os.environ.get("SATCHEL_CUDA_CAPABILITY", "")  # for which the GPU passes in all tests; "": for none


def lacks(device: Device, op: str, one: Case, packed: Sequence[int] = ()) -> bool:
    """Whether a GPU that passes for an older one refuses this call of a fused op, whose parts a plan has
    then. What the GPU itself refuses is an error.
    """
    return bool(LOWERED) and refused(device, op, one, packed=packed)


def skip_where_none(op: str, tried: int) -> None:
    """Skips a test whose calls were all lacking."""
    if LOWERED and not tried:
        pytest.skip(f"a GPU of compute capability {LOWERED} has no kernel of {op}: plans have its parts")
    assert tried
