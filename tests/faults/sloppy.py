"""Faulty operations, which the tables must report."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from kills import kill_rows
from operations import Operation
from points import Row
from shim import FAULTS, Shim
from sweep import Sweep

PATIENCE = 3.0


def _prepare(folder: Path) -> None:
    (folder / "out").write_bytes(b"old" * 100)


def _in_place(folder: Path) -> Any:
    def run() -> Any:
        with (folder / "out").open("wb", buffering=0) as file:
            file.write(b"new" * 50)
            file.write(b"new" * 50)

    return run


def _raises(folder: Path) -> Any:
    return lambda: len((folder / "out").read_bytes())


def _ends(folder: Path) -> Any:
    """Every fault ends the process by a signal."""

    def run() -> Any:
        try:
            (folder / "out").read_bytes()
        except OSError:
            os.kill(os.getpid(), signal.SIGABRT)

    return run


def _waits(folder: Path) -> Any:
    """Waits for ever after a fault."""

    def run() -> Any:
        try:
            (folder / "out").read_bytes()
        except OSError:
            signal.pause()

    return run


def _litters(folder: Path) -> Any:
    def run() -> Any:
        spare = folder / "spare"
        try:
            spare.write_bytes(b"x")
            spare.replace(folder / "out")
        except OSError:
            return

    return run


def _unsynced(folder: Path) -> Any:
    """Renames a file before its bytes are on the disk."""

    def run() -> Any:
        (folder / "spare").write_bytes(b"new" * 100)
        (folder / "spare").replace(folder / "out")
        (folder / "out").stat()
        os.close(os.open(folder, os.O_RDONLY))

    return run


OPERATIONS = {
    Operation("in place", _prepare, _in_place, ("out",)): "write EIO",
    Operation("raises", _prepare, _raises): "open EIO",
    Operation("ends", _prepare, _ends): "read EIO",
    Operation("waits", _prepare, _waits): "read EIO",
    Operation("litters", _prepare, _litters): "rename EIO",
}


def sloppy_rows(folder: Path) -> list[Row]:
    """One row for all of them."""
    found = Row("sloppy")
    for operation, fault in OPERATIONS.items():
        hangs = operation.name == "waits"  # one is enough, and only it may count as a hang so soon
        patience = {"patience": PATIENCE} if hangs else {}
        sweep = Sweep(Shim(), operation, folder / operation.name.replace(" ", "-"), **patience)
        row = sweep.sweep(next(f for f in FAULTS if str(f) == fault), 1 if hangs else 9, 1)
        found.points += row.points
        found.kinds += row.kinds
        found.bad += row.bad
    unsynced = Operation("unsynced", _prepare, _unsynced, ("out",))
    for row in kill_rows(Sweep(Shim(), unsynced, folder / "unsynced"), None, 1):
        if "power" in row.name:
            found.bad += [(place, f"{kind} after a power cut", text) for place, kind, text in row.bad]
    return [found]
