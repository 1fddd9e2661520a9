"""Each barrier of the portable kernels is needed: without it, a result on the emulated GPU, which shuffles
the order of waves and threads, changes or the run fails.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from barriers import REACHED, sites
from devices import skip_without

SITES = list(sites())
SAMPLE = 14  # each test run checks one barrier of so many; `make barriers` checks all


def test_every_file_with_barriers_has_calls() -> None:
    assert {site.split(":")[0] for site in SITES} == set(REACHED)


@pytest.mark.parametrize(
    "site", [pytest.param(s, marks=[pytest.mark.nightly] if i % SAMPLE else []) for i, s in enumerate(SITES)]
)
def test_a_barrier_that_is_left_out_is_missed(site: str) -> None:
    skip_without("emulated")
    script = Path(__file__).parents[1] / "support" / "barriers.py"
    done = subprocess.run([sys.executable, str(script), site], capture_output=True, text=True, timeout=280)
    # A thread may have written anywhere, so a signal may end the process.
    assert done.returncode <= 0, done.stderr or f"{site}: no call needs this barrier"
