"""A worker process as its owner sees it: how it is begun, spoken to, and what it died of."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, cast

from satchel.quant import DeviceError, SatchelError
from satchel.quant.threads import begin
from satchel.runtime.worker.wire import Message, read_message, write_message

MODULE = "satchel.runtime.worker.child"
# The child finds the package where this process did, whatever its own start would have found.
START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import main; main()"
PATIENCE = 10.0  # seconds that a worker has to close its model


def interpreter() -> list[str]:
    """The command of a Python as this one was begun."""
    if not sys.executable:
        raise DeviceError("worker='process' needs to know where Python is, and sys.executable is empty")
    flags = {
        "-I": sys.flags.isolated,
        "-E": sys.flags.ignore_environment,
        "-s": sys.flags.no_user_site,
        "-S": sys.flags.no_site,
        "-B": sys.flags.dont_write_bytecode,
    }
    return [sys.executable, *(flag for flag, on in flags.items() if on)]


def folder() -> str | None:
    """The one in which paths are meant, also by a process that is begun later."""
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


class Process:
    """A worker process in a folder, and its pipes. Any thread may send; one reads. The thread that makes it
    must live as long as it does: on Linux the process is ended with the thread that began it.
    """

    def __init__(self, folder: str | None = None) -> None:
        command = [*interpreter(), "-c", START.format(MODULE), json.dumps(sys.path)]
        pipe = subprocess.PIPE
        known = folder if folder and Path(folder).is_dir() else None
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=known)
        except OSError as error:
            raise DeviceError(f"the worker process could not be begun: {error}") from None
        self._to, self._from = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self._fault = ""  # of a pipe, where that is why the process is ended
        self._outbox: SimpleQueue[Message | None] = SimpleQueue()
        try:
            begin(threading.Thread(target=self._write, name="satchel-send", daemon=True))
        except SatchelError:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message) -> None:
        """Sends a message, without waiting: also a signal handler may. Where the process is gone, whoever
        reads from it learns so.
        """
        self._outbox.put(message)

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                write_message(self._to, message)
        except BrokenPipeError:
            pass  # it is gone already, and says itself what it died of
        except (OSError, ValueError) as error:
            self._give_up(error)  # who waits for the rest of a message would wait for ever

    def read(self) -> tuple[Message, bytes] | None:
        """The next message; None where there are no more."""
        try:
            return read_message(self._from)
        except (OSError, ValueError, SatchelError) as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        """A pipe failed: the process is lost, and whoever reads from it learns so."""
        self._fault = self._fault or str(error)
        self._process.kill()

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
        for pipe in (self._to, self._from):
            with suppress(OSError):
                pipe.close()
        if code >= 0:
            return f"ended with status {code}"
        if self._fault:
            return f"was ended: its pipe failed: {self._fault}"
        names = {s.value: s.name for s in signal.Signals}
        return f"was ended by {names.get(-code, f'signal {-code}')}"
