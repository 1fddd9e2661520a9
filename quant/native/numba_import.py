"""numba, imported so that nothing in the current folder changes what it does.

numba reads settings from a file in the current folder, at its import and before each compilation. One of them
names the folder of compiled code, whose index is a pickle: reading it runs code. So the file is not read.
"""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

SETTINGS = Path(".numba_config.yaml")
IMPORTING = threading.Lock()


def import_numba() -> Any:
    """The module numba, whole for several threads at once. ImportError where it cannot be imported."""
    with IMPORTING:
        there = sys.modules.get("numba") or not SETTINGS.exists()
        # import_module waits for a thread that is in the middle of the import; sys.modules has half of it.
        numba = importlib.import_module("numba") if there else _import_without_yaml()
        config: Any = sys.modules.get("numba.core.config")
        if hasattr(config, "_config_fname"):
            config._config_fname = ""  # no file has this name: none is read before a compilation either
        return numba


def _import_without_yaml() -> ModuleType:
    """numba skips its file where it finds no module yaml, and warns."""
    known = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "yaml"}
    sys.modules["yaml"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="A Numba config file is found")
            return importlib.import_module("numba")
    finally:
        del sys.modules["yaml"]
        sys.modules.update(known)
