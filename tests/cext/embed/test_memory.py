"""What an open model takes of memory: scratch of a long prompt goes back to the system behind it."""

from __future__ import annotations

import sys
from pathlib import Path

import embedded
import installed
import pytest
from embedded import Driver

QUIET = 64  # steps of cext/cpu/device/run.c
FIRST, SECOND = ([(i * k + 5) % 16000 for i in range(480)] for k in (1, 3))


def own(driver: Driver) -> int:
    """Resident bytes that are no file's."""
    lines = Path(f"/proc/{driver.pid}/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep the memory, or do not tell")
def test_a_prompts_memory_goes_back(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    app, _ = installed.bundled_app(tmp_path_factory, bundled_model)
    program = embedded.driver_program(tmp_path_factory)
    options = {"seed": 1, "flags": 1, "temperature": 0}
    with Driver(program) as driver:
        driver.open(app, 1024, 1)
        driver.begin(0, SECOND, options)
        wanted = driver.next(0, 4)[0]
    with Driver(program) as driver:
        driver.open(app, 1024, 1)
        driver.begin(0, FIRST, options)
        driver.next(0, 1)
        before = own(driver)
        driver.next(0, QUIET)
        assert before - own(driver) > 5_000_000  # arena and scratch, less the tokens' keys and values
        driver.end(0)
        driver.begin(0, SECOND, options)
        assert driver.next(0, 4)[0] == wanted
