"""The GPU backends that tests are parametrized with: the emulated one, those whose driver a test library or a
CPU replaces (where set up), and a real GPU.
"""

import pytest

GPUS = ["emulated", "hip", "sycl", "metal", pytest.param("cuda", marks=pytest.mark.gpu)]
