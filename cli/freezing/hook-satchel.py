"""PyInstaller's hook for satchel: modules found by name (architectures, chat families, block formats, the
names at the root of the package), the chat templates, the backends' libraries, and the bundled model.

A program with a model of its own leaves the bundled one out: its .spec file has hooksconfig={"satchel":
{"bundled_model": False}}. numba and its LLVM come where no backend was built.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from PyInstaller.utils.hooks import copy_metadata, get_hook_config

from satchel.errors import RequestError
from satchel.formats.template.chat import NAMED
from satchel.runtime.device.device import include
from satchel.runtime.device.libraries import library_files
from satchel.store.resolve import default_model

FOUND_BY_NAME = ("satchel.runtime.models", "satchel.formats.chat.families", "satchel.quant.formats")


def modules_of(package: str) -> list[str]:
    """The package and its modules."""
    path = importlib.import_module(package).__path__
    return [package, *(f"{package}.{found.name}" for found in pkgutil.iter_modules(path))]


homes = vars(importlib.import_module("satchel"))["_HOME"]  # modules of the names at the root
root = sorted({f"satchel.{home}" for home in homes.values()})
own = [path for path in library_files() if path.parent == include().parent]
hiddenimports = [*root, "satchel.runtime.kernels", *(m for name in FOUND_BY_NAME for m in modules_of(name))]
if not any(path.stem == "libsatchel_cpu" for path in own):
    hiddenimports.append("numba")  # the backend in Python
excludedimports = ["IPython"]
binaries = [(str(path), "satchel/cext") for path in own]
datas = [(str(include()), "satchel/cext/headers"), (str(NAMED), "satchel/formats/template/named")]
for package in ("satchel", "llguidance"):  # they look up their own versions
    datas += copy_metadata(package)


def hook(hook_api: Any) -> None:
    """Adds the bundled model, unless the program's .spec file says that it needs none."""
    if get_hook_config(hook_api, "satchel", "bundled_model") is False:
        return
    try:
        hook_api.add_datas([(str(default_model()), "satchel/models")])
    except RequestError:
        return  # this install has no model
