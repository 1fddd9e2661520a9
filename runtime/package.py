"""Satchel: carry a language model in one file.

    from satchel import Model

    with Model.load("model.gguf") as model:
        for piece in model.chat([{"role": "user", "content": "Hello!"}]):
            print(piece, end="")

This file becomes satchel/__init__.py. Names are imported when they are first asked for, so that
`import satchel` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from satchel.quant.errors import DeviceError, ModelError, RequestError, SatchelError
    from satchel.runtime import kernels
    from satchel.runtime.async_model import AsyncModel
    from satchel.runtime.model import Model
    from satchel.runtime.options import Options
    from satchel.runtime.sampling import Sampling

    __version__: str

__all__ = [
    "AsyncModel",
    "DeviceError",
    "Model",
    "ModelError",
    "Options",
    "RequestError",
    "Sampling",
    "SatchelError",
    "__version__",
    "kernels",
]

_HOME = {
    "AsyncModel": "runtime.async_model",
    "DeviceError": "quant.errors",
    "Model": "runtime.model",
    "ModelError": "quant.errors",
    "Options": "runtime.options",
    "RequestError": "quant.errors",
    "Sampling": "runtime.sampling",
    "SatchelError": "quant.errors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("satchel")
    elif name == "kernels":
        value = importlib.import_module("satchel.runtime.kernels")
    elif name in _HOME:
        value = getattr(importlib.import_module(f"satchel.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'satchel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
