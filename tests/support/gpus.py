"""Backends for GPUs that tests take their turns with: one that is emulated, those that a test library or a
processor can stand in for where it is set up, and a real one.
"""

import pytest

GPUS = ["emulated", "hip", "sycl", "metal", pytest.param("cuda", marks=pytest.mark.gpu)]
