"""Lines of the package that only the tests by night reach: `python tests/nightly_lines.py [TESTS ...]` runs
the default tests, then those marked nightly, under coverage.py, and prints what each reaches. TESTS: files or
folders; default: all. Exit code 1 where only the tests by night reach a line, or where a run stops.

Lines of a process that may not write coverage's files, such as a sandbox's worker, do not count, nor do those
that numba compiles. A test that reads all that a server prints fails where coverage.py complains of this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
PACKAGES = ("errors", "quant", "formats", "runtime", "store", "server", "cli")
SHARED_OUT = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")
SLOW = ("--timeout=7200", "-o", "faulthandler_timeout=7300")  # as `make nightly`
ENDED = (0, 1, 5)  # exit codes of pytest: passed, some failed, nothing to run
Lines = dict[str, set[int]]  # reached lines by file, from the project's folder


def settings(folder: Path) -> str:
    """coverage.py's, for the tests and every Python process that they start."""
    source = "".join(f"\n    {ROOT / package}" for package in PACKAGES)
    return (
        f"[run]\nsource ={source}\nparallel = true\npatch = subprocess\nsigterm = true\n"
        f"data_file = {folder / 'lines'}\ndisable_warnings = no-data-collected\n"
    )


def reached(mark: str, tests: list[str]) -> Lines:
    """Lines that the tests of a mark reach."""
    found: Lines = {}
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "settings"
        file.write_text(settings(Path(name)), encoding="utf-8")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={file}", "-m", "pytest", "-q"]
        core = {"COVERAGE_CORE": "sysmon"} if sys.version_info >= (3, 12) else {}
        done = subprocess.run(
            [*command, *SHARED_OUT, *SLOW, "-m", mark, *tests], cwd=ROOT, env={**os.environ, **core}
        )
        if done.returncode not in ENDED:
            sys.exit(f"nightly_lines: the tests that are {mark} stopped with exit code {done.returncode}")
        for path in Path(name).glob("lines.*"):
            data = CoverageData(str(path))
            data.read()
            for source in data.measured_files():
                inside = Path(source).resolve().relative_to(ROOT).as_posix()
                found.setdefault(inside, set()).update(data.lines(source) or ())
    return found


def spans(lines: set[int]) -> str:
    """3-5, 9"""
    runs: list[list[int]] = []
    for line in sorted(lines):
        if runs and line == runs[-1][-1] + 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def count(reached: Lines, package: str) -> int:
    return sum(len(lines) for file, lines in reached.items() if file.startswith(f"{package}/"))


def main(tests: list[str]) -> int:
    by_day, by_night = reached("not nightly", tests), reached("nightly", tests)
    only = {file: rest for file in sorted(by_night) if (rest := by_night[file] - by_day.get(file, set()))}
    print(f"\n{'package':10}{'by default':>12}{'by night too':>14}")
    for package in PACKAGES:
        day = count(by_day, package)
        print(f"{package:10}{day:12}{day + count(only, package):14}")
    for file, lines in only.items():
        print(f"{file}: only by night: {spans(lines)}")
    return int(bool(only))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
