"""`satchel tokenize`: exact bytes in, ids out, one clear line where the input is not text."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_vocab
from waiting import SECONDS

from satchel.cli.main import main
from satchel.formats.gguf import write_gguf
from satchel.formats.tokenizer import build_tokenizer

METADATA = toy_vocab.sentencepiece()
TOKENIZER = build_tokenizer(METADATA)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with only a vocabulary."""
    path = tmp_path_factory.mktemp("tokenize") / "vocab.gguf"
    write_gguf(path, {"general.architecture": "llama", **METADATA}, [])
    return path


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the command in this process."""

    def called(model: Path, *options: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), "utf-8"))
        words = ["tokenize", "-m", str(model), *options]
        code = main(words)
        return subprocess.CompletedProcess(words, code, *capfdbinary.readouterr())

    return called


def test_in_a_process_of_its_own(model: Path) -> None:
    """One case through pipes; all below run in this process."""
    command = [sys.executable, "-m", "satchel", "tokenize", "-m", str(model), "--ids", "--no-bos"]
    done = subprocess.run(command, input=" \r\n</s> é€".encode(), capture_output=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == TOKENIZER.encode(" \r\n</s> é€", bos=False)


@pytest.mark.parametrize("text", ["", "hello", "hello\n", " \r\n</s> é€", "\x00x"])
def test_ids_of_stdin(run: Run, model: Path, text: str) -> None:
    done = run(model, "--ids", "--no-bos", given=text.encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == TOKENIZER.encode(text, bos=False)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], {"bos": None, "special": False}),
        (["--special"], {"bos": None, "special": True}),
        (["--special", "--no-bos"], {"bos": False, "special": True}),
    ],
)
def test_options(run: Run, model: Path, options: list[str], wanted: dict[str, Any]) -> None:
    text = "hello</s>"
    done = run(model, "--ids", *options, "-p", text)
    assert json.loads(done.stdout) == TOKENIZER.encode(text, **wanted)


def test_lines_and_count(run: Run, model: Path) -> None:
    done = run(model, "--show-count", "hello")
    hello = METADATA["tokenizer.ggml.tokens"].index("▁hello")
    lines = ["     1 -> '<s>'", f"{hello:6d} -> ' hello'", "Total number of tokens: 2", ""]
    assert done.stdout.decode() == "\n".join(lines)


def test_json(run: Run, model: Path) -> None:
    found = json.loads(run(model, "--json", "--no-bos", "hello").stdout)
    assert found == {"count": 1, "ids": TOKENIZER.encode("hello", bos=False), "tokens": [" hello"]}


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (["--ids"], b"ab\xff", "stdin: expected UTF-8, got byte 0xFF at offset 2"),
        (["--ids", "-p", "a", "b"], b"", "expected one source, got TEXT and --prompt"),
        (["--ids", "-f", "no/such/file"], b"", "no/such/file: can't be read"),
    ],
)
def test_what_is_refused(run: Run, model: Path, options: list[str], given: bytes, message: str) -> None:
    done = run(model, *options, given=given)
    assert done.returncode == 1 and not done.stdout
    assert message in done.stderr.decode() and done.stderr.count(b"\n") == 1
