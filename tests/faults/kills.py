"""Fault: a writer is killed at each of its system calls, before or after it, or with all unsynced data lost;
then its files are opened.

What must hold: a file under its own name is unchanged, or new and complete; the operation succeeds when it is
repeated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from operations import Operation, dumped, outcome
from points import CORRUPT, CRASH, OK, WRONG, Ending, Row, forked
from shim import KILL_AFTER, KILL_BEFORE, POWER, SYSTEM_CALLS
from sweep import Sweep

WAYS = {"killed before": KILL_BEFORE, "killed after": KILL_AFTER, "power cut before": KILL_BEFORE | POWER}


def kill_rows(sweep: Sweep, some: int | None, seed: int) -> list[Row]:
    """A row for each way of being killed."""
    rows = []
    for name, flags in WAYS.items():
        row = Row(f"{sweep.operation.name}: {name}")
        numbers, known = sweep.numbers(SYSTEM_CALLS, some, seed, None)
        for number in numbers:
            ending = sweep.run(SYSTEM_CALLS, number, 0, flags)
            if ending.kind == OK and not ending.value["fired"]:
                if known:
                    continue
                break
            row.add(f"{row.name}, call {number}", *_judge(sweep, ending))
        rows.append(row)
    return rows


def _judge(sweep: Sweep, ending: Ending) -> tuple[str, str]:
    """(kind, text): what the killed process left, and how the next one handles it."""
    if not ending.killed:
        return ending.kind if ending.kind != OK else CRASH, f"it was not killed: {ending.kind} {ending.text}"
    if found := sweep.corrupt():
        return CORRUPT, found
    again = forked(lambda: _again(sweep.operation, sweep.at), sweep.log)
    if again.kind != OK:
        return again.kind, f"tried again: {again.text}"
    if dumped(again.value) not in (sweep.wanted, sweep.wanted_again):
        return (
            WRONG,
            f"tried again: expected {sweep.wanted[:200]}, got {dumped(again.value)[:200]} {again.text}",
        )
    if found := sweep.corrupt():
        return CORRUPT, f"tried again: {found}"
    return OK, ""


def _again(operation: Operation, folder: Path) -> Any:
    os.chdir(folder)
    return outcome(operation.begin(folder))
