"""Coverage-guided fuzzing with atheris: `python tests/fuzz/fuzz.py TARGET [LENGTH] [FOLDER]`. LENGTH: seconds
(default: 60), or a number of inputs as in 2000x, see length.py. The target `plans` is written in C, for
libFuzzer itself.

It starts from the committed corpus and writes new inputs to FOLDER (by default a temporary one). It fails at
the first input that breaks its target, and keeps that input in the current folder.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

sys.path.insert(0, str(Path(__file__).parent))

import fuzz_targets
import plans
from length import Length
from mutate_values import READERS, mutate_values

HERE = Path(__file__).parent
LONGEST = 1 << 16  # bytes of an input
SLOWEST = 5  # seconds per input; far above the usual hundredths, so that a busy machine causes no finding
# Compiling a grammar has a budget of a second, and a request may hold several.
SLOW = {"requests": 30, "schema": 15, "gbnf": 15, "lark": 15, "regex": 15}
FILES = (
    "satchel.formats",
    "satchel.runtime.models",
    "satchel.runtime.layers.arch",
    "satchel.runtime.layers.blocks",
)
GRAMMAR = ("satchel.runtime.grammar", "satchel.formats.strict_json")
STORE = ("satchel.store", "satchel.formats.strict_json")
# What reads the bytes of each target, packages with all that is in them; FILES and verify where nothing is
# said.
WATCHED = {
    "requests": (
        "satchel.server",
        *GRAMMAR,
        "satchel.runtime.api.generate_options",
        "satchel.formats.chat",
    ),
    **dict.fromkeys(("schema", "gbnf", "lark", "regex"), GRAMMAR),
    **dict.fromkeys(("registry", "lock", "journal"), STORE),
    "config": ("satchel.cli.config", "satchel.server.catalog", "satchel.runtime.api.options"),
    "wire": ("satchel.runtime.worker.wire",),
    "lora": (*FILES, "satchel.runtime.adapters.lora"),
    "peft": ("satchel.formats.convert", "satchel.formats.strict_json"),
    "onnx": ("satchel.formats.convert",),
}


def modules(target: str) -> Iterator[ModuleType]:
    """The modules that read foreign bytes, also those imported at first use."""
    for name in WATCHED.get(target, (*FILES, "satchel.runtime.tasks.verify")):
        package = importlib.import_module(name)
        yield package
        for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            try:
                yield importlib.import_module(found.name)
            except ImportError:  # what needs an extra that is not installed
                continue


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """The module's own functions and methods, without their decorators."""
    holders: list[Any] = [module]
    holders += [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    for holder in holders:
        for value in list(vars(holder).values()):
            value = getattr(value, "fget", None) or getattr(value, "__func__", value)
            value = getattr(value, "__wrapped__", value)
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                yield value


def main(target: str, length: Length, folder: Path) -> None:
    if absent := fuzz_targets.missing(target):
        print(f"fuzz: {target}: Done 0 runs: {absent}")
        return
    # Not by atheris's import hook, which passes over modules of an editable installation.
    for module in modules(target):
        for function in functions(module):
            atheris.instrument_func(function)

    def one(data: bytes) -> None:
        fuzz_targets.run(target, data)

    limits = [
        f"-max_len={LONGEST}",
        f"-timeout={SLOW.get(target, SLOWEST)}",
        "-rss_limit_mb=2048",
    ]
    places = [sys.argv[0], *limits, *length.arguments(folder, HERE / "corpus" / target)]
    if target in READERS:
        inputs = [path.read_bytes() for path in sorted((HERE / "corpus" / target).iterdir())]

        def mutated(data: bytes, most: int, seed: int) -> bytes:
            rand = random.Random(seed)
            if rand.random() < 0.3:
                return bytes(atheris.Mutate(data, most))
            return mutate_values(target, data, rand, inputs)[:most]

        atheris.Setup(places, one, custom_mutator=mutated)
    else:
        atheris.Setup(places, one)
    atheris.Fuzz()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in (*fuzz_targets.TARGETS, "plans"):
        sys.exit(f"fuzz: give one of {', '.join(fuzz_targets.TARGETS)}, plans")
    given = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(tempfile.mkdtemp(prefix="satchel-fuzz-"))
    length = Length.parse(sys.argv[2] if len(sys.argv) > 2 else "60")
    if sys.argv[1] == "plans":
        plans.main(length, given)
    main(sys.argv[1], length, given)
