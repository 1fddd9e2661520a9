"""The drivers of the C library compiled for Windows by MinGW, as scripts that run them under Wine, so that a
Driver of embedded.py speaks with them as with those of this machine.

Processes of Wine start services that keep their output open. So the first one, of services(), writes nowhere
and stays to the end: the services are its children.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import embedded
import pytest
from embedded import ROOT
from installed import cmake, tool
from once import made_once
from waiting import SECONDS

from satchel.runtime.device.libraries import find_backend, kernel_sets

HERE = ROOT / "tests" / "cext" / "embed"
SOURCES = {"driver": ("driver", "templates"), "words": ("words_driver",)}


def kernels() -> str:
    """The kernel set that both sides take: avx2, or else the best of this machine's that Windows has."""
    have = [name for name in kernel_sets(Path(find_backend("cpu").path)) if name != "amx"]
    if not have:
        pytest.skip("the engine has amx alone, a set that Windows lacks: SATCHEL_SETS=runnable")
    return "avx2" if "avx2" in have else have[-1]


def library(factory: pytest.TempPathFactory) -> Path:
    """libsatchel.a for Windows: of `make windows`, brought up to date, or compiled here with one set."""
    tool("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64")
    theirs = ROOT / "build" / "windows"
    if (theirs / "CMakeCache.txt").exists():
        made_once(factory, "windows", lambda _: _build(theirs))
        return theirs / "embed" / "libsatchel.a"
    return made_once(factory, "windows", _configured_and_built) / "embed" / "libsatchel.a"


def _configured_and_built(folder: Path) -> None:
    options = ["-DCMAKE_BUILD_TYPE=Quick", "-DCMAKE_C_FLAGS_QUICK=-O1", f"-DSATCHEL_SETS={kernels()}"]
    options += [f"-DSATCHEL_{name}=OFF" for name in ("CUDA", "HIP", "SYCL")] + ["-DSATCHEL_EMBED=ON"]
    chain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT / '.ci' / 'mingw.cmake'}"
    embedded.run([cmake(), "-S", str(ROOT), "-B", str(folder), chain, *options])
    _build(folder)


def _build(folder: Path) -> None:
    embedded.run([cmake(), "--build", str(folder), "--target", "satchel_embed_static", "--parallel", "2"])


def program(factory: pytest.TempPathFactory, name: str) -> Path:
    """A script that runs a driver, "driver" or "words", under Wine; skips a test where that cannot be."""
    compiler = tool("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64")
    wine = tool("wine", "wine wine64")
    archive = library(factory)

    def make(folder: Path) -> None:
        sources = [str(HERE / f"{source}.c") for source in SOURCES[name]]
        flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", *embedded.WARNINGS, *embedded.INCLUDES]
        made = folder / "driver.exe"
        embedded.run([compiler, *flags, *sources, str(archive), "-o", str(made), "-static", "-pthread"])
        script = folder / "driver"
        script.write_text(f"#!/bin/sh\nexec {wine} '{made}' 2>/dev/null\n", encoding="utf-8")
        script.chmod(0o755)

    return made_once(factory, f"windows-{name}", make) / "driver"


@contextmanager
def services(factory: pytest.TempPathFactory) -> Iterator[None]:
    """Within it Wine runs, with a folder of its own, and the engine takes the kernels of the drivers."""
    first = program(factory, "driver")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINEDEBUG", "-all")
        patch.setenv("WINEDLLOVERRIDES", "mscoree,mshtml=")  # it offers to download these
        patch.setenv("WINEPREFIX", str(factory.mktemp("wine")))
        patch.setenv("SATCHEL_CPU", kernels())
        with subprocess.Popen([first], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            yield
            process.communicate(timeout=SECONDS)
