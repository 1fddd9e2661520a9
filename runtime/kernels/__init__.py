"""Custom kernels: a source registered for an op is compiled when a model is loaded, checked against the op's
definition, and preferred to the backend's kernel from then on. See docs/user-kernels.md.
"""

from __future__ import annotations

from satchel.runtime.kernels.call import KernelCall, LaunchGrid, TensorView
from satchel.runtime.kernels.registry import CUDA, PTX, Kernel, register, registered, unregister

__all__ = [
    "CUDA",
    "PTX",
    "Kernel",
    "KernelCall",
    "LaunchGrid",
    "TensorView",
    "register",
    "registered",
    "unregister",
]
