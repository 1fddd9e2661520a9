"""Compiles a source of the HIP backend to assembly, which tests look into without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CEXT = Path(__file__).parents[2] / "cext"
CLANG = next((name for name in ("clang++-19", "clang++-20", "clang++-18") if shutil.which(name)), None)


def generated_headers(folder: Path) -> Path:
    """The headers that the build generates, in a folder under this one."""
    if CLANG is None:
        pytest.skip("hip: it needs clang++-18 or newer")
    make = [sys.executable, CEXT / "build_ffi.py", CEXT / "include" / "hal.h", CEXT / "quant"]
    subprocess.run([*make, folder / "_hal.py", folder / "include"], check=True)
    return folder / "include"


def compiled(arch: str, generated: Path, source: Path) -> str:
    """The source compiled as in the build, but to assembly."""
    flags = ["-x", "hip", "-std=c++17", "-O3", "-ffp-contract=off", "-Wno-unused-function"]
    flags += ["--offload-device-only", "-nogpuinc", "-nogpulib", "-ffreestanding", "-nostdlibinc"]
    places = ("hip/include", "hip", "kernels", "include", "quant")
    flags += [*(f"-I{CEXT / p}" for p in places), f"-I{generated}", f"--offload-arch={arch}"]
    done = subprocess.run(
        [str(CLANG), *flags, "-S", "-o", "-", source],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if "error: unsupported HIP gpu architecture" in done.stderr:
        pytest.skip(f"hip: {CLANG} does not know {arch}")
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def number(text: str, key: str) -> int:
    """A number of the kernel's metadata, which the driver reads."""
    found = re.findall(rf"^ +\.{key}: +(\d+)$", text, re.MULTILINE)
    assert len(found) == 1, key
    return int(found[0])
