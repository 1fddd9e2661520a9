"""All tests under stress: three times in random order, once on one core, once beside programs that keep all
cores busy. `python tests/stressed.py [WHAT ...]` runs the named ones of these, or all; arguments after -- go
to pytest. It prints each run's time, count and failures; exit code 1 where one failed.

A test that exceeds its time limit fails (pytest-timeout), as everywhere.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

SHARED_OUT = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")


@dataclass(frozen=True)
class Run:
    """One run of all tests."""

    name: str  # in the report
    options: tuple[str, ...]  # of pytest
    cores: int = 0  # cores that the tests may use; 0: all
    busy: int = 0  # busy processes beside the tests


def runs(seed: int) -> dict[str, Run]:
    shuffled = {
        f"order-{n}": Run(f"in random order, seed {seed + n}", (*SHARED_OUT, f"--order-seed={seed + n}"))
        for n in range(1, 4)
    }
    return {
        **shuffled,
        "one-core": Run("on one core", ("-n", "0"), cores=1),
        "busy": Run("beside busy cores", SHARED_OUT, busy=len(os.sched_getaffinity(0))),
    }


def spin() -> None:
    """Keeps a core busy for ever."""
    while True:
        sum(range(10_000))


@contextlib.contextmanager
def beside(count: int) -> Iterator[None]:
    """So many busy processes."""
    started = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


def pinned(cores: int) -> None:
    """In a new process: pins it and its children to the first so many of its cores."""
    if cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def report(run: Run, more: list[str]) -> tuple[bool, str]:
    """Whether all tests passed, and a line about them. pytest's output is shown as it comes."""
    began, said = time.monotonic(), list[str]()
    command = [sys.executable, "-m", "pytest", "-q", *run.options, *more]
    with (
        beside(run.busy),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: pinned(run.cores)
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line.rstrip())
    summaries = (line for line in reversed(said) if re.search(r"\d+ (passed|failed|error)", line))
    counts = next(summaries, "no summary")
    failed = [line for line in said if line.startswith(("FAILED ", "ERROR "))]
    seconds, code = time.monotonic() - began, process.returncode
    told = f"{run.name}: {counts.strip('= ')}; {seconds:.0f} s, exit code {code}"
    return code == 0, "\n  ".join([told, *failed])


def main(words: list[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    named, more = words[:at], words[at + 1 :]
    seed = int(os.environ.get("ORDER_SEED") or random.SystemRandom().getrandbits(20))
    known = runs(seed)
    if unknown := [name for name in named if name not in known]:
        print(f"stressed: {', '.join(unknown)}: expected some of {', '.join(known)}", file=sys.stderr)
        return 2
    done = [report(known[name], more) for name in named or known]
    print("\n" + "\n".join(text for _, text in done))
    return int(not all(well for well, _ in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
