"""The fault tables by name: what each tries, and on what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clocks import clock_rows
from cuts import cut_rows
from flips import flip_rows
from kills import kill_rows
from limits import limit_rows
from operations import OPERATIONS, hub
from points import Row
from shim import Shim
from sloppy import sloppy_rows
from stops import abort_rows, stop_rows
from sweep import Sweep, sweeps

Table = Callable[[Path, bool, int], list[Row]]
Kind = Callable[[Sweep, bool, int], list[Row]]
SOME = 1  # point per kind in a short run
WRITERS = ("pull", "quantize", "edit", "save a slot", "save a chat", "lock file")
CLOCKED = ("load", *WRITERS)


def _calls(sweep: Sweep, short: bool, seed: int) -> list[Row]:
    return sweeps(sweep, SOME if short else None, seed)


def _kills(sweep: Sweep, short: bool, seed: int) -> list[Row]:
    return kill_rows(sweep, 1 if short else None, seed)


def _clocks(sweep: Sweep, short: bool, seed: int) -> list[Row]:
    return clock_rows(sweep, 1 if short else 40, seed)


def _on(kind: str, name: str, rows: Kind) -> dict[str, Table]:
    """The table of one operation."""
    operation = next(o for o in OPERATIONS if o.name == name)

    def table(folder: Path, short: bool, seed: int) -> list[Row]:
        if short and operation.slow:
            return []
        with hub(folder):
            return rows(Sweep(Shim(), operation, folder / kind / name.replace(" ", "-")), short, seed)

    return {f"{kind}: {name}": table}


TABLES: dict[str, Table] = {
    "cuts": lambda folder, short, seed: cut_rows(folder / "cuts", short),
    "flips": lambda folder, short, seed: flip_rows(folder / "flips", short, seed),
    "limits": lambda folder, short, seed: limit_rows(folder / "limits", short),
    "stops": lambda folder, short, seed: stop_rows(folder / "stops", short),
    "aborts": lambda folder, short, seed: abort_rows(folder / "aborts", short),
}
for _operation in OPERATIONS:
    TABLES |= _on("calls", _operation.name, _calls)
for _name in WRITERS:
    TABLES |= _on("kills", _name, _kills)
for _name in CLOCKED:
    TABLES |= _on("clocks", _name, _clocks)


HIDDEN: dict[str, Table] = {"sloppy": lambda folder, short, seed: sloppy_rows(folder / "sloppy")}


def names(prefixes: Sequence[str] = ()) -> list[str]:
    """The tables whose names begin so; without prefixes all except those that check the tables themselves."""
    known = [*TABLES, *HIDDEN] if prefixes else list(TABLES)
    return [name for name in known if not prefixes or name.startswith(tuple(prefixes))]


def rows_of(name: str, folder: Path, short: bool, seed: int) -> list[Row]:
    return (TABLES | HIDDEN)[name](folder, short, seed)
