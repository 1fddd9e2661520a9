"""Threads that need numba at the same moment all get the whole module."""

from __future__ import annotations

import subprocess

import pytest
from terminal import PYTHON

pytest.importorskip("numba")

PROGRAM = """
import threading
from satchel.quant.native.numba_import import import_numba

begin, found = threading.Barrier(4), []

def ask():
    begin.wait()
    found.append(hasattr(import_numba(), "njit"))

threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found)
"""


def test_numba_is_whole_in_every_thread() -> None:
    ran = subprocess.run([*PYTHON, "-c", PROGRAM], text=True, capture_output=True, check=True)
    assert ran.stdout == "[True, True, True, True]\n", ran.stderr
