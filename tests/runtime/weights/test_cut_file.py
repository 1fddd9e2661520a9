"""A model file that another process truncates while it is in use: an error, never a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from devices import needs
from tiny_file import write_model

from satchel import Model
from satchel.errors import DeviceError
from satchel.runtime.api.reply import Reply
from satchel.runtime.sampling import GREEDY

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut there"),
    needs("cpu"),
]


def ask(model: Model) -> Reply:
    reply = model.generate([5, 6, 7], max_tokens=3, sampling=GREEDY, ignore_eos=True)
    reply.read()
    return reply


@pytest.mark.parametrize("repack", [True, False])
def test_every_request_fails_until_the_model_is_loaded_again(tmp_path: Path, repack: bool) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    with Model.load(path, threads=1, slots=1, repack=repack) as model:
        wanted = ask(model).ids
        os.truncate(path, len(whole) // 100)
        for _ in range(2):
            with pytest.raises(DeviceError, match="cut short"):
                ask(model)
        path.write_bytes(whole)
        with pytest.raises(DeviceError, match="load it again"):
            ask(model)
    with Model.load(path, threads=1, slots=1, repack=repack) as model:
        assert ask(model).ids == wanted


OTHERS = """
import faulthandler, mmap, os, sys
from satchel import Model
from satchel.errors import DeviceError
from satchel.runtime.sampling import GREEDY

def ask(model):
    return model.generate([5, 6, 7], max_tokens=3, sampling=GREEDY, ignore_eos=True).read()

path, when, what = sys.argv[1:]
if "before" in when:
    faulthandler.enable()
with Model.load(path, threads=1, slots=1) as model:
    ask(model)
    if "after" in when:
        faulthandler.disable()
        faulthandler.enable()
    ask(model)
    if what == "model":
        os.truncate(path, os.path.getsize(path) // 100)
        try:
            ask(model)
        except DeviceError as error:
            print(error)
    else:
        with open(path + ".other", "w+b") as file:
            os.truncate(file.fileno(), 8192)
            with mmap.mmap(file.fileno(), 8192) as other:
                os.truncate(file.fileno(), 0)
                other[0]
"""


def beside_others(path: Path, when: str, what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OTHERS, str(write_model(path)), when, what]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("when", ["before", "after", "before, after"])
def test_a_handler_that_was_installed_later_changes_nothing(tmp_path: Path, when: str) -> None:
    """Ray's and faulthandler's handlers of SIGBUS end the process."""
    done = beside_others(tmp_path / "tiny.gguf", when, "model")
    assert "cut short" in done.stdout and (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("when", ["never", "before", "after", "before, after"])
def test_a_page_of_another_file_ends_the_process_as_ever(tmp_path: Path, when: str) -> None:
    done = beside_others(tmp_path / "tiny.gguf", when, "other")
    assert done.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in done.stderr) == (when != "never")
