"""A sample of each fault table for every change, and all of them by night: every system call may fail, every
writer may be killed, every file may be truncated; no file is corrupted, nothing hangs, and there is no
traceback.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from devices import needs

RUN = Path(__file__).with_name("run.py")
sys.path.insert(0, str(RUN.parent))

import shim  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        shim.compiler() is None, reason="the shim needs Linux with glibc and a C compiler, cc"
    ),
    needs("cpu"),
]
GROUPS = ("calls", "kills", "cuts", "flips", "clocks", "limits", "stops", "aborts")
NOT_WANTED = ("wrong result", "corrupt file", "left behind", "hang", "traceback", "crash")


def rows_of(*args: str) -> list[dict[str, Any]]:
    """The rows of a run. The program is apart from this process: it forks, and has the shim in it."""
    done = subprocess.run([sys.executable, str(RUN), "--json", *args], capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, done.stderr[-4000:]
    assert done.returncode == any(row["bad"] for row in rows), done.stderr[-4000:]
    return rows


def wrong(rows: list[dict[str, Any]]) -> str:
    """What must not be, for a reader."""
    bad = [b for row in rows for b in row["bad"]]
    return "\n\n".join(f"{kind}: {place}\n{text[-1500:]}" for place, kind, text in bad[:10])


@pytest.mark.parametrize("group", GROUPS)
def test_a_sample_of_faults_leaves_no_corrupt_file_no_hang_and_no_traceback(group: str) -> None:
    rows = rows_of("--short", "--only", group)
    assert not wrong(rows), wrong(rows)
    assert sum(row["points"] for row in rows) > 0


def test_what_is_wrong_is_seen() -> None:
    """A writer in place, a hang's twin and an error that is none: each is counted as what it is."""
    (row,) = rows_of("--short", "--only", "sloppy")
    seen = {kind for _, kind, _ in row["bad"]}
    assert seen == {
        "corrupt file",
        "corrupt file after a power cut",
        "traceback",
        "crash",
        "left behind",
        "hang",
    }


@pytest.mark.nightly
@pytest.mark.parametrize("group", GROUPS)
def test_all_faults(group: str) -> None:
    rows = rows_of("--only", group)
    assert not wrong(rows), wrong(rows)
