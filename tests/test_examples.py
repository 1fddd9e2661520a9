"""Each program of examples/ runs with the bundled model and does what it states."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import embedded
import pytest
from waiting import SECONDS

from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *args: str, said: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        input=said,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.model
def test_the_chat_bot_remembers() -> None:
    lines = run("chat.py", said="Who are you?\n\nAnd what can you do?\n")
    told = [line for line in lines if line.startswith("[")]
    assert len(told) == 2
    known, prompt = int(told[1].split()[2]), int(told[1].split()[4])
    assert 0 < known < prompt


@pytest.mark.model
def test_notes_are_found_and_their_vectors_kept(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "notes", tmp_path, dirs_exist_ok=True)
    first = run("notes_search.py", str(tmp_path), "When do boats go to the island?", "-n", "1")
    assert "ferry to the island" in first[0]
    kept = next(tmp_path.glob(".satchel-notes.npz"))
    assert run("notes_search.py", str(tmp_path), "When do boats go to the island?", "-n", "1") == first
    (tmp_path / "travel.md").write_text("Nothing here any more.\n")
    assert "ferry" not in run("notes_search.py", str(tmp_path), "When do boats go?", "-n", "1")[0]
    assert kept.exists()


@pytest.mark.model
def test_what_is_like_the_liked_is_recommended() -> None:
    lines = run("recommend.py", str(EXAMPLES / "things.txt"), "The Old Lighthouse", "-n", "2")
    assert len(lines) == 2
    assert not any("Old Lighthouse" in line for line in lines)
    lines = run("recommend.py", str(EXAMPLES / "things.txt"), "Bread at Home", "-n", "1")
    assert "Soup" in lines[0] or "Pasta" in lines[0]


@pytest.mark.model
def test_a_program_in_c_completes(
    bundled_model: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = EXAMPLES / "embed" / "complete.c"
    assert len(source.read_text().splitlines()) <= 20
    with open_gguf(bundled_model) as gguf:
        build(gguf, tmp_path / "app.gguf", context=64)
    program = embedded.compile_program(tmp_path_factory, tmp_path / "complete", [source])
    done = subprocess.run(
        [program, tmp_path / "app.gguf", "Once upon a time"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) > 20  # other words each time
    done = subprocess.run([program, bundled_model, "Once"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "holds no plan: run `satchel build" in done.stderr


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[None]:
    """A virtual screen for a desktop program."""
    pytest.importorskip("tkinter")
    server = shutil.which("Xvfb")
    if server is None:
        pytest.skip("no Xvfb for a window: apt-get install xvfb")
    reading, writing = os.pipe()
    command = [server, "-displayfd", str(writing), "-screen", "0", "800x600x24", "-nolisten", "tcp"]
    process = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL)
    os.close(writing)
    number = os.read(reading, 16).decode().strip()
    before = os.environ.get("DISPLAY")
    os.environ["DISPLAY"] = f":{number}"
    yield
    os.environ.pop("DISPLAY") if before is None else os.environ.update(DISPLAY=before)
    os.close(reading)
    process.terminate()
    process.wait()


@pytest.mark.model
def test_the_window_answers_and_closes(screen: None, bundled_model: Path) -> None:
    driver = EXAMPLES.parent / "tests" / "support" / "drive_window.py"
    answer = "\n".join(run(str(driver), str(EXAMPLES), str(bundled_model)))
    assert re.match(r"\S.*\n\d+ tokens a second", answer, re.DOTALL)  # the answer differs each time
