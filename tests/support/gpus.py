"""The GPU backends over which tests are parametrized: the emulated one, those whose driver a test library or
the CPU replaces (where set up), and a real GPU.
"""

import pytest

GPUS = ["emulated", "hip", "sycl", "metal", pytest.param("cuda", marks=pytest.mark.gpu)]
# A real GPU that passes for an older one, as "cuda 8.0" (devices.opened).
OLDER = [pytest.param(f"cuda {capability}", marks=pytest.mark.gpu) for capability in ("7.5", "8.0", "8.6")]
