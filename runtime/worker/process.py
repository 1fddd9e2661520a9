"""A worker process as its owner sees it: start, messages, and the cause of its end."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

from satchel.errors import DeviceError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.children import interpreter, module_path, start
from satchel.runtime.worker.wire import Message, read_message, write_message

MODULE = "satchel.runtime.worker.child"
# The child gets this process's module path, so it finds the same package. It is pinned to its processors and
# enters its sandbox before anything is imported that starts a thread.
START = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path'];"
    " from satchel.runtime.worker.pin import pin; pin(given['cpus']);"
    " from satchel.runtime.sandbox.enter import enter; enter(given['sandbox']); from {} import main; main()"
)
PASSES = hasattr(socket, "send_fds") and sys.platform != "win32"  # whether descriptors can be sent
# Signals that no fault of a process's own code sends it: those of its user and of a system without memory.
OUTSIDE = frozenset(getattr(signal, name, 0) for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGQUIT")) - {0}
PATIENCE = 10.0  # seconds for a worker to close its model


def folder() -> str | None:
    """The current folder, against which paths are resolved, also by a process that starts later; None if it
    is gone.
    """
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


def _close(end: socket.socket | BinaryIO) -> None:
    """Closes an end, ignoring errors: the descriptor is released even then."""
    with suppress(OSError):
        end.close()


class Process:
    """A worker process with its folder, its pipes, and a socket for descriptors. Any thread may send; one
    reads.

    The thread that makes it must outlive it: Linux ends the process with the thread that started it. sandbox:
    its policy (runtime/sandbox/policy.py); None: no sandbox. cpus: processors that it keeps to; none: all.
    """

    def __init__(
        self,
        folder: str | None = None,
        sandbox: Mapping[str, Any] | None = None,
        cpus: Sequence[int] = (),
    ) -> None:
        known = folder if folder and Path(folder).is_dir() else None
        ends: tuple[socket.socket | None, socket.socket | None] = (None, None)
        if PASSES:
            ends = socket.socketpair()
        self._side, other = ends
        self._scratch = TemporaryDirectory(prefix="satchel-") if sandbox and sandbox["compiles"] else None
        if sandbox and self._scratch:
            sandbox = {**sandbox, "scratch": self._scratch.name}
        side = other.fileno() if other else -1
        given: dict[str, Any] = {"path": module_path(), "sandbox": sandbox, "side": side}
        given["cpus"] = list(cpus)
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
        self.killed = False  # it was ended by a signal from outside; known once it is reaped
        self._fault = ""  # the pipe's error, if that ended the process
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
        """Sends a message without blocking, so a signal handler may call it. If the process is gone, its
        reader notices. descriptor: of a file that goes along; the caller still owns its own.
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
            pass  # it is gone already; reap() tells the cause
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
        """The next message; None at the end of the pipe."""
        self._reading = True
        try:
            return read_message(self._from)
        except (OSError, ValueError) as error:
            self._give_up(error)
            return None
        finally:
            self._reading = False

    def _give_up(self, error: Exception) -> None:
        """A pipe failed: gives the process up as lost, which its reader notices."""
        self._fault = self._fault or str(error)
        self._process.kill()

    @property
    def unread(self) -> bool:
        """Whether the process has sent bytes that are not read yet; thread-safe."""
        if not self._reading:
            return True
        with suppress(OSError, ValueError):  # closed meanwhile, or a system that cannot tell
            return bool(select.select([self._from], [], [], 0)[0])
        return False

    def kill(self) -> None:
        self._process.kill()

    def reap(self) -> str:
        """Waits for a process that has closed its pipe; gives the cause of its end."""
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
        self.killed = -code in OUTSIDE
        names = {s.value: s.name for s in signal.Signals}
        return f"was ended by {names.get(-code, f'signal {-code}')}"
