"""The engine in a worker process: the same answers, crashes that fail only the request that caused them, and
no process left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_file import write_model
from waiting import until

from satchel import Model
from satchel.errors import DeviceError, ModelError, RequestError
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.api.reply import Reply
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.worker import process, service

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are not sent there")
POISON = 23  # no answer below has it twice in a row
WARM = Sampling(temperature=1.5, top_k=0, seed=11)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("worker") / "tiny.gguf")


@pytest.fixture(scope="module")
def here(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=4, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def there(path: Path) -> Iterator[WorkerModel]:
    model = Model.load(path, slots=4, threads=1, worker="process")
    assert isinstance(model, WorkerModel)
    with model:
        yield model


@pytest.fixture
def fragile(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WorkerModel]:
    """A model whose worker dies of the token POISON, and while `once` exists; it stands still for `hold`."""
    monkeypatch.setattr(process, "MODULE", "crashing_child")
    monkeypatch.setenv("SATCHEL_TEST_POISON", str(POISON))
    monkeypatch.setenv("SATCHEL_TEST_ONCE", str(tmp_path / "once"))
    monkeypatch.setenv("SATCHEL_TEST_HOLD", str(tmp_path / "hold"))
    model = Model.load(path, slots=4, threads=1, worker="process")
    assert isinstance(model, WorkerModel)
    with model:
        yield model


def prompts(count: int, length: int = 20) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [[int(t) for t in rng.integers(100, 250, length)] for _ in range(count)]


def answers(model: Model, asked: list[list[int]], most: int = 24) -> list[Reply]:
    """All at once, in threads."""

    def one(ids: list[int]) -> Reply:
        reply = model.generate(ids, max_tokens=most, sampling=WARM, ignore_eos=True)
        reply.read()
        return reply

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, asked))


def test_whatever_ends_the_thread_that_hears_the_worker_nobody_waits(path: Path, monkeypatch: Any) -> None:
    def refuse(*args: object) -> None:
        raise OSError("a system that refuses what it never refuses")

    monkeypatch.setattr(service, "Process", refuse)
    with pytest.raises(DeviceError, match="the worker process is lost: a system that refuses"):
        Model.load(path, worker="process", context=64)


def test_answers_logits_and_counts_are_those_of_the_engine_here(here: Model, there: WorkerModel) -> None:
    asked = prompts(6)
    wanted = [r.ids for r in answers(here, asked)]
    found = answers(there, asked)
    assert [r.ids for r in found] == wanted
    assert there.context == here.context and there.cache == here.cache
    np.testing.assert_array_equal(there.logits(asked[0]), here.logits(asked[0]))
    stats = there.stats()
    assert stats.requests["length"] >= 6 and stats.worker_restarts == 0
    report = found[0].report
    assert report.steps > 0 and report.kv_bytes > 0 and report.prefill_seconds > 0 and report.restarted == 0
    with pytest.raises(RequestError, match="worker process"):
        _ = there.engine


def test_a_killed_worker_is_not_noticed(here: Model, fragile: WorkerModel, tmp_path: Path) -> None:
    """kill -9 during answers: none loses, repeats or changes a token."""
    asked = prompts(5)
    wanted = [r.ids for r in answers(here, asked, 60)]
    (tmp_path / "hold").write_bytes(b"." * 20)  # steps, so that no answer has ended when it is killed
    replies = [fragile.generate(ids, max_tokens=60, sampling=WARM, ignore_eos=True) for ids in asked]
    for reply in replies:
        reply.start()
    next(replies[0])
    before = fragile.stats()
    os.kill(fragile.worker.pid, signal.SIGKILL)
    for reply in replies:
        reply.read()
    assert [r.ids for r in replies] == wanted
    stats = fragile.stats()
    assert stats.requests == {"length": 5} and stats.steps > before.steps > 0
    assert stats.generated_tokens > before.generated_tokens
    assert stats.worker_restarts == 1 and sum(r.report.restarted for r in replies) > 0


def test_the_request_that_kills_is_named_and_refused_and_the_others_go_on(
    here: Model, fragile: WorkerModel
) -> None:
    asked = prompts(3)
    wanted = [r.ids for r in answers(here, asked, 30)]
    replies = [fragile.generate(ids, max_tokens=30, sampling=WARM, ignore_eos=True) for ids in asked]
    for reply in replies:
        reply.start()
    bad = fragile.generate([1, POISON, POISON, 2], max_tokens=5, sampling=GREEDY, user="mallory")
    with pytest.raises(DeviceError, match=r"request \d+ of user 'mallory' .*SIGSEGV twice"):
        bad.read()
    for reply in replies:
        reply.read()
    assert [r.ids for r in replies] == wanted
    assert 2 <= fragile.worker.restarts <= 3
    assert fragile.stats().requests == {"length": 3, "error": 1}, "steps alone end no request"
    assert answers(fragile, asked[:1], 30)[0].ids == wanted[0], "and it answers on"


def test_a_crash_within_a_batch_that_does_not_come_again_refuses_nobody(
    here: Model, fragile: WorkerModel, tmp_path: Path
) -> None:
    asked = prompts(6)
    wanted = [r.ids for r in answers(here, asked, 40)]
    (tmp_path / "once").touch()
    assert [r.ids for r in answers(fragile, asked, 40)] == wanted
    assert fragile.worker.restarts == 1


def test_cancelled_requests_and_idle_deaths(fragile: WorkerModel) -> None:
    reply = fragile.generate(prompts(1)[0], sampling=WARM, ignore_eos=True)
    next(reply)
    reply.close()
    os.kill(fragile.worker.pid, signal.SIGKILL)
    again = fragile.generate(prompts(1)[0], max_tokens=3, sampling=WARM, ignore_eos=True)
    again.read()
    assert len(again.ids) == 3 and fragile.worker.restarts == 1


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


PROGRAM = """
import sys, json
from satchel import Model
model = Model.load(sys.argv[1], worker="process")
print(model.worker.pid, flush=True)
next(model.generate([1, 2, 3], ignore_eos=True))
input()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_worker_ends_with_the_program_and_with_the_model(path: Path) -> None:
    model = Model.load(path, worker="process")
    assert isinstance(model, WorkerModel)
    pid = model.worker.pid
    model.close()
    until(lambda: gone(pid), "the worker ends with the model")
    start = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); exec(sys.argv.pop(1))"
    import json

    command = [*process.interpreter(), "-c", start, json.dumps(sys.path), PROGRAM, str(path)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    assert not gone(pid)
    program.kill()
    program.wait()
    until(lambda: gone(pid), "the worker ends with the program")


def test_what_cannot_be_loaded_or_sent_is_said(path: Path, tmp_path: Path) -> None:
    bad = write_model(tmp_path / "bad.gguf", general__architecture="martian")
    with pytest.raises(ModelError, match="martian"):
        Model.load(bad, worker="process")
    with pytest.raises(RequestError, match="worker is 'thread pool'"):
        Model.load(path, worker="thread pool")
    with pytest.raises(RequestError, match=r"stopped at .* as the caller asked"):
        Model.load(path, worker="process", progress=lambda done, total: False)


def test_a_worker_that_dies_while_it_loads_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START", "import os; os.abort() #{}")
    with pytest.raises(DeviceError, match="SIGABRT while it loaded"):
        Model.load(path, worker="process")
