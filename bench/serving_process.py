"""Starts and stops the server processes of bench/serving.py, and measures their memory and CPU time by
thread. Linux only.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from compare_seats import cores

from satchel.errors import RequestError

TICK = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parent.parent
CONTEXT = 512  # tokens of context that each request has
START = 120.0  # seconds within which a server must answer
LAST_WORDS = 60.0  # seconds in which a child of an ended server may keep its stderr open


class Process:
    """A server process that listens on `url`. Leaving the block ends it."""

    def __init__(self, command: Sequence[str], url: str = "") -> None:
        """url: the server's address; "": the server prints it in a line on stderr."""
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.said: list[str] = []
        self._heard = threading.Event()
        self.url = url
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.said.append(line.rstrip())
            if not self.url and (found := re.search(r"http://[\w.:\[\]]+", line)):
                self.url = found[0]
                self._heard.set()

    def ready(self, path: str) -> None:
        """Waits until this path answers with 200."""
        end = time.monotonic() + START
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            try:
                if self.url:
                    opener.open(f"{self.url}{path}", timeout=5).close()
                    return
            except OSError:
                pass
            if self.child.poll() is not None or time.monotonic() > end:
                if self.child.poll() is not None:
                    self._listener.join(LAST_WORDS)  # what it said at its end may not be read yet
                told = "; ".join(self.said[-3:])
                raise RequestError(f"the server does not answer (exit code {self.child.poll()}): {told}")
            time.sleep(0.1)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def family(self) -> list[int]:
        """The process and its descendants."""
        found = [self.child.pid]
        for pid in found:
            found += children(pid)
        return found

    def engine(self) -> int | None:
        """The engine's process, where it has one of its own."""
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(self.child.pid)}
        return next((pid for pid, command in commands.items() if b"worker" in command), None)

    def memory(self) -> int:
        """Unshared memory of the process and its descendants in bytes."""
        return sum(private(pid) for pid in self.family())

    def loop_seconds(self) -> float:
        """Processor time of the main thread, which runs the event loop and no work of the engine."""
        return spent(self.child.pid, self.child.pid)


def children(pid: int) -> list[int]:
    """Processes that any thread of this one started; none where it has ended."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread ended after it was listed
            found += map(int, task.read_text(encoding="ascii").split())
    return found


def private(pid: int) -> int:
    """Unshared memory of a process in bytes: 0 where it has ended."""
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Private_"))


def spent(pid: int, thread: int) -> float:
    """User and system time of a thread, in seconds."""
    try:
        text = Path(f"/proc/{pid}/task/{thread}/stat").read_text(encoding="ascii")
    except OSError:  # the process has ended
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Watch:
    """Calls sample() at once and then every so many seconds, in a thread, while the block runs."""

    def __init__(self, every: float) -> None:
        self.every, self._over = every, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def sample(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        self.sample()
        while not self._over.wait(self.every):
            self.sample()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


class MemoryWatch(Watch):
    """Notes a process' memory while the block runs."""

    def __init__(self, process: Process) -> None:
        super().__init__(0.5)
        self.process, self.samples = process, list[int]()

    def sample(self) -> None:
        self.samples.append(self.process.memory())

    def growth(self) -> int:
        """Bytes by which the last quarter's mean exceeds the second's; the first is a warm-up."""
        quarter = max(1, len(self.samples) // 4)
        second, last = self.samples[quarter : 2 * quarter] or self.samples, self.samples[-quarter:]
        return int(statistics.median(last) - statistics.median(second))


def satchel(model: Path, clients: int, *more: str) -> Process:
    """Satchel's server on a free port, with slots for so many requests of CONTEXT tokens."""
    command = [sys.executable, "-m", "satchel", "serve", str(model), "--port", "0"]
    return Process([*command, "-np", str(clients), "-c", str(CONTEXT), *more])


def llama_server(program: Path, model: Path, clients: int) -> Process:
    """llama.cpp's server with the same slots: its -c is shared among them. RequestError without it."""
    if not os.access(program, os.X_OK) or not program.is_file():
        raise RequestError(f"--llama-server {program}: expected llama.cpp's program, found none to run there")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(program), "-m", str(model), "--host", "127.0.0.1", "--port", port, "-t", str(cores())]
    return Process(
        [*command, "-np", str(clients), "-c", str(CONTEXT * clients), "--jinja"], f"http://127.0.0.1:{port}"
    )
