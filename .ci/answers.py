"""Asks an installed Satchel through its commands: `python answers.py`, with the Python that has it, on a
system where nothing else of this project is. The bundled model is that of the package satchel-model-40m.

Each command has to end with its exit code and print what belongs to it; a line says so. The last line has the
words that the model gives where nothing is drawn by chance: they are the same on every system.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ASKED = "Hello! Who are you?"
TEXT = "The ferry to the island leaves at nine and takes an hour. It does not run in winter. " * 8
GREEDY = ("run", ASKED, "-n", "24", "--temp", "0", "-c", "256")


def questions() -> Iterator[tuple[tuple[str, ...], int, str]]:
    """(words of a command, its exit code, a pattern of what it prints on stdout or stderr)"""
    quantized, joined = "small.gguf", "joined.gguf"
    yield ("--version",), 0, r"\d+\.\d+"
    yield ("--help",), 0, r"chat\b"
    yield ("list",), 0, r"satchel-40m\S* .*bundled"
    yield ("show",), 0, r"qwen3"
    yield ("inspect", "--no-tensors"), 0, r"general\.architecture"
    yield ("hash", "--no-tensors"), 0, r"[0-9a-f]{64}"
    yield ("verify",), 0, r"\w"
    yield ("plan", "-c", "256"), 0, r"cpu"
    yield ("tokenize", ASKED), 0, r"\d+"
    yield ("complete", "The sky is", "-n", "4", "-c", "64"), 0, r"\w"
    yield ("embed", ASKED, "-c", "64"), 0, r"-?0\.\d+"
    yield ("perplexity", "-f", "text.txt", "-c", "64"), 0, r"\d+\.\d+"
    yield ("quantize", str(bundled()), quantized, "Q8_0", "--allow-requantize"), 0, r"\w"
    yield ("edit", quantized, "changed.gguf", "--set", "general.name=changed"), 0, r""
    yield ("split", quantized, "part", "--split-max-size", "20M"), 0, r""
    yield ("merge", "part-00001-of-00003.gguf", joined), 0, r""
    yield ("run", "Hi!", "-m", joined, "-n", "4", "-c", "64"), 0, r"\w"
    yield ("bench", "-p", "16", "-n", "4", "-r", "1"), 0, r"tg4"
    yield ("doctor",), 0, r"PASS +cpu "
    yield ("run", "Hi!", "-m", "absent.gguf"), 1, r"absent\.gguf"


def bundled() -> Path:
    from satchel.store.resolve import default_model

    return default_model()


def asked(words: tuple[str, ...]) -> tuple[int, str]:
    """Exit code, and what is printed."""
    from satchel.cli.main import main

    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(list(words)) or 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return code, said.buffer.getvalue().decode()


def judge() -> int:
    """The number of commands that did something else."""
    wrong = 0
    for words, wanted, pattern in questions():
        code, said = asked(words)
        fine = code == wanted and re.search(pattern, said)
        wrong += not fine
        print("ok   " if fine else "WRONG", " ".join(words[:4]), flush=True)
        if not fine:
            print(f"exit code {code}, expected {wanted}; it printed\n{said}", flush=True)
    code, said = asked(GREEDY)
    wrong += code != 0
    print(f"{platform.system()} {platform.machine()}: {said.split(chr(10))[0].strip()!r}")
    return wrong


def main() -> int:
    home = bundled().parent.name
    if home != "satchel_model_40m":
        print(f"the bundled model is in {home}, not in its own package", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        os.environ["SATCHEL_MODELS"] = str(Path(folder) / "store")
        Path("text.txt").write_text(TEXT, encoding="utf-8")
        try:
            return int(judge() > 0)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    sys.exit(main())
