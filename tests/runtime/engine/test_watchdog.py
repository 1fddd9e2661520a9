"""The watchdog: it judges an engine's progress by beats, which these tests count out; a stopped worker
process is noticed, continues, or is ended and replaced.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import tiny
from tiny_file import write_model
from waiting import until

from satchel import Model
from satchel.errors import DeviceError, RequestError
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.api.options import Options
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.watchdog import MISSED, SLOW, Beat, Beats, Pulse, Watchdog
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY
from satchel.runtime.worker import process
from satchel.runtime.worker import service as worker_service

stops = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped there")


def test_beats_tell_how_long_the_same_piece_of_work_is_at_hand() -> None:
    pulse = Pulse()
    beats = Beats(lambda: pulse, seconds=2.0)
    assert beats.look() == Beat()
    pulse.begin("step")
    assert [beats.look().stalled for _ in range(4)] == [0, 2, 4, 6]
    pulse.begin("step")
    assert beats.look() == Beat("step", 0, longest=6)
    with pulse.within("compile"):
        assert [beats.look().doing for _ in range(2)] == ["compile", "compile"]
    assert beats.look() == Beat("step", 0, longest=6)
    pulse.end()
    assert [beats.look().stalled for _ in range(9)] == [0] * 9, "an idle engine is not stuck"


def test_several_missed_beats_are_trouble_and_one_that_comes_ends_it() -> None:
    dog = Watchdog(worker_timeout=60, step_timeout=600, seconds=0.5, loaded=True)
    for _ in range(MISSED - 1):
        dog.tick()
    assert dog.trouble == ""
    dog.tick()
    assert "no sign of life for 3 s" in dog.trouble and not dog.hopeless
    dog.heard()
    assert dog.trouble == "" and dog.missed == 0
    for _ in range(119):
        dog.tick()
    assert not dog.hopeless
    dog.tick()
    assert dog.hopeless == "gave no sign of life for 60 s"


def test_what_was_not_read_yet_is_held_against_nobody() -> None:
    dog = Watchdog(worker_timeout=60, step_timeout=600, loaded=True)
    for _ in range(10_000):
        dog.tick(unread=True)
    assert dog.trouble == "" and dog.hopeless == ""


def test_a_suspended_machine_costs_one_beat_however_long_it_sleeps() -> None:
    """The watchdog reads no clock, so a jumping clock changes nothing."""
    read: list[str] = []

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__module__ == "time":
            read.append(called.__name__)

    dog = Watchdog(worker_timeout=1, step_timeout=1, loaded=True)
    beats = Beats(lambda: None)
    sys.setprofile(note)  # of this thread alone
    try:
        for _ in range(1000):
            dog.tick()
            dog.heard(beats.look())
    finally:
        sys.setprofile(None)
    assert not read, "a clock was read"
    assert dog.trouble == "" and dog.hopeless == ""


def test_a_step_is_too_long_by_what_steps_take_here() -> None:
    dog = Watchdog(worker_timeout=60, step_timeout=600)
    dog.heard(Beat("step", stalled=SLOW["step"] - 1))
    assert not dog.trouble
    dog.heard(Beat("step", stalled=SLOW["step"]))
    assert "busy with one step for 60 s" in dog.trouble and not dog.hopeless
    dog.heard(Beat("step", stalled=SLOW["step"], longest=50))
    assert not dog.trouble, "a machine whose steps take 50 s"
    dog.heard(Beat("compile", stalled=SLOW["step"]))
    assert not dog.trouble, "compiling takes longer than a step"
    dog.heard(Beat("step", stalled=600, longest=50))
    assert dog.hopeless == "was busy with one step for 600 s"
    dog.heard(Beat("step", stalled=600, longest=100))
    assert not dog.hopeless
    dog.heard(Beat("", stalled=1e9))
    assert not dog.trouble and not dog.hopeless


def test_silence_while_a_model_loads_has_the_longer_bound_and_0_is_never() -> None:
    dog = Watchdog(worker_timeout=1, step_timeout=600, seconds=1.0)
    for _ in range(599):
        dog.tick()
    assert not dog.hopeless
    dog.tick()
    assert dog.hopeless
    never = Watchdog(worker_timeout=0, step_timeout=0, loaded=True)
    for _ in range(100_000):
        never.tick()
    never.beat = Beat("step", stalled=1e9)
    assert never.trouble and not never.hopeless
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(RequestError, match="step_timeout"):
            Options(step_timeout=wrong).check()


def test_a_stuck_engine_thread_of_this_process_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SLOW, "step", 0.0)
    device = find_backend("cpu").open(threads=1)
    cache = Cache(context=64, slots=1, block=16)
    engine = tiny.engine("llama", tiny.weights("llama", "q8_0"), cache, device)
    service, real, leave = Service(engine), engine.step, threading.Event()
    engine.step = lambda entries: leave.wait(60) and real(entries)  # type: ignore[method-assign,assignment]
    handle = service.submit(GenerateRequest([1, 2], 2))
    until(lambda: "busy with one step" in service.trouble, "the trouble")
    leave.set()
    assert len(list(handle)) == 2
    until(lambda: not service.pulse.doing, "the end of work")
    until(lambda: not service.trouble, "the next beat")
    service.close()
    assert service.trouble == "the engine thread has ended"
    engine.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_service, "BEAT", 0.02)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("stopped") / "tiny.gguf")


@pytest.fixture
def stopped(path: Path, quick: None) -> Iterator[WorkerModel]:
    """A model whose worker process is stopped in the middle of an answer, and never ended for that."""
    model = Model.load(path, threads=1, worker="process", worker_timeout=0)
    assert isinstance(model, WorkerModel)
    with model:
        until(lambda: not model.trouble, "the first beats")
        os.kill(model.worker.pid, signal.SIGSTOP)
        yield model
        model.worker.kill()


@stops
def test_a_stopped_worker_is_trouble_until_it_goes_on(stopped: WorkerModel) -> None:
    reply = stopped.generate([1, 2, 3], max_tokens=4, sampling=GREEDY, ignore_eos=True)
    reply.start()
    until(lambda: "no sign of life" in stopped.trouble, "the trouble")
    assert stopped.stats().worker_restarts == 0, "figures are told without waiting for it"
    os.kill(stopped.worker.pid, signal.SIGCONT)
    until(lambda: not stopped.trouble, "the end of the trouble")
    reply.read()
    assert len(reply.ids) == 4 and stopped.worker.restarts == 0


@stops
def test_what_asks_a_stopped_worker_is_answered_by_the_next(
    path: Path,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """As after kill -9: the answer goes on in another process, token for token. The first process stands
    still after some steps, so that it is stopped in the middle.
    """
    monkeypatch.setattr(process, "MODULE", "crashing_child")
    monkeypatch.setenv("SATCHEL_TEST_HOLD", str(tmp_path / "hold"))
    with Model.load(path, threads=1) as here:
        wanted = here.generate([1, 2, 3], max_tokens=30, sampling=GREEDY, ignore_eos=True)
        wanted.read()
    model = Model.load(path, threads=1, worker="process", worker_timeout=0)
    assert isinstance(model, WorkerModel)
    (tmp_path / "hold").write_bytes(b"." * 12)  # steps
    with model:
        first = model.worker.pid
        reply = model.generate([1, 2, 3], max_tokens=30, sampling=GREEDY, ignore_eos=True)
        next(reply)
        os.kill(first, signal.SIGSTOP)
        model.worker._dog.worker_timeout = 0.2  # of this process; the next one has the option's
        reply.read()
        assert reply.ids == wanted.ids, caplog.text
        assert model.worker.restarts == 1 and model.worker.pid != first, caplog.text
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


def test_every_phase_of_a_worker_says_what_it_is(path: Path, quick: None) -> None:
    said: list[str] = []
    model = Model.load(path, threads=1, worker="process")
    assert isinstance(model, WorkerModel)
    worker = model.worker
    seen = worker._lost
    worker._lost = lambda died, failed: (seen(died, failed), said.append(worker.trouble))[0]  # type: ignore[method-assign]
    until(lambda: not worker.trouble, "ready")
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: worker.restarts == 1 and not worker.trouble, "ready again")
    assert said == ["the worker process is loading the model again"]
    worker._broken = DeviceError("it cannot be loaded")
    assert worker.trouble == "it cannot be loaded"
    worker._broken = None
    model.close()
    assert "was closed" in worker.trouble
