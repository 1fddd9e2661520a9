"""Code blocks of README and docs: read from the pages, run, and compared with the output that the pages show.

A page runs from top to bottom in a scratch folder. A block is one of these:

- a session: lines that begin with `$ ` are commands of bash, the lines below each are what it prints;
- Python: the blocks of a page share their names; a plain block behind one is what it prints;
- a file, below the comment `<!-- file: NAME -->`, for the blocks that follow it;
- neither run nor compared, below the comment `<!-- not run: REASON -->`.

Above a block `<!-- numbers vary: REASON -->` compares its output without the numbers, and
`<!-- output varies: REASON -->` compares exit codes alone. `...` in an output stands for any text. Port 8080
of a page is that of a server with the bundled model, which is started when a block first needs it; below
`satchel serve OPTIONS` it is that of a server with these options, which is started there. `satchel device
OPTIONS &` likewise starts a device server, whose devices are 127.0.0.1/NAME from then on.

`python tests/support/doc_blocks.py` prints how many blocks run, and why the others do not.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from waiting import SECONDS, ready, until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SEED = 7  # of whatever samples without one: what a page runs does not change from run to run
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "models/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^ *```(\w*)$")
MARK = re.compile(r"^<!-- (not run|file|numbers vary|output varies): (.+) -->$")
INDENTED = re.compile(r"\n\n {4}\S")
ADDRESS = re.compile(r"(127\.0\.0\.1|localhost):8080\b")
DEVICE = re.compile(r"127\.0\.0\.1/(?=[a-z])")  # a device of a server on this machine
SERVE = re.compile(r"satchel serve\b([^#|;&]*)(?:#.*)?")
SERVE_DEVICE = re.compile(r"satchel device\b([^#|;&]*)&")
NUMBER = re.compile(r"\d[\d.,:]*")
# An output that shows an error, which the exit code is to tell as well.
ERROR = re.compile(r"^(?:satchel: )?error: |\"errors\": [1-9]", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block. line: that of its opening fence; mark, given: the comment above it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    given: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_session(self) -> bool:
        return self.text.startswith("$ ")

    @property
    def is_python(self) -> bool:
        return self.language == "python"

    @property
    def commands(self) -> Iterator[tuple[str, str]]:
        """Each command of a session with the output that the page shows."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            end = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\"))
            yield "\n".join(lines[:end]), "\n".join(lines[end:])


def blocks(page: Path) -> list[Block]:
    """The blocks of a page."""
    found: list[Block] = []
    mark, inside = ("", ""), None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if inside is not None:
            if fence:
                first, language, lines = inside
                found.append(Block(page, first, language, "\n".join(lines) + "\n", *mark))
                mark, inside = ("", ""), None
            else:
                inside[2].append(line)
        elif fence:
            inside = (number, fence[1], [])
        elif said := MARK.match(line):
            mark = (said[1], said[2])
        elif line.strip():
            mark = ("", "")
    assert inside is None, f"{page.name}: a block does not end"
    return found


def printed_by(all_blocks: list[Block]) -> dict[Block, Block]:
    """The Python blocks whose output the next block shows, with that block."""
    return {
        code: shown
        for code, shown in pairwise(all_blocks)
        if code.is_python and code.mark != "not run" and is_output(shown)
    }


def is_output(block: Block) -> bool:
    return block.language in ("", "text") and not block.is_session and block.mark in ("", "numbers vary")


def unclear(all_blocks: list[Block]) -> list[str]:
    """The blocks that neither run nor say why."""
    shown = printed_by(all_blocks).values()
    return [
        str(one)
        for one in all_blocks
        if one.mark not in ("not run", "file") and not (one.is_session or one.is_python or one in shown)
    ]


def same(shown: str, printed: str, mark: str) -> bool:
    """Whether an output is the one that the page shows. Line breaks are blanks: pages wrap lines."""
    if mark == "output varies":
        return True
    texts = [" ".join(text.split()) for text in (shown, printed)]
    if mark == "numbers vary":
        texts = [NUMBER.sub("0", text) for text in texts]
    pattern = re.escape(texts[0]).replace(r"\ \.\.\.\ ", "(?: .*)? ").replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, texts[1], re.DOTALL) is not None


@contextmanager
def server(folder: Path, environment: dict[str, str], options: str = "") -> Iterator[tuple[str, str]]:
    """`satchel serve` on a free port: the first line that it prints, and its port."""
    command = ["serve", *shlex.split(options), "--port", "0"]
    with told_line(folder, environment, command, r"http://[\d.]+:(\d+)") as (line, port):
        ready(f"http://127.0.0.1:{port}")
        yield line, port


@contextmanager
def device_server(folder: Path, environment: dict[str, str], options: str) -> Iterator[tuple[str, str]]:
    """`satchel device` on a free port: the first line that it prints, and its port."""
    command = ["device", *shlex.split(options), "--listen", "127.0.0.1:0"]
    with told_line(folder, environment, command, r"port (\d+)") as told:
        yield told


