"""A worker process as its owner sees it: how it is begun, spoken to, and what it died of."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

from satchel.errors import DeviceError, SatchelError
from satchel.quant.threads import begin
from satchel.runtime.children import interpreter, module_path, start
from satchel.runtime.worker.wire import Message, read_message, write_message

MODULE = "satchel.runtime.worker.child"
# The child finds the package where this process did, whatever its own start would have found, and is in its
# sandbox before anything is imported that starts a thread.
START = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path'];"
    " from satchel.runtime.sandbox.enter import enter; enter(given['sandbox']); from {} import main; main()"
)
PASSES = hasattr(socket, "send_fds") and sys.platform != "win32"  # descriptors to another process
PATIENCE = 10.0  # seconds that a worker has to close its model


def folder() -> str | None:
    """The one in which paths are meant, also by a process that is begun later."""
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


def _close(end: socket.socket | BinaryIO) -> None:
    """Gives it back, also where the system complains of that: its descriptor is gone all the same."""
    with suppress(OSError):
        end.close()


class Process:
    """A worker process in a folder, its pipes, and a socket for descriptors. Any thread may send; one reads.
    The thread that makes it must live as long as it does: on Linux the process is ended with the thread that
    began it. sandbox: its policy (see runtime/sandbox/policy.py); None: it has no sandbox.
    """

    def __init__(self, folder: str | None = None, sandbox: Mapping[str, Any] | None = None) -> None:
        known = folder if folder and Path(folder).is_dir() else None
        ends: tuple[socket.socket | None, socket.socket | None] = (None, None)
        if PASSES:
            ends = socket.socketpair()
        self._side, other = ends
        self._scratch = TemporaryDirectory(prefix="satchel-") if sandbox and sandbox["compiles"] else None
        if sandbox and self._scratch:
            sandbox = {**sandbox, "scratch": self._scratch.name}
        given = {"path": module_path(), "sandbox": sandbox, "side": other.fileno() if other else -1}
        pipe = subprocess.PIPE
        try:
            self._process = start(
                [*interpreter(), "-c", START.format(MODULE), json.dumps(given)],
                isolated=True,
                stdin=pipe,
                stdout=pipe,
                cwd=known,
                pass_fds=[other.fileno()] if other else [],
            )
        except OSError as error:
            self._clean_up()
            raise DeviceError(f"the worker process could not be begun: {error}") from None
        finally:
            if other:
                _close(other)
        self._to, self._from = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self._reading = False
        self._fault = ""  # of a pipe, where that is why the process is ended
        self._outbox: SimpleQueue[tuple[Message, int] | None] = SimpleQueue()
        try:
            begin(threading.Thread(target=self._write, name="satchel-send", daemon=True))
        except SatchelError:
            self._process.kill()
            self._process.wait()
            self._clean_up()
            raise

    def _clean_up(self) -> None:
        if self._side:
            _close(self._side)
        if self._scratch:
            with suppress(OSError):  # what a driver left there may be in use yet
                self._scratch.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message, descriptor: int = -1) -> None:
        """Sends a message, without waiting: also a signal handler may. Where the process is gone, its
        reader learns so. descriptor: of a file that goes with it; the caller's stays its own.
        """
        self._outbox.put((message, os.dup(descriptor) if descriptor >= 0 else -1))

    def _write(self) -> None:
        try:
            while (item := self._outbox.get()) is not None:
                message, descriptor = item
                if descriptor >= 0:
                    self._pass(descriptor)
                write_message(self._to, message)
        except BrokenPipeError:
            pass  # it is gone already, and says itself what it died of
        except (OSError, ValueError) as error:
            self._give_up(error)  # a caller that waits for the rest of a message would wait for ever
        while not self._outbox.empty():
            if (left := self._outbox.get()) is not None and left[1] >= 0:
                os.close(left[1])

    def _pass(self, descriptor: int) -> None:
        """Sends a descriptor ahead of its message, and closes it here."""
        try:
            if self._side:
                socket.send_fds(self._side, [b"f"], [descriptor])
        finally:
            os.close(descriptor)

    def read(self) -> tuple[Message, bytes] | None:
        """The next message; None where there are no more."""
        self._reading = True
        try:
            return read_message(self._from)
        except (OSError, ValueError) as error:
            self._give_up(error)
            return None
        finally:
            self._reading = False

    def _give_up(self, error: Exception) -> None:
        """A pipe failed: the process is lost, and its reader learns so."""
        self._fault = self._fault or str(error)
        self._process.kill()

    @property
    def unread(self) -> bool:
        """Whether something came from the process that was not read yet. Any thread may ask."""
        if not self._reading:
            return True
        with suppress(OSError, ValueError):  # closed meanwhile, or a system that cannot tell
            return bool(select.select([self._from], [], [], 0)[0])
        return False

    def kill(self) -> None:
        self._process.kill()

    def reap(self) -> str:
        """Waits for the end of a process that closed its pipe, and says what it died of."""
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._outbox.put(None)
        self._clean_up()
        for pipe in (self._to, self._from):
            _close(pipe)
        if code >= 0:
            return f"ended with status {code}"
        if self._fault:
            return f"was ended: its pipe failed: {self._fault}"
        names = {s.value: s.name for s in signal.Signals}
        return f"was ended by {names.get(-code, f'signal {-code}')}"
