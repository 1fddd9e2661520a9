"""A worker's conversation with its program: one call after the other is answered, and while that takes, the
program hears that the worker is alive.

A program gives a worker up that has been silent for `timeout` seconds within a call. Signs of life come from
a thread of their own, so long work is no silence; a process that is stopped or hangs as a whole is silent.
Between calls nothing is written, because nobody would read it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import BinaryIO

from satchel.runtime.app_worker import wire
from satchel.runtime.app_worker.calls import E_DEVICE, AppSession
from satchel.runtime.engine.watchdog import BEAT, Beats, Watchdog, ticking

SIGNS = 20  # of life, at least, in the time after which a program gives up
STUCK = 600.0  # seconds of one step or compilation after which it counts as endless


class ProgramPipe:
    """The way to the program. Any thread may write, one message at a time. timeout: seconds; 0: none."""

    def __init__(self, file: BinaryIO, timeout: float) -> None:
        self._file, self._patience = file, wire.number(round(timeout * 1000))
        self._lock, self._within, self._told = threading.Lock(), False, False

    def begin(self) -> None:
        """A call came. The first one is answered by a sign of life at once, which tells the timeout."""
        self._within = True
        if not self._told:
            self.sign()
            self._told = True

    def sign(self) -> None:
        """Gives a sign of life if the program waits for an answer."""
        with self._lock:
            if self._within:
                wire.write_answer(self._file, wire.ALIVE, self._patience)

    def answer(self, code: int, values: bytes) -> None:
        """Answers the call."""
        with self._lock:
            self._within = False
            wire.write_answer(self._file, code, values)


class Vitals:
    """What a sign of life depends on: an engine that is stuck in one step gives an error instead, and the
    process ends, because its thread cannot be.
    """

    def __init__(self, session: AppSession, pipe: ProgramPipe, seconds: float) -> None:
        self._pipe, self._dog = pipe, Watchdog(0, STUCK, seconds)
        self._beats = Beats(lambda: session.pulse, seconds)

    def look(self) -> None:
        """Called every `seconds` seconds."""
        self._dog.heard(self._beats.look())
        with suppress(OSError):  # the program has ended, and reading its calls will end this process
            if not self._dog.hopeless:
                self._pipe.sign()
                return
            self._pipe.answer(E_DEVICE, wire.data(f"the engine {self._dog.hopeless}".encode()))
        os._exit(1)


def serve(session: AppSession, calls: BinaryIO, answers: BinaryIO, timeout: float) -> None:
    """Answers calls until the program closes the pipe. BrokenPipeError where it ends before an answer."""
    pipe, over = ProgramPipe(answers, timeout), threading.Event()
    seconds = min(BEAT, timeout / SIGNS) if timeout else BEAT
    ticking(Vitals(session, pipe, seconds).look, over, "satchel-alive", seconds)
    try:
        while (request := wire.read_request(calls)) is not None:
            pipe.begin()
            pipe.answer(*session.answer(*request))
    finally:
        over.set()
