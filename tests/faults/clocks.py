"""Fault: the wall clock jumps by an hour, forwards or backwards, at any system call. No result may depend on
it.
"""

from __future__ import annotations

from points import OK, TRACEBACK, WRONG, Row
from shim import MOVE, SYSTEM_CALLS
from sweep import Sweep

HOUR = 3600


def clock_rows(sweep: Sweep, some: int, seed: int) -> list[Row]:
    """A row for each direction. some: a sample of the calls at which the clock jumps."""
    rows = []
    for name, seconds in (("an hour forwards", HOUR), ("an hour backwards", -HOUR)):
        row = Row(f"{sweep.operation.name}: {name}")
        for number in sweep.numbers(SYSTEM_CALLS, some, seed, None)[0]:
            ending = sweep.run(SYSTEM_CALLS, number, seconds, MOVE)
            if ending.kind == OK and not ending.value["fired"]:
                continue
            kind, text = sweep.judge(ending)
            row.add(f"{row.name}, call {number}", WRONG if kind not in (OK, TRACEBACK) else kind, text)
        rows.append(row)
    return rows
