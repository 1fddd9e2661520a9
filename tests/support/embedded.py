"""The C library under test: its sources and the test driver, compiled by the system's compiler against the
CPU backend that is installed, and a Python face of the driver.

A driver is one process; SATCHEL_CPU chooses its kernel set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from once import made_once

from satchel import cext
from satchel.formats.gguf import open_gguf
from satchel.formats.gguf.splice import splice
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.aot.records import TOKENIZER_KEY, as_value
from satchel.runtime.aot.tokenizer_section import pack_tokenizer
from satchel.runtime.device.libraries import find_backend

ROOT = Path(__file__).parents[2]
EMBED = ROOT / "cext" / "embed"
HEADERS = next((p / "headers" for p in map(Path, cext.__path__) if (p / "headers").is_dir()), EMBED)
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
SANITIZED = ("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LIBRARY, WORKER, EITHER = range(3)  # SATCHEL_ENGINE_
# A number that looks large is refused before it is reserved; ASan would rather stop at it.
ASAN_OPTIONS = "allocator_may_return_null=1:max_allocation_size_mb=2048:detect_leaks=1"
INCLUDES = [f"-I{path}" for path in (EMBED, EMBED / "include", ROOT / "cext" / "host", HEADERS)]


def compiler() -> str:
    """The C compiler; skips a test where there is none."""
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler")
    if not (HEADERS / "hal.h").exists():
        pytest.skip("the headers of cext were not installed")
    return found


def compile_program(
    factory: pytest.TempPathFactory,
    target: Path,
    sources: Sequence[Path],
    *options: str,
    compiled_by: str = "",
    backend: Path | None = None,
) -> Path:
    """A program of these sources and the C library. compiled_by, backend: a compiler and the CPU backend of
    another processor.
    """
    compiled_by, backend = compiled_by or compiler(), backend or Path(find_backend("cpu").path)
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", *WARNINGS, *INCLUDES, *options]
    library = made_once(
        factory,
        f"embed-library-{zlib.crc32(repr((compiled_by, options)).encode()):08x}",
        lambda folder: compile_objects(folder, [compiled_by, *flags]),
    )
    objects = sorted(library.glob("*.o"))
    link = [str(backend), f"-Wl,-rpath,{backend.parent}", "-lpthread", "-lm"]
    run([compiled_by, *flags, *map(str, (*sources, *objects)), "-o", str(target), *link])
    return target


def compile_objects(folder: Path, command: Sequence[str]) -> None:
    """The C library's objects, which many programs share."""
    library = [
        *sorted(EMBED.glob("*.c")),
        *(ROOT / "cext" / "host" / f"{n}.c" for n in ("error", "block_format")),
    ]
    run([*command, "-c", *map(str, library)], cwd=folder)


