"""User errors from the shell: one clear line on stderr, nothing on stdout, exit code 1 (usage error: 2)."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_file import write_model
from waiting import SECONDS

from satchel.cli.main import main

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}"
BOMB = "{% for m in messages %}{{ m.content * 1000000000 }}{% endfor %}"


Satchel = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def satchel(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Satchel:
    """Runs the program in this process as from a shell."""

    def run(*args: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        words = [str(arg) for arg in args]
        code = main(words)
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return run


def test_from_a_shell(tmp_path: Path) -> None:
    """One case in a process of its own; all others call the same main()."""
    command = [sys.executable, "-m", "satchel", "run", "-m", str(broken("text", tmp_path)), "hello"]
    check_one_line(subprocess.run(command, capture_output=True, text=True, timeout=SECONDS), 1, SAID["text"])


def broken(kind: str, folder: Path) -> Path:
    """A malformed file of this kind."""
    path = folder / f"{kind}.gguf"
    if kind == "missing":
        return path
    if kind == "text":
        path.write_text("Dear reader,\nthis is a letter and no model.\n")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "directory":
        path.mkdir()
    elif kind == "truncated":
        whole = write_model(folder / "whole.gguf").read_bytes()
        path.write_bytes(whole[: len(whole) - 5000])
    elif kind == "cut-header":
        path.write_bytes(write_model(folder / "whole.gguf").read_bytes()[:700])
    elif kind == "architecture":
        write_model(path, general__architecture="martian")
    elif kind in ("loop", "bomb"):
        write_model(path, tokenizer__chat_template=LOOP if kind == "loop" else BOMB)
    return path


SAID = {
    "missing": "missing.gguf",
    "text": "GGUF",
    "empty": "empty.gguf",
    "directory": "directory",
    "truncated": "cut short",
    "cut-header": "damaged",
    "architecture": "architecture 'martian' is not supported; this version runs bert, ",
    "loop": "chat_template",
    "bomb": "chat_template",
}


def check_one_line(done: subprocess.CompletedProcess[str], code: int, said: str) -> None:
    lines = done.stderr.strip().splitlines()
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert len(lines) == 1 and said in lines[0], done.stderr


@pytest.mark.parametrize("kind", SAID)
def test_run_with_a_broken_file(kind: str, satchel: Satchel, tmp_path: Path) -> None:
    check_one_line(satchel("run", "-m", broken(kind, tmp_path), "-n", "4", "hello"), 1, SAID[kind])


@pytest.mark.parametrize("command", ["inspect", "plan", "bench", "perplexity", "quantize", "tokenize"])
@pytest.mark.parametrize("kind", ["missing", "text", "truncated"])
def test_other_commands_with_a_broken_file(command: str, kind: str, satchel: Satchel, tmp_path: Path) -> None:
    path = broken(kind, tmp_path)
    (tmp_path / "text.txt").write_text("some words " * 400)
    before = sorted(p.name for p in tmp_path.iterdir())
    args: dict[str, list[str | Path]] = {
        "bench": ["-m", path],
        "perplexity": ["-m", path, "-f", tmp_path / "text.txt"],
        "quantize": [path, tmp_path / "out.gguf", "Q4_0"],
        "tokenize": ["-m", path, "--ids", "hello"],
    }
    check_one_line(satchel(command, *args.get(command, [path])), 1, SAID[kind])
    assert sorted(p.name for p in tmp_path.iterdir()) == before, "nothing half-written stays"


def test_a_prompt_longer_than_the_context(satchel: Satchel, tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    done = satchel("run", "-m", path, "-no-cnv", "-c", "64", stdin="far too long " * 50)
    check_one_line(done, 1, "the context holds 64")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "--top-q", "3", "hello"], "--top-"),
        (["run", "--temp", "-1", "hello"], "temp"),
        (["run", "--temp", "hot", "hello"], "--temp"),
        (["run"], "prompt"),
        (["walk"], "walk"),
        (["run", "-ngl", "many", "hello"], "ngl"),
    ],
)
def test_wrong_use_is_2(args: list[str], said: str, satchel: Satchel) -> None:
    done = satchel(*args)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
