"""Builds the programs of `satchel bundle` for several systems: `python packaging/stubs.py [TARGET ...]`, by
default all of them, into a wheel satchel-stubs, where the command finds them.

Each is static, as zig (PyPI: ziglang) links it: musl for Linux, the system's own libraries for Windows and
macOS. The names of targets are those of `satchel bundle --target`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import wheels

PACKAGE, PROGRAM = "satchel_stubs", "satchel-program"  # as cli/bundles/stubs.py seeks them
MARK = b"SATCHEL PROGRAM\0"  # in each program, before the number of its version
TARGETS = {
    "x86_64-linux": "musllinux-x86_64",
    "aarch64-linux": "musllinux-aarch64",
    "x86_64-windows": "windows-x86_64",
    "aarch64-windows": "windows-arm64",
    "x86_64-macos": "macos-x86_64",
    "aarch64-macos": "macos-arm64",
}
MOST = 4_000_000  # bytes of a program with all kernel sets
# Tables by which debuggers walk up from any instruction, 0.14 MB, are of little use where no names are left.
# Those of Windows and macOS have forms of their own, which the system reads.
NO_TABLES = "CMAKE_C_FLAGS=-fno-asynchronous-unwind-tables -fno-unwind-tables"


def main(words: list[str]) -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("-o", "--output", type=Path, default=wheels.ROOT / "dist", help="folder of the wheel")
    add("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="files compiled at a time")
    add("--work", type=Path, metavar="FOLDER", help="keep what is compiled, for the next build")
    add("--sets", metavar="NAMES", help="a program has those of its processor, as avx2,neon; default: all")
    add("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    given = parser.parse_args(words)
    for name in given.targets:
        if name not in TARGETS:
            parser.error(f"{name}: expected one of {', '.join(TARGETS)}")
    given.output.mkdir(parents=True, exist_ok=True)
    made = {}
    with tempfile.TemporaryDirectory() as scratch:
        work = (given.work or Path(scratch)).resolve()
        build = wheels.Build(wheels.copied(work / "source"), given.jobs)
        for name in given.targets or TARGETS:
            made[name] = program(wheels.TARGETS[TARGETS[name]], build, work / name, given.sets)
            print(f"{made[name].stat().st_size / 1e6:6.2f} MB  {name}", flush=True)
        path = wheel(given.output, made)
    print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}", flush=True)
    return 0


def wheel(output: Path, made: dict[str, Path]) -> Path:
    """Writes the wheel of these programs, by target."""
    files = {f"{PACKAGE}/__init__.py": b'"""Programs without a model, for `satchel bundle`."""\n'}
    files |= {f"{PACKAGE}/{name}/{path.name}": path.read_bytes() for name, path in made.items()}
    return wheels.write(output, "satchel-stubs", version(), "any", files, papers())


def program(target: wheels.Target, build: wheels.Build, folder: Path, sets: str | None) -> Path:
    """Builds a target's program in its folder. SystemExit where it does not compile or is too large."""
    if sets:
        chosen = tuple(name for name in target.sets if name in sets.split(","))
        if not chosen:
            raise SystemExit(f"stubs: --sets: expected some of {', '.join(target.sets)}, got {sets}")
        target = replace(target, sets=chosen)
    flags = (NO_TABLES,) if target.system == "Linux" else ()
    wheels.configure(target, build, folder, "SATCHEL_EMBED=ON", *flags)
    command = ["cmake", "--build", str(folder), "--target", "satchel_program"]
    wheels.run([*command, "--parallel", str(build.jobs)], build.tree)
    made = next(p for p in (folder / "embed").glob(f"{PROGRAM}*") if p.suffix in ("", ".exe"))
    if made.stat().st_size > MOST:
        raise SystemExit(f"stubs: {made}: expected {MOST:,} bytes at most, got {made.stat().st_size:,}")
    return made


def version() -> str:
    """The version of Satchel, whose plans the programs run."""
    return wheels.named(wheels.ROOT)[1]


def papers() -> wheels.Files:
    metadata = (
        "Metadata-Version: 2.4\nName: satchel-stubs\n"
        f"Version: {version()}\nSummary: Programs without a model, for satchel bundle\n"
        "License-Expression: MIT\nLicense-File: LICENSE\nRequires-Python: >=3.11\n"
        "Description-Content-Type: text/plain\n\n"
        "What `satchel bundle` puts a model behind: static programs that chat or serve, one a target.\n"
    )
    return {"METADATA": metadata.encode(), "licenses/LICENSE": (wheels.ROOT / "LICENSE").read_bytes()}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
