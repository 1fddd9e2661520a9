"""The loadable code of a registered kernel: machine code or PTX for CUDA, a shared object for devices on this
CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from satchel.errors import DeviceError, RequestError, SatchelError
from satchel.runtime.device.device import Device, include
from satchel.runtime.kernels.native import compile_c, compiled_folder
from satchel.runtime.kernels.nvrtc import compile_cuda
from satchel.runtime.kernels.registry import PTX, Kernel

CALL_BYTES = 680  # sizeof(gpu_call) of call.h
NATIVE = {"emulated": ("-DPORT_EMULATED",), "cpu": ()}  # compiler options of backends on this CPU


def image_of(kernel: Kernel, device: Device) -> bytes:
    """The code, with a terminating 0. Raises RequestError if the source is wrong, DeviceError if a compiler
    is missing.
    """
    backend, folder = device.backend.name, include()
    if not folder.is_dir():
        raise DeviceError(f"kernel {kernel.entry}: the headers are not in {folder}: install Satchel again")
    if kernel.language == PTX:
        if backend != "cuda":
            raise RequestError(f"kernel {kernel.entry}: {backend} does not take PTX")
        check_ptx(kernel)
        return kernel.source.encode() + b"\0"
    if backend in NATIVE:
        options = (*NATIVE[backend], *kernel.options)
        return compile_c(kernel.entry, kernel.source, options, folder) + b"\0"
    if backend != "cuda":
        known = ", ".join(("cuda", *NATIVE))
        raise RequestError(f"kernel {kernel.entry}: {backend} takes no custom kernels; {known} do")
    return compile_cuda(kernel.entry, kernel.source, capability(device), kernel.options, folder) + b"\0"


def compile_ahead(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    """Compiles C kernels before a sandbox forbids starting programs; gives their folder. A compiler error is
    reported when a model uses the kernel.
    """
    for kernel in kernels:
        for backend in (name for name in kernel.devices if name in NATIVE and kernel.language != PTX):
            with suppress(SatchelError):
                compile_c(kernel.entry, kernel.source, (*NATIVE[backend], *kernel.options), include())
    return (str(compiled_folder()),)


def check_ptx(kernel: Kernel) -> None:
    """Raises RequestError if the PTX lacks the kernel, or was built with another version of the headers."""
    entry = re.search(rf"\.entry\s+{kernel.entry}\s*\(([^)]*)\)", kernel.source)
    if entry is None:
        raise RequestError(f"kernel {kernel.entry}: its PTX has no .entry of this name")
    sizes = [int(n) for n in re.findall(r"\[(\d+)\]", entry[1])]
    if entry[1].count(".param") != 1 or sizes != [CALL_BYTES]:
        takes = " ".join(entry[1].split())
        raise RequestError(
            f"kernel {kernel.entry}: its PTX takes ({takes}), not a gpu_call of {CALL_BYTES} bytes: "
            "build it again with this version's call.h"
        )


def capability(device: Device) -> int:
    """Compute capability of a CUDA device, as 10 * major + minor."""
    major, _, minor = device.info().variant.rpartition(" ")[2].partition(".")
    return 10 * int(major) + int(minor)
