"""A worker's program hears that it is alive while it works, and nothing between calls; an engine that is
stuck is an error and the worker's end.
"""

from __future__ import annotations

import io
import os
import threading
from typing import Any, BinaryIO

import pytest
from waiting import joined

from satchel.errors.threads import begin
from satchel.runtime.app_worker import serve, wire
from satchel.runtime.app_worker.calls import E_DEVICE
from satchel.runtime.app_worker.serve import STUCK, ProgramPipe, Vitals
from satchel.runtime.engine.watchdog import Pulse


class Session:
    """A session whose calls take until they are allowed to end. pulse: of its engine."""

    def __init__(self) -> None:
        self.may_end, self.pulse = threading.Event(), Pulse()

    def answer(self, call: int, values: bytes) -> tuple[int, bytes]:
        self.may_end.wait()
        return 0, values * call


def message(file: BinaryIO) -> tuple[int, bytes]:
    """Kind and values of the next message to the program."""
    magic, kind, size = wire.HEAD.unpack(file.read(wire.HEAD.size))
    assert magic == wire.ANSWER
    return kind, file.read(size)


def test_signs_of_life_come_while_a_call_is_answered() -> None:
    session: Any = Session()
    (calls, asks), (hears, answers) = os.pipe(), os.pipe()
    with (
        os.fdopen(calls, "rb") as request,
        os.fdopen(answers, "wb") as answer,
        os.fdopen(hears, "rb") as heard,
    ):
        thread = threading.Thread(target=serve.serve, args=(session, request, answer, 0.2))
        begin(thread)
        with os.fdopen(asks, "wb") as program:
            for count in (1, 2):
                session.may_end.clear()
                program.write(wire.HEAD.pack(wire.REQUEST, 3, 2) + b"ab")
                program.flush()
                for _ in range(3):
                    assert message(heard) == (wire.ALIVE, wire.number(200))
                session.may_end.set()
                while (found := message(heard))[0] == wire.ALIVE:
                    pass
                assert found == (0, b"ab" * 3), count
        joined(thread, "the worker")


def test_nothing_is_written_between_calls() -> None:
    file = io.BytesIO()
    pipe = ProgramPipe(file, 60.0)
    pipe.sign()
    assert file.getvalue() == b""
    for _ in range(2):
        pipe.begin()
        pipe.answer(0, b"")
        pipe.sign()
    file.seek(0)
    assert [message(file)[0] for _ in range(3)] == [wire.ALIVE, 0, 0]  # the first call tells the timeout
    assert file.read() == b""


def test_an_engine_that_is_stuck_is_an_error_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    session: Any = Session()
    file = io.BytesIO()
    pipe = ProgramPipe(file, 0.0)
    vitals = Vitals(session, pipe, STUCK / 4)
    pipe.begin()
    for _ in range(50):  # steps that end
        session.pulse.begin("step")
        vitals.look()
    with pytest.raises(SystemExit):
        for _ in range(5):  # one that does not
            vitals.look()
    file.seek(0)
    kinds = [message(file) for _ in range(55)]
    assert kinds[:54] == [(wire.ALIVE, wire.number(0))] * 54
    assert kinds[54] == (E_DEVICE, wire.data(b"the engine was busy with one step for 600 s"))
    assert file.read() == b""
