"""The program that `satchel doctor` starts in a sandbox like a worker's: it attempts what a worker must not
do, and prints a JSON line [name, result] per attempt.

Invariant: it imports nothing that starts a thread, and an attempt that succeeds does no harm.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from satchel.runtime.sandbox import enter
from satchel.runtime.sandbox.calls import JUDGED, REFUSED, call, numbers

DONE = "done"  # result of an attempt that was not refused
ENTRIES = 8  # size of the io_uring


def read(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def remove(path: str) -> None:
    Path(path).unlink()


def open_socket(_: str) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()


def connect(_: str) -> None:
    """Connects an invalid socket: the filter refuses the call before the kernel checks it."""
    call(numbers(REFUSED)["connect"], -1, None, 0)


def bind(_: str) -> None:
    call(numbers(REFUSED)["bind"], -1, None, 0)


def fork(_: str) -> None:
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def debug(_: str) -> None:
    call(numbers(REFUSED)["ptrace"], 0, 0, None, None)  # PTRACE_TRACEME


def peek(_: str) -> None:
    call(numbers(REFUSED)["process_vm_readv"], os.getppid(), None, 0, None, 0, 0)


def send_signal(_: str) -> None:
    os.kill(os.getppid(), 0)


def ring(_: str) -> None:
    """io_uring opens files and sockets without system calls that a filter could see."""
    call(numbers(REFUSED)["io_uring_setup"], ENTRIES, None)


def type_ahead(_: str) -> None:
    """Pushes a character into the terminal's input, as if typed. Works without a terminal: the filter refuses
    first.
    """
    call(numbers(JUDGED)["ioctl"], 2, 0x5412, b"\0")


def execute(path: str) -> None:
    """The last attempt: if it succeeds, another program replaces this one."""
    os.execv(path, [path, "-I", "-c", ""])


ATTEMPTS: Mapping[str, tuple[Callable[[str], None], str]] = {
    "open": (read, "file"),
    "list": (lambda path: os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY)), "folder"),
    "write": (write, "new"),
    "remove": (remove, "file"),
    "socket": (open_socket, ""),
    "connect": (connect, ""),
    "bind": (bind, ""),
    "fork": (fork, ""),
    "ptrace": (debug, ""),
    "process_vm_readv": (peek, ""),
    "kill": (send_signal, ""),
    "io_uring": (ring, ""),
    "TIOCSTI": (type_ahead, ""),
    "exec": (execute, "program"),
}


def attempt(name: str, given: Mapping[str, str]) -> str:
    """Result of an attempt: DONE, or the name of the error."""
    work, needs = ATTEMPTS[name]
    try:
        work(given.get(needs, ""))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return DONE


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given: dict[str, Any] = json.loads(sys.argv[1])
    sandbox = enter.close()
    read(given["probe"]["allowed"])
    if sandbox is None:
        raise RuntimeError("the parent gave no policy")
    print(json.dumps(["sandbox", {"text": sandbox.text, "note": sandbox.note}]), flush=True)
    for name in ATTEMPTS:
        print(json.dumps([name, attempt(name, given["probe"])]), flush=True)
