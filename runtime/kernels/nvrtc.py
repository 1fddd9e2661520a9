"""CUDA C to machine code by NVRTC, which is looked for when it is first needed; nothing is linked against it.

Its library comes with the CUDA toolkit or with the package nvidia-cuda-nvrtc.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from satchel.errors import DeviceError, RequestError

VERSIONS = (13, 12)
MEND = "install the CUDA toolkit or `pip install nvidia-cuda-nvrtc` (of CUDA 12: -cu12), or register PTX"
SPECIAL = {90: "a"}  # code for this very device, which alone has all of its instructions
# What the language's headers want of a C library, where there is none.
STDINT = """
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
typedef uint64_t uintptr_t; typedef int64_t intptr_t;
#define INT32_MAX 0x7fffffff
#define UINT32_MAX 0xffffffffu
#define INT64_MAX 0x7fffffffffffffffll
#define UINT64_MAX 0xffffffffffffffffull
"""
MATH = "#define INFINITY __int_as_float(0x7f800000)\n#define NAN __int_as_float(0x7fffffff)\n"
LIBC = {"stdint.h": STDINT, "math.h": MATH, "string.h": "", "stddef.h": "#define NULL 0\n"}


def places() -> Iterator[str]:
    """Where the library may be, what the system's loader finds by itself first."""
    names = [f"libnvrtc.so.{v}" for v in VERSIONS]
    yield from names
    folders = [Path(os.environ[k]) / "lib64" for k in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(k)]
    folders.append(Path("/usr/local/cuda/lib64"))
    found = find_spec("nvidia")
    for root in (found.submodule_search_locations or ()) if found else ():
        folders += [Path(root, f"cu{v}", "lib") for v in VERSIONS] + [Path(root, "cuda_nvrtc", "lib")]
    yield from (str(folder / name) for folder in folders for name in names)


@functools.cache
def library() -> ctypes.CDLL | None:
    """NVRTC, or None where it is not installed."""
    for place in places():
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


def version() -> str:
    """Its version, or "" where it is not installed."""
    lib = library()
    if lib is None:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_cuda(name: str, source: str, arch: int, options: Sequence[str], include: Path) -> bytes:
    """Machine code of CUDA C for compute capability arch / 10. DeviceError where NVRTC is missing;
    RequestError with what the compiler said.
    """
    lib = library()
    if lib is None:
        missing = f"kernel {name}: NVRTC (libnvrtc.so), which compiles CUDA C, is not installed"
        raise DeviceError(f"{missing}: {MEND}")
    program = ctypes.c_void_p()
    texts = (ctypes.c_char_p * len(LIBC))(*(t.encode() for t in LIBC.values()))
    names = (ctypes.c_char_p * len(LIBC))(*(n.encode() for n in LIBC))
    code = lib.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), f"{name}.cu".encode(), len(LIBC), texts, names
    )
    _done(lib, code, name)
    try:
        flags = [
            f"--gpu-architecture=sm_{arch}{SPECIAL.get(arch, '')}",
            "--std=c++17",
            "-default-device",
            f"-I{include}",
            *options,
        ]
        given = (ctypes.c_char_p * len(flags))(*map(str.encode, flags))
        code = lib.nvrtcCompileProgram(program, len(flags), given)
        if code:
            said = _text(lib, "ProgramLog", program).decode(errors="replace").strip(" \n\0")
            raise RequestError(f"kernel {name}: NVRTC {version()} refused its source:\n{said}")
        return _text(lib, "CUBIN", program)
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _text(lib: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _done(lib, lib[f"nvrtcGet{what}Size"](program, ctypes.byref(size)), what)
    out = ctypes.create_string_buffer(size.value)
    _done(lib, lib[f"nvrtcGet{what}"](program, out), what)
    return out.raw


def _done(lib: ctypes.CDLL, code: int, name: str) -> None:
    if code:
        lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise DeviceError(f"kernel {name}: NVRTC: {lib.nvrtcGetErrorString(code).decode()}")