@contextmanager
def told_line(
    folder: Path, environment: dict[str, str], command: list[str], pattern: str
) -> Iterator[tuple[str, str]]:
    """A command of satchel while it runs: the first line that it prints, and the pattern's group in it."""
    log = folder / f"{command[0]}.log"
    with log.open("wb") as told:
        process = subprocess.Popen(
            [BIN / "satchel", *command], cwd=folder, env=environment, stdout=told, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: "\n" in log.read_text() or process.poll() is not None, "it says where it listens")
        line = log.read_text().partition("\n")[0]
        found = re.search(pattern, line)
        assert found, log.read_text()
        yield line, found[1]
    finally:
        process.terminate()
        process.wait(SECONDS)


@dataclass
class Runner:
    """Runs the blocks of one page. folder: the current one, with the files that the page names. reach: starts
    the server without options unless it runs; its first line and its port. others: ends what else the page
    starts. A server with options ends when the page starts the next one.
    """

    folder: Path
    environment: dict[str, str]
    reach: Callable[[], tuple[str, str]]
    others: ExitStack = field(default_factory=ExitStack)
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    serving: ExitStack = field(default_factory=ExitStack, init=False)
    device_port: str = ""

    def __post_init__(self) -> None:
        self.others.enter_context(self.serving)

    def run(self, page: list[Block]) -> None:
        outputs = printed_by(page)
        for block in page:
            if block.mark == "file":
                (self.folder / block.given).write_text(block.text)
            elif block.mark == "not run":
                continue
            elif block.is_session:
                self.session(block)
            elif block.is_python:
                self.python(block, outputs.get(block))

    def session(self, block: Block) -> None:
        current = self.folder  # `cd` holds for the rest of the block
        for command, shown in block.commands:
            if command.startswith("cd "):
                current /= command[3:]
                continue
            if serve := SERVE.fullmatch(command):
                printed, code = self.serve(serve[1].strip()), 0
            elif device := SERVE_DEVICE.fullmatch(command):
                printed, code = self.serve_device(device[1].strip()), 0
            else:
                printed, code = self.shell(self.addressed(command), current)
            wants = (1, 2) if ERROR.search(shown) else (0,)
            assert code in wants and "Traceback" not in printed, f"{block}: {command}: exit {code}\n{printed}"
            if shown:
                assert same(shown, printed, block.mark), f"{block}: {command}: it printed\n{printed}"

    def serve(self, options: str) -> str:
        """Starts the server that port 8080 means from now on; its first line."""
        if options:
            self.serving.close()
            one = self.serving.enter_context(server(self.folder, self.environment, options))
            self.reach = lambda: one
        line, port = self.reach()
        return line.replace(port, "8080")

    def serve_device(self, options: str) -> str:
        line, self.device_port = self.others.enter_context(
            device_server(self.folder, self.environment, options)
        )
        return line.replace(self.device_port, "8093")

    def shell(self, command: str, current: Path) -> tuple[str, int]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=current,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        return done.stdout, done.returncode

    def python(self, block: Block, shown: Block | None) -> None:
        # Blank lines before it: a traceback has the page's own lines.
        text = "\n" * block.line + self.addressed(block.text)
        with redirect_stdout(io.StringIO()) as out, patch.object(secrets, "randbits", return_value=SEED):
            exec(compile(text, str(block.page), "exec"), self.names)
        if shown:
            printed = out.getvalue()
            assert same(shown.text, printed, shown.mark), f"{shown}: {block} printed\n{printed}"

    def addressed(self, text: str) -> str:
        """The text with the servers' ports in place of 8080 and the device server's usual one."""
        if self.device_port:
            text = DEVICE.sub(f"127.0.0.1:{self.device_port}/", text)
        if not ADDRESS.search(text):
            return text
        return ADDRESS.sub(f"127.0.0.1:{self.reach()[1]}", text)


def summary() -> Iterator[str]:
    """How many blocks of each page run, and how many do not, by their reason."""
    reasons: Counter[str] = Counter()
    total = 0
    for page in PAGES:
        found = blocks(page)
        runs = [one for one in found if one.mark != "not run"]
        reasons.update(one.given for one in found if one.mark == "not run")
        total += len(runs)
        if found:
            yield f"{page.relative_to(ROOT)}: {len(runs)} of {len(found)} run"
    yield f"in all: {total} run or are compared, {reasons.total()} do not"
    for reason, count in reasons.most_common():
        yield f"{count:5}  {reason}"


def environment(folder: Path) -> dict[str, str]:
    """Variables of commands: Satchel on the path, and nothing of this machine's models and settings."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "OLLAMA_"))}
    paths = os.pathsep.join([str(BIN), keep.get("PATH", "")])
    keep["PYTHONUNBUFFERED"] = "1"  # stdout and stderr keep their order, as in a terminal
    keep["SATCHEL_SEED"] = str(SEED)
    return keep | {"HOME": str(folder), "SATCHEL_MODELS": str(folder / "store"), "PATH": paths}


if __name__ == "__main__":
    print("\n".join(summary()))
