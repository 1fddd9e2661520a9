"""Builds libsatchel for browsers and Node: `python packaging/wasm.py [-o FOLDER]` writes satchel-simd128.wasm
and satchel-relaxed.wasm, one for each instruction set, beside copies of the files of web/.

zig (PyPI: ziglang) compiles them, with its own C library for WASI. web/satchel.mjs loads the one that the
engine takes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import wheels

SETS = ("simd128", "relaxed")


def main(words: list[str]) -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("-o", "--output", type=Path, default=wheels.ROOT / "dist" / "web", help="folder to write")
    add("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="files compiled at a time")
    add("--work", type=Path, metavar="FOLDER", help="keep what is compiled, for the next build")
    given = parser.parse_args(words)
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = (given.work or Path(scratch)).resolve()
        for name in SETS:
            made = given.output / f"satchel-{name}.wasm"
            shutil.copy(module(name, work / name, given.jobs), made)
            print(f"{made.stat().st_size / 1e6:6.2f} MB  {made.name}", flush=True)
    for path in sorted((wheels.ROOT / "web").glob("*.*")):
        shutil.copy(path, given.output)
    return 0


def module(kernels: str, folder: Path, jobs: int) -> Path:
    """Builds the module of an instruction set in its folder."""
    target = wheels.Target("wasm32-wasi", "", "WASI", "wasm32", (kernels,))
    wheels.configure(target, wheels.Build(wheels.ROOT, jobs), folder, "SATCHEL_EMBED=ON")
    command = ["cmake", "--build", str(folder), "--target", "satchel_web", "--parallel", str(jobs)]
    wheels.run(command, wheels.ROOT)
    return folder / "embed" / "satchel.wasm"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
