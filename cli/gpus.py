"""Checks of NVIDIA GPUs for `satchel doctor`: the driver and the CUDA libraries, what is missing and how to
repair it, and the tuning in use.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from satchel.runtime.children import find_program

NVIDIA, DISPLAY = "0x10de", "0x03"  # PCI vendor id, and the device class of GPUs
DEVICES = Path("/sys/bus/pci/devices")
VERSION = Path("/proc/driver/nvidia/version")
DRIVERS = ("libcuda.so.1", "nvcuda.dll")
INSTALL = "install NVIDIA's driver{}, on Ubuntu by: sudo ubuntu-drivers install"
LEAST_CAPABILITY = 75  # ten times what the kernels are written for
MMA, HOPPER = 80, 90  # likewise, the families of cext/cuda/family.h


class GpuRequirement(NamedTuple):
    """A requirement of the GPU."""

    name: str
    there: bool  # it is usable
    needed: bool  # without it no model runs on the GPU
    text: str
    mend: str = ""


def image_text(variant: str, image: str) -> str:
    """The image that a device loaded, and of an NVIDIA card the family of kernels that it gets by it, as in
    ", image sm_80 (mma.sync)"; "": it has no images.
    """
    if not image:
        return ""
    found = re.fullmatch(r"(?:cuda|dry) (\d+)\.(\d)", variant)
    if not found:
        return f", image {image}"
    capability = 10 * int(found[1]) + int(found[2])
    if image.startswith("PTX"):
        family = "portable kernels alone"
    elif capability == HOPPER:
        family = "wgmma"
    elif capability >= MMA:
        family = "mma.sync"
    else:
        family = "m8n8k16 for products and experts, other kernels portable"
    return f", image {image} ({family})"


def cards() -> int:
    """NVIDIA GPUs on the PCI bus, with or without a driver."""
    found = 0
    for device in DEVICES.iterdir() if DEVICES.is_dir() else ():
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        found += vendor == NVIDIA and kind.startswith(DISPLAY)
    return found


def opens(*names: str) -> bool:
    """Whether one of these libraries can be opened."""
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def parts(built: bool, reinstall: str) -> Iterator[GpuRequirement]:
    """The requirements of CUDA. built: Satchel's CUDA library exists. reinstall: the command
    that builds it.
    """
    n, driver = cards(), opens(*DRIVERS)
    if not n and not driver:
        yield GpuRequirement(
            "gpu", False, False, "no NVIDIA GPU is on this machine's bus, and no driver is installed"
        )
        return
    yield _driver(n, driver)
    if built:
        yield GpuRequirement("kernels", True, True, "Satchel was built with kernels for CUDA")
    else:
        nvcc = (
            "nvcc is there now"
            if find_program("nvcc")
            else "take a wheel that has them, or install nvcc first"
        )
        text = f"this build of Satchel has no kernels for CUDA: {nvcc}"
        yield GpuRequirement("kernels", False, True, text, reinstall)
    yield _nvrtc()
    if n > 1:
        yield _nccl()
    if opens("libnvidia-ml.so.1"):
        yield GpuRequirement("nvml", True, False, "energy can be measured")
    else:
        text = "libnvidia-ml.so.1 is not installed: no energy is measured"
        yield GpuRequirement("nvml", False, False, text, "install it with the driver (libnvidia-compute)")


def _driver(n: int, driver: bool) -> GpuRequirement:
    if driver:
        words = VERSION.read_text().split() if VERSION.is_file() else []
        version = next((w for w in words if w[:1].isdigit() and w.count(".") >= 1), "")
        return GpuRequirement("driver", True, True, f"NVIDIA's driver {version}".strip())
    text = f"{n} NVIDIA GPU{'s' * (n > 1)}, but libcuda.so.1 cannot be opened: the driver is not installed"
    return GpuRequirement("driver", False, True, text, INSTALL.format(""))


def mend_image(error: str, reinstall: str) -> str:
    """What mends a GPU that could not be opened: a newer driver, or kernels for it. reinstall: what mends all
    else.
    """
    if found := re.search(r"NVIDIA's driver must be (\d+) or newer", error):
        return INSTALL.format(f" {found[1]} or newer")
    found = re.search(r"no kernels were built for this device \(compute capability (\d+)\.(\d)\)", error)
    if not found or "the driver gave error 2:" in error:
        return reinstall
    arch = int(found[1] + found[2])
    if arch < LEAST_CAPABILITY:
        return "--device cpu: the kernels are written for compute capability 7.5 and newer"
    return f"with nvcc: CMAKE_ARGS=-DSATCHEL_CUDA_ARCHITECTURES={arch} {reinstall} --no-binary satchel"


def _nccl() -> GpuRequirement:
    from satchel.runtime.device.nccl import NAME, nccl_asked

    found = nccl_asked() or "libnccl.so.2"
    if os.environ.get(NAME) == "off":
        return GpuRequirement("nccl", False, False, f"{NAME} is off: groups of GPUs do not use it")
    if opens(found):
        text = f"{found}: groups of GPUs add up long prompts by it where they measure it as faster"
        return GpuRequirement("nccl", True, False, text)
    text = "NCCL (libnccl.so.2) is not installed: groups of GPUs add up long prompts by their own kernels"
    return GpuRequirement(
        "nccl", False, False, text, f"{shlex.quote(sys.executable)} -m pip install 'satchel[nccl]'"
    )


def _nvrtc() -> GpuRequirement:
    from satchel.runtime.kernels.nvrtc import version

    found = version()
    if found:
        return GpuRequirement("nvrtc", True, False, f"NVRTC {found}: kernels of your own may be CUDA C")
    text = "NVRTC (libnvrtc.so) is not installed: kernels of your own can be PTX, not CUDA C"
    return GpuRequirement(
        "nvrtc", False, False, text, f"{shlex.quote(sys.executable)} -m pip install nvidia-cuda-nvrtc"
    )


def tunings() -> Iterator[GpuRequirement]:
    """The results of `satchel tune` for the devices of this machine."""
    from satchel.errors import RequestError
    from satchel.runtime.device.libraries import libraries, open_backend
    from satchel.runtime.tuning import read, tuned_for

    try:
        if not read():
            return
        for found in (f for f in libraries() if not f.reason):
            with open_backend(found).open() as device:
                kept = tuned_for(device)
            if kept is not None:
                changed = sum(t.changes for t in kept.steps.values())
                steps = f"{changed} of {len(kept.steps)} steps changed"
                text = f"{kept.device}: tuning {kept.name} of {kept.day}, {steps}"
                yield GpuRequirement("tuning", True, False, text)
    except RequestError as error:
        yield GpuRequirement("tuning", False, True, str(error), "satchel tune --forget")
