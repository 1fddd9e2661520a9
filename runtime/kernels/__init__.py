"""Kernels of your own: a source registered for an op is compiled when a model is loaded, checked against the
op's definition, and used from then on before the backend's. docs/user-kernels.md shows how.
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
