"""Where NVIDIA's wheels put libnccl.so.2: those of the extra `satchel[nccl]`, or those that PyTorch came
with. The C side opens it (cext/gpu/nccl.c), and looks elsewhere too.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "nvidia.nccl"  # of nvidia-nccl-cu12 and nvidia-nccl-cu13 alike
LIBRARY = Path("lib", "libnccl.so.2")
NAME = "SATCHEL_NCCL"  # a path, or off; it goes before the wheels' library


def nccl_asked() -> str:
    """Path of the library that groups of GPUs may use; "": it is off, or none was found here (the loader may
    find one yet).
    """
    asked = os.environ.get(NAME, "")
    return "" if asked == "off" else asked or str(nccl_library() or "")


def nccl_library() -> Path | None:
    """The library of an installed wheel; None without one. Nothing is imported or opened."""
    try:
        spec = find_spec(PACKAGE)
    except ModuleNotFoundError:  # there is no package nvidia
        return None
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return next((path for folder in folders if (path := Path(folder, LIBRARY)).is_file()), None)
