"""Coverage-guided fuzzing with atheris: `python tests/fuzz/fuzz.py TARGET [SECONDS] [FOLDER]`.

Starts from the committed corpus and writes what it finds into FOLDER (by default one that is thrown away).
Ends with an error at the first input that breaks its target; the input is then kept in the current folder.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import fuzz_targets

import satchel.formats
import satchel.runtime.arch
import satchel.runtime.blocks
import satchel.runtime.models
import satchel.runtime.verify

HERE = Path(__file__).parent
LONGEST = 1 << 16  # bytes of an input
SLOWEST = 5  # seconds; a busy machine must not make a find of what takes a few hundredths
FOLDERS = (satchel.formats, satchel.runtime.models)
ALONE = (satchel.runtime.arch, satchel.runtime.blocks, satchel.runtime.verify)


def modules() -> Iterator[ModuleType]:
    """What reads bytes of strangers, also what is imported at its first use."""
    yield from ALONE
    for package in FOLDERS:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                yield importlib.import_module(found.name)
            except ImportError:  # what needs an extra that is not installed
                continue


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """The module's own, those of its classes too, under whatever decorators they have."""
    holders: list[Any] = [module]
    holders += [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    for holder in holders:
        for value in list(vars(holder).values()):
            value = getattr(value, "fget", None) or getattr(value, "__func__", value)
            value = getattr(value, "__wrapped__", value)
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                yield value


def main(target: str, seconds: int, folder: Path) -> None:
    # Not by atheris's import hook, which passes over modules of an editable installation.
    for module in modules():
        for function in functions(module):
            atheris.instrument_func(function)

    def one(data: bytes) -> None:
        fuzz_targets.run(target, data)

    limits = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST}",
        f"-timeout={SLOWEST}",
        "-rss_limit_mb=2048",
    ]
    atheris.Setup([sys.argv[0], *limits, str(folder), str(HERE / "corpus" / target)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in fuzz_targets.TARGETS:
        sys.exit(f"fuzz: give one of {', '.join(fuzz_targets.TARGETS)}")
    given = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(tempfile.mkdtemp(prefix="satchel-fuzz-"))
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60, given)