def run(command: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def driver_program(factory: pytest.TempPathFactory, sanitized: bool = False) -> Path:
    """The compiled driver, once for a test run."""
    name = "embed-driver-sanitized" if sanitized else "embed-driver"
    sources = [ROOT / "tests" / "cext" / "embed" / f"{name}.c" for name in ("driver", "templates")]
    options = SANITIZED if sanitized else ()
    folder = made_once(factory, name, lambda at: compile_program(factory, at / "driver", sources, *options))
    return folder / "driver"


def words_program(factory: pytest.TempPathFactory) -> Path:
    """The compiled driver of the text side alone, with sanitizers, once for a test run."""
    source = ROOT / "tests" / "cext" / "embed" / "words_driver.c"
    folder = made_once(
        factory,
        "embed-words",
        lambda at: compile_program(factory, at / "driver", [source], *SANITIZED),
    )
    return folder / "driver"


def build_words(model: Path, target: Path) -> Tokenizer:
    """Writes a file's tokenizer section into a copy, also of a file without a model; gives the tokenizer."""
    with open_gguf(model) as gguf:
        splice(gguf, target, {TOKENIZER_KEY: as_value(pack_tokenizer(gguf))})
        return build_tokenizer(gguf.metadata, source=str(model))


class DriverError(Exception):
    """An error that the library told: its code, then its text."""

    def __init__(self, line: str) -> None:
        _, code, text = line.split(" ", 2)
        super().__init__(text)
        self.code, self.text = int(code), text


class _Process:
    """One process of a driver. `with` ends it."""

    def __init__(self, program: Path, kernels: str = "") -> None:
        env = os.environ | ({"SATCHEL_CPU": kernels} if kernels else {})
        self._process = subprocess.Popen(
            [str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            env=env,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: str) -> str:
        """The answer to a command. DriverError where the library failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer.endswith("\n"), f"the driver died: {self._process.wait()}"
        _, failed, text = answer.rpartition("error -")  # behind the pieces that came before it
        if failed:
            raise DriverError(failed + text.rstrip("\n"))
        return answer.strip()

    def tokenize(self, text: str | bytes, flags: int = 0) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        return [int(word) for word in self.say(f"tokenize {flags} {raw.hex() or '-'}").split()]

    def detokenize(self, ids: Sequence[int], flags: int = 0) -> str:
        return bytes.fromhex(self.say(f"detokenize {flags} {' '.join(map(str, ids))}")).decode()


class Driver(_Process):
    """A driver of the whole library."""

    def open(
        self,
        path: Path,
        context: int = 0,
        slots: int = 0,
        threads: int = 1,
        engine: int = LIBRARY,
        worker: str | Path = "",
    ) -> list[str]:
        """Context, slots, vocabulary and kernel set of the model; "worker" where a worker process has it."""
        return self.say(f"open {path} {context} {slots} {threads} {engine} {worker}".rstrip()).split(" ")

    def close(self) -> None:
        self.say("close")

    def embed(self, text: str, flags: int = 0) -> bytes:
        """The vector of a text, as the bytes of its floats."""
        return bytes.fromhex(self.say(f"embed {flags} {text.encode().hex() or '-'}"))

    def begin(self, number: int, ids: Sequence[int], options: Mapping[str, Any]) -> None:
        words = " ".join(f"{name}={value}" for name, value in options.items())
        self.say(f"begin {number} {words} : {' '.join(map(str, ids))}")

    def next(self, number: int, count: int) -> tuple[list[int], bytes, bool]:
        """The tokens of the next pieces, their text, and whether the answer is over."""
        ids, pieces, over = self.pieces(number, count)
        return ids, b"".join(text for _, text in pieces), over

    def pieces(self, number: int, count: int) -> tuple[list[int], list[tuple[int, bytes]], bool]:
        """The same, with the kind and text of each piece: 1: text, 2: thinking, 0: none."""
        words = self.say(f"next {number} {count}").split()
        over = words[-1:] == ["over"]
        pieces = [word.split(":") for word in words[: len(words) - over]]
        ids = [int(token) for token, *_ in pieces if token != "-1"]
        return ids, [(int(kind), bytes.fromhex(text)) for _, text, kind in pieces], over

    def report(self, number: int) -> list[int]:
        """Reason, tokens of the prompt, those that were cached, tokens of the answer, the stop string."""
        return [int(word) for word in self.say(f"report {number}").split()]

    def end(self, number: int) -> None:
        self.say(f"end {number}")

    def grammar(self, name: str) -> None:
        """The grammar of later begin() with grammar=...; "json", "value" and "compact": JSON of any shape."""
        self.say(f"grammar {name}")

    def grammar_text(self, text: str) -> None:
        """The same by its text."""
        self.say(f"grammar_text {text.encode().hex() or '-'}")

    def save(self, number: int, path: Path, by_memory: bool = False) -> int:
        """Bytes that were saved."""
        return int(self.say(f"save{'_bytes' * by_memory} {number} {path}"))

    def load(self, path: Path, by_memory: bool = False) -> list[int]:
        """The tokens of a saved conversation."""
        return [int(word) for word in self.say(f"load{'_bytes' * by_memory} {path}").split()]

    def chat(self, request: Any) -> tuple[str, list[int], bool]:
        """The prompt of a request, its tokens, and whether it ends within reasoning."""
        words = self.say(f"chat {json.dumps(request).encode().hex()}").split()
        return bytes.fromhex(words[1].strip("-")).decode(), [int(word) for word in words[2:]], words[0] == "1"

    def chat_format(self) -> tuple[int, list[str]]:
        """Flags and texts of satchel_chat_facts()."""
        flags, *texts = self.say("format").split()
        return int(flags), [bytes.fromhex(text.strip("-")).decode() for text in texts]


class WordsDriver(_Process):
    """A driver of the text side."""

    def open(self, path: Path) -> int:
        """The number of tokens."""
        return int(self.say(f"open {path}"))

    def answer(
        self,
        ids: Sequence[int],
        stops: Sequence[str] = (),
        markers: tuple[str, str] = ("", ""),
        begins: int = 0,
        include: bool = False,
    ) -> tuple[list[list[tuple[int, str]]], int]:
        """The pieces, (kind, text), that each token of an answer releases and then its end; and the number of
        the stop string that ended it, or -1.
        """
        texts = [text.encode().hex() or "-" for text in (*markers, *stops)]
        words = [begins, int(include), *texts[:2], len(stops), *texts[2:], *ids]
        said = self.say(f"answer {' '.join(map(str, words))}").split(" ")
        found: list[list[tuple[int, str]]] = [[]]
        for word in said[:-1]:
            kind, _, text = word.partition(":")
            if word == "|":
                found.append([])
            else:
                found[-1].append((int(kind), bytes.fromhex(text).decode()))
        return found, int(said[-1].removeprefix("stopped:"))
