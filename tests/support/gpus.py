"""The GPU backends over which tests are parametrized: the emulated one, those whose driver a test library or
the CPU replaces (where set up), and a real GPU.
"""

import pytest

GPUS = ["emulated", "hip", "sycl", "metal", pytest.param("cuda", marks=pytest.mark.gpu)]
