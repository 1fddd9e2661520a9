"""Fault: every system call of an operation fails in turn: n = 1, 2, 3 ... until there is no n-th call.

What must hold: the same result as without a fault, or one error for users; files are unchanged, or new and
complete; nothing else is left behind.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from operations import PRINTED, Operation, copied, dumped, left_behind, outcome
from points import CLEAN, CORRUPT, LEFT, OK, PATIENCE, TRACEBACK, WRONG, Ending, Row, forked
from shim import FAMILIES, FAULTS, Fault, Shim

from satchel.runtime.device.libraries import find_backend, libraries

PARTS = 6  # parts of the faults, one of which a short run tries on an operation
END = 1 << 40  # the number of a call that never happens


class Sweep:
    """The points of one operation. folder: for its files, whose names never change."""

    def __init__(self, shim: Shim, operation: Operation, folder: Path, patience: float = PATIENCE) -> None:
        self.shim, self.operation, self.folder, self.patience = shim, operation, folder, patience
        self.counts: dict[tuple[int, str | None], int] = {}
        self.inputs, self.at, self.log = folder / "inputs", folder / "at", folder / "log"
        self.inputs.mkdir(parents=True)
        operation.prepare(self.inputs)
        self.warm()
        ending = self.run(0, END)
        if (
            ending.kind != OK
            or "value" not in ending.value["told"]
            or (operation.program and self.told(ending))
        ):
            raise RuntimeError(f"{operation.name} fails without a fault: {ending}")
        self.wanted = dumped(ending.value["told"])
        self.wanted_again = dumped({k: v for k, v in ending.value["told"].items() if k != "printed"})
        self.known = {p.relative_to(self.at).as_posix() for p in self.at.rglob("*") if p.is_file()}
        self.versions = {name: self.version(self.at, name) for name in operation.outputs}

    def warm(self) -> None:
        """Imports the operation's modules here. Failing imports belong to the interpreter, and only `first
        run` tries them.
        """

        def work() -> Any:
            os.chdir(copied(self.inputs, self.at))
            outcome(self.operation.begin(self.at))
            return sorted(sys.modules)

        if self.operation.warm:
            for name in forked(work, self.log).value or ():
                if name not in sys.modules and name != "__main__":
                    with suppress(Exception):
                        importlib.import_module(name)
            libraries()
            find_backend("cpu")

    def told(self, ending: Ending) -> Any:
        return ending.value["told"].get("value")

    def version(self, folder: Path, name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.is_file() else None

    def run(
        self, family: int, number: int, error: int = 0, flags: int = 0, library: str | None = None
    ) -> Ending:
        """Runs the operation in a fresh folder and process, armed from the start."""
        folder = copied(self.inputs, self.at)

        def work() -> Any:
            os.chdir(folder)
            self.shim.exempt(2)
            run = self.operation.begin(folder)
            self.shim.arm(family, number, error, flags, library)
            try:
                told = outcome(run)
            finally:
                calls = self.shim.disarm()
            printed = Path(PRINTED)
            if told.get("value") == 0 and printed.is_file():
                told["printed"] = printed.read_text()
            return {"told": told, "calls": calls, "fired": self.shim.fired}

        return forked(work, self.log, self.patience)

    def count(self, family: int, library: str | None = None) -> int:
        """The number of calls without a fault."""
        if (family, library) not in self.counts:
            found = self.run(family, END, library=library)
            self.counts[family, library] = int(found.value["calls"])
        return self.counts[family, library]

    def judge(self, ending: Ending) -> tuple[str, str]:
        """(kind, text) of a point."""
        if found := self.corrupt():
            return CORRUPT, f"{found}\n{ending.text}"
        if ending.kind != OK:
            return ending.kind, ending.text
        told, text = ending.value["told"], ending.text
        for sign in ("Traceback", "Exception ignored", "internal error", "Fatal Python error"):
            if sign in text:
                return TRACEBACK, text
        extra = left_behind(self.at, self.known)
        if extra:
            return LEFT, ", ".join(extra)
        if "error" in told:
            return CLEAN, told["error"]
        value = told["value"]
        if value and type(value) is int and self.operation.program:
            lines = [line for line in text.splitlines() if line.startswith("satchel: error: ")]
            return (
                (CLEAN, text) if len(lines) == 1 else (TRACEBACK, f"exit code {value} and no error: {text}")
            )
        if dumped(told) != self.wanted:
            return WRONG, f"expected {self.wanted[:300]}, got {dumped(told)[:300]}"
        return OK, text

    def corrupt(self) -> str:
        """What is wrong with the files; "" for nothing."""
        for name in self.operation.outputs:
            now, old = self.version(self.at, name), self.version(self.inputs, name)
            if now not in (old, self.versions[name]):
                if self.operation.check is None:
                    return f"{name}: neither old nor new"
                found = forked(lambda: self.operation.check(self.at), self.folder / "check.log")  # type: ignore[misc]
                if found.kind != OK:
                    return f"{name}: {found.kind}: {found.text}"
        return ""

    def sweep(self, fault: Fault, some: int | None, seed: int, library: str | None = None) -> Row:
        """All points of a fault, or a sample of `some`."""
        name = f"{self.operation.name}: {fault}" + (f" ({library})" if library else "")
        family, row = FAMILIES[fault.family], Row(name)
        numbers, known = self.numbers(family, some, seed, library)
        for number in numbers:
            ending = self.run(family, number, fault.number, fault.flags, library)
            if ending.kind == OK and not ending.value["fired"]:
                if known:  # there are fewer calls at this run than there were
                    continue
                break
            kind, text = self.judge(ending)
            row.add(f"{name}, call {number}", kind, text)
        return row

    def numbers(
        self, family: int, some: int | None, seed: int, library: str | None
    ) -> tuple[Iterable[int], bool]:
        """The numbers of the failing calls, and whether they are a sample."""
        count = self.count(family, library)
        most = self.operation.most if some is None else min(some, self.operation.most)
        if some is None and count <= most:
            return range(1, END), False
        chosen = random.Random(f"{seed} {self.operation.name} {family}").sample(
            range(1, count + 1), min(most, count)
        )
        return sorted(chosen), True


def sweeps(sweep: Sweep, some: int | None, seed: int) -> list[Row]:
    """A row for each fault that the operation can meet. Where `some` points suffice, only a part of the
    faults is tried, another part for each operation.
    """
    part = zlib.crc32(sweep.operation.name.encode()) % PARTS
    faults = FAULTS if some is None else FAULTS[part :: PARTS if sweep.operation.warm else len(FAULTS) // 2]
    return [row for fault in faults if (row := sweep.sweep(fault, some, seed)).points]
