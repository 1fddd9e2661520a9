"""The sandbox policy of one model's worker, made by its parent: what it may open, read-only except devices.

Granted: the libraries for computing, the model's files, adapters, control vectors and draft model, system
information on processors and memory, and the devices of GPU backends that may serve it.
With devices of other hosts, also their key, and what names hosts.
Not granted: home and current folders, the network configuration, other models, other processes.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from satchel.errors import SatchelError
from satchel.formats.gguf import open_gguf
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.api.options import Options
from satchel.runtime.children import NEEDED, came_from, module_path
from satchel.runtime.device.libraries import library_files
from satchel.runtime.net.address import SLASH, read_name
from satchel.runtime.placement.speeds import cache_file
from satchel.runtime.tuning import kept

# Library folders of systems and vendors. Missing ones are skipped.
SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/run/opengl-driver",
    "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/zero",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/proc/sys/kernel/osrelease",
    "/sys/devices/system", "/sys/fs/cgroup",
)  # fmt: skip
VENDORS = ("rocm*", "amdgpu*", "intel", "nvidia")  # below /opt
TOOLKITS = ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH", "ONEAPI_ROOT")
# Where the C library looks names of hosts up.
NAMES = (
    "/etc/hosts",
    "/etc/resolv.conf",
    "/run/systemd/resolve",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
)
# By backend: devices (patterns below /dev), and other files that its driver reads.
DRIVERS = {
    "cuda": (("nvidia*", "nvidia-caps/*"), ("/proc/driver/nvidia", "/proc/devices", "/sys")),
    "hip": (("kfd", "dri/*"), ("/proc/devices", "/sys", "/etc/OpenCL")),
    "sycl": (("dri/*",), ("/sys", "/etc/OpenCL")),
}
# Package folders, whose links are followed; elsewhere on the module path a link may lead anywhere.
INSTALLED = ("site-packages", "dist-packages")
# Backends whose driver compiles kernels, with temporary files, while a model loads.
COMPILING = ("sycl",)


def policy_of(files: Sequence[Path], options: Options) -> dict[str, Any]:
    """The policy of a worker that loads these files with these options, as JSON. Missing files are left for
    the worker to report. compiles: it needs a temporary folder, whose path its owner puts under "scratch".
    ports: those of other hosts to which it may connect until the model is loaded.
    """
    backends = _backends(options)
    devices = [path for name in backends for path in _devices(name)]
    read = [*SYSTEM, *_libraries(), *map(str, _files(files, options))]
    for name in backends:
        read += DRIVERS[name][1]
    keep = []
    if devices:
        with suppress(OSError):
            cache_file().parent.mkdir(parents=True, exist_ok=True)
            keep.append(str(cache_file().parent))
    read = list(dict.fromkeys(map(_absolute, read)))
    compiles = any(name in COMPILING for name in backends)
    ports = sorted({read_name(name).address.port for name in _far(options)})
    return {"read": read, "devices": devices, "keep": keep, "compiles": compiles, "ports": ports}


def _far(options: Options) -> list[str]:
    """The named devices of other hosts."""
    return [name for name in options.placement_options.devices if SLASH in name]


def _backends(options: Options) -> list[str]:
    """GPU backends that may serve a model with these options."""
    asked = {name.strip().partition(":")[0] for name in options.device.split(",")}
    installed = {path.stem.removeprefix("libsatchel_") for path in library_files()}
    known = [name for name in DRIVERS if name in installed]
    return known if "auto" in asked else [name for name in known if name in asked]


def _devices(backend: str) -> list[str]:
    patterns, _ = DRIVERS[backend]
    found = (path for pattern in patterns for path in Path("/dev").glob(pattern))
    return sorted(str(path) for path in found if not path.is_dir())


def _libraries() -> Iterator[str]:
    """Folders that Python and the loader read: this Python's, its modules, Satchel's."""
    yield from {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    if getattr(sys, "frozen", False):
        yield sys.executable  # it holds the modules
    ours = list(_ours())
    above = {above for path in ours for above in Path(path).parents[1:]}
    for folder in (*site.getsitepackages(), *module_path()):
        if Path(folder).name in INSTALLED:
            yield from _linked(folder)
        elif Path(folder) in above and not any(came_from(name, Path(folder)) for name in NEEDED):
            continue  # an editable install puts the folder that holds the clone on the path: often a home
        yield folder
    yield from ours
    yield from (str(path.parent) for path in library_files())
    yield from (str(path) for name in VENDORS for path in Path("/opt").glob(name))
    for variable in ("LD_LIBRARY_PATH", *TOOLKITS):
        yield from (f for f in os.environ.get(variable, "").split(os.pathsep) if Path(f).is_absolute())


def _ours() -> Iterator[str]:
    """Real locations of Satchel's packages: an editable install or a link may keep each elsewhere."""
    for name, module in list(sys.modules.items()):
        if name.startswith("satchel.") and name.count(".") == 1:
            yield from map(os.path.realpath, getattr(module, "__path__", ()))
    # The child resolves names of models; a program that serves engines need not have imported this.
    if (found := find_spec("satchel.store")) is not None:
        yield from map(os.path.realpath, found.submodule_search_locations or ())


def _linked(folder: str) -> Iterator[str]:
    """Real locations of the packages in this folder: installers may link packages, or single files, to a
    store.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield os.path.realpath(entry)
            elif entry.is_dir():
                with os.scandir(entry) as files:
                    link = next((file for file in files if file.is_symlink()), None)
                if link:
                    yield str(Path(link).resolve().parent)


def _files(files: Iterable[Path], options: Options) -> Iterator[Path]:
    """The model's files, and all files that its options name."""
    yield from files
    for given in (*options.adapters, *options.control_vectors):
        yield from parts_of(Path(given.path if isinstance(given, AdapterFile) else given))
    if options.speculation and options.speculation.draft_model is not None:
        yield from parts_of(Path(options.speculation.draft_model))
    if (tuning := kept.place()) is not None:
        yield tuning
    if _far(options):
        yield from (Path(options.device_key), *map(Path, NAMES))


def parts_of(path: Path) -> list[Path]:
    """All files of a split model, from one of them; that file alone if it cannot be read."""
    try:
        with open_gguf(path) as found:
            return [part.path for part in found.parts]
    except SatchelError:
        return [path]


def _absolute(path: str) -> str:
    return str(Path(path).absolute())
