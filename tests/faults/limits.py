"""Fault: memory limits around the prediction of `satchel plan`: the model loads and answers, or one error
says why not.

The limit is RLIMIT_DATA, which counts writable memory: the process's memory before the load, a percentage of
the plan, and an allowance for thread stacks and the interpreter, which no plan counts.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from operations import OPTIONS, answer_of, outcome
from points import CLEAN, OK, TRACEBACK, Row, forked
from tiny_file import write_model

from satchel import Model
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.options import Options
from satchel.runtime.placement.devices import open_for
from satchel.runtime.placement.dryrun import dry_run

CONTEXT = 32768  # some 50 MB of keys and values, so that a percent is more than noise
ALLOWANCES = (0, 48 << 20, 96 << 20)
PAGE = resource.getpagesize()


def _foretold(path: Path, options: Options) -> int:
    with open_gguf(path) as gguf, open_for(options) as opened:
        return sum(share.total for share in dry_run(gguf, opened.devices, options).shares())


def _data_bytes() -> int:
    """Writable memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * PAGE


def limit_rows(folder: Path, short: bool) -> list[Row]:
    """A row for each allowance."""
    folder.mkdir(parents=True)
    path = write_model(folder / "model.gguf", qwen3__context_length=CONTEXT)
    options: dict[str, Any] = {**OPTIONS, "context": CONTEXT}
    planned = int(forked(lambda: _foretold(path, Options(**options)), folder / "log").value)
    rows = []
    for allowance in ALLOWANCES:
        row = Row(f"limits: 90-110 % of {planned >> 20} MiB and {allowance >> 20} MiB")
        least = 0
        for percent in range(90, 111, 10 if short else 1):

            def work(percent: int = percent, allowance: int = allowance) -> Any:
                limit = _data_bytes() + planned * percent // 100 + allowance
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

                def use() -> Any:
                    with Model.load(path, **options) as model:
                        return answer_of(model)

                return outcome(use)

            ending = forked(work, folder / "log")
            kind = ending.kind
            if kind == OK and "Traceback" in ending.text:
                kind = TRACEBACK
            elif kind == OK and "error" in ending.value:
                kind = CLEAN
            elif kind == OK:
                least = least or percent
            row.add(f"{row.name}: {percent} %", kind, ending.text)
        row.note = f"loads from {least} % on" if least else "never loads"
        rows.append(row)
    return rows
