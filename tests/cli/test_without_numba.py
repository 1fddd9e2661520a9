"""A build with C needs no numba: it answers and quantizes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from terminal import PYTHON
from tiny_file import write_model
from waiting import SECONDS

from satchel.quant.native.library import search_library

PROGRAM = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None  # an import of either fails
from satchel.cli.main import main

model, small = sys.argv[1:]
quantize = ["quantize", "--allow-requantize", model, small, "IQ4_NL"]
for given in (["run", "-m", model, "-n", "2", "Hello"], quantize):
    sys.argv[1:] = given
    assert main() == 0, given
"""


@pytest.mark.skipif(bool(search_library().reason), reason="the C library of searches was not built")
def test_it_answers_and_quantizes(tmp_path: Path) -> None:
    model, small = write_model(tmp_path / "tiny.gguf"), tmp_path / "small.gguf"
    command = [*PYTHON, "-c", PROGRAM, str(model), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0 and small.exists(), done.stderr
