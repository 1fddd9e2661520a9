"""Embeddings, scores and grammars in a worker process: lost calls are repeated, a call that kills is named,
an abandoned call ends, and streams continue beside them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_model import write_chat_model
from tiny_file import write_model
from waiting import SECONDS, joined, until, until_async

from satchel import AsyncModel, Model
from satchel.errors import DeviceError, ModelError, RequestError
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.engine.cancel_scope import CancelScope
from satchel.runtime.engine.service import Service
from satchel.runtime.grammar import Choice, JsonSchema, Regex, ToolCallGrammar, ToolSchema, compiled
from satchel.runtime.kv import Miss
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculative import Speculation
from satchel.runtime.worker import process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are not sent there")
POISON = 12  # no answer below has it twice in a row
WARM = Sampling(temperature=1.5, top_k=0, seed=11)
LETTERS = Regex("[a-z]{40}")
STEPS = 16  # of an answer, before its worker stands still: it takes more, and tokens of nine come
TEXTS = [[int(t) for t in np.random.default_rng(i).integers(100, 250, 90)] for i in range(12)]
Begin = Callable[..., WorkerModel]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("methods") / "tiny.gguf")


@pytest.fixture(scope="module")
def here(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=4, threads=1, context=256) as model:
        yield model


@pytest.fixture
def begin(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Begin]:
    """Loads a model whose worker dies of POISON, with a delay of `slow` seconds before each step."""
    made: list[WorkerModel] = []

    def load(slow: float = 0.0, file: Path = path, **options: Any) -> WorkerModel:
        monkeypatch.setattr(process, "MODULE", "crashing_child")
        monkeypatch.setenv("SATCHEL_TEST_POISON", str(POISON))
        monkeypatch.setenv("SATCHEL_TEST_SLOW", str(slow))
        monkeypatch.setenv("SATCHEL_TEST_HOLD", str(tmp_path / "hold"))
        monkeypatch.setenv("SATCHEL_TEST_STILLBORN", str(tmp_path / "stillborn"))
        model = Model.load(file, slots=4, threads=1, context=256, worker="process", **options)
        assert isinstance(model, WorkerModel)
        made.append(model)
        return model

    yield load
    for model in made:
        model.close()


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that makes a process of `there` stand still."""
    return tmp_path_factory.mktemp("hold") / "hold"


@pytest.fixture(scope="module")
def there(path: Path, hold: Path) -> Iterator[WorkerModel]:
    """One model for all tests that leave it unchanged; each step is delayed a little, so that answers take
    time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "MODULE", "crashing_child")
        patch.setenv("SATCHEL_TEST_POISON", str(POISON))
        patch.setenv("SATCHEL_TEST_SLOW", "0.004")
        patch.setenv("SATCHEL_TEST_HOLD", str(hold))
        model = Model.load(path, slots=4, threads=1, context=256, worker="process")
        assert isinstance(model, WorkerModel)
        with model:
            yield model


@pytest.fixture(scope="module")
def quick(path: Path) -> Iterator[Model]:
    """A model in a worker process without delays, for answers that nothing interrupts."""
    with Model.load(path, slots=4, threads=1, context=256, worker="process") as model:
        yield model


def kill(model: WorkerModel) -> None:
    """Kills the worker and waits until another has started."""
    before = model.worker.restarts
    os.kill(model.worker.pid, signal.SIGKILL)
    until(lambda: model.worker.restarts > before, "another worker")


@contextmanager
def standing(file: Path, steps: int) -> Iterator[None]:
    """The worker stands still after so many steps, so that nothing which takes more can end before it is
    killed; the next worker works on.
    """
    file.write_bytes(b"." * steps)
    try:
        yield
    finally:
        file.unlink()


def test_what_was_lost_with_a_worker_is_asked_again(here: Model, there: WorkerModel, hold: Path) -> None:
    """kill -9 during many kinds of calls: each gives the result that it gives without."""
    prompt = TEXTS[0]

    def work(m: Model) -> list[Callable[[], Any]]:
        return [
            lambda: m.embed(TEXTS),
            lambda: m.score(prompt, TEXTS[1:4]),
            lambda: m.prompt_logprobs(prompt, 3),
            lambda: m.beam_search(prompt, 2, 20),
            lambda: m.generate(prompt, grammar=LETTERS, sampling=WARM).read(),
            lambda: m.logits(prompt),
        ]

    wanted, before = [ask() for ask in work(here)], there.worker.restarts
    with ThreadPoolExecutor(8) as pool:
        with standing(hold, 2 * STEPS):
            asked = [pool.submit(ask) for ask in work(there)]
            until(
                lambda: any(a.turns > 1 for a in list(there.worker._calls.values())),
                "a call has had two turns",
            )
            kill(there)
        found = [a.result(SECONDS) for a in asked]
    for w, f in zip(wanted, found, strict=True):
        assert np.array_equal(w, f) if isinstance(w, np.ndarray) else w == f
    assert there.worker.restarts == before + 1


@pytest.mark.parametrize("method", ["embed", "score", "prompt_logprobs", "beam_search", "logits"])
def test_a_call_that_kills_is_named_and_refused_and_streams_go_on(
    here: Model, there: WorkerModel, method: str
) -> None:
    bad: Any = [1, POISON, POISON, 2]
    args = {"embed": ([bad],), "score": (bad, [[1, 2]]), "beam_search": (bad, 2, 3)}.get(method, (bad,))
    how: dict[str, Any] = {"max_tokens": 40, "sampling": WARM, "ignore_eos": True}
    wanted = [here.generate(ids, **how).read() for ids in TEXTS[:2]]
    replies = [there.generate(ids, **how) for ids in TEXTS[:2]]
    for reply in replies:
        reply.start()
    with pytest.raises(
        DeviceError, match=rf"request \d+ \({method}\): the worker process was ended .* twice"
    ):
        getattr(there, method)(*args)
    assert [reply.read() for reply in replies] == wanted
    assert np.array_equal(there.embed(TEXTS[:2]), here.embed(TEXTS[:2]))


def test_a_call_that_nobody_wants_any_more_ends(there: WorkerModel) -> None:
    """Its slots are free for others."""
    scope, ended, before = CancelScope(), list[BaseException](), there.worker.restarts

    def work() -> None:
        try:
            scope.run(lambda: there.embed(TEXTS * 100))
        except RequestError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(
        lambda: any(a.turns > 2 for a in list(there.worker._calls.values())), "the call has had three turns"
    )
    scope.cancel()
    joined(thread, "the call that was stopped")
    assert "cancelled" in str(ended[0])
    assert len(there.beam_search(TEXTS[0], 4, 2)) == 4, "all four slots are to be had"
    assert there.worker.restarts == before


def begun(model: Model | WorkerModel) -> bool:
    """Whether a call has work done by the engine, here or in a worker."""
    if isinstance(model, WorkerModel):
        return any(a.turns > 0 for a in list(model.worker._calls.values()))
    service = model.service
    assert isinstance(service, Service)
    return service.scheduler.free_slots < 2


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_cancelling_a_task_ends_what_it_asked_for(path: Path, worker: str) -> None:
    async def run() -> None:
        async with await AsyncModel.load(path, slots=2, threads=1, context=256, worker=worker) as model:
            task = asyncio.create_task(model.embed(TEXTS * 400))
            await until_async(lambda: begun(model.model), "the call has a turn")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            beams = await asyncio.to_thread(model.model.beam_search, TEXTS[0], 2, 2)
            assert len(beams) == 2, "both slots are to be had"

    asyncio.run(run())


def test_a_call_that_gave_up_waiting_for_slots_leaves_none_leased(here: Model) -> None:
    """It waits for four slots while one is taken, and is stopped."""
    service, scope, ended = here.service, CancelScope(), list[str]()
    assert isinstance(service, Service)
    (taken,) = service.acquire_slots(1)

    def work() -> None:
        with pytest.raises(RequestError) as error:
            scope.run(lambda: here.beam_search(TEXTS[1], 4, 2))
        ended.append(str(error.value))

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: service._slot_requests, "the search waits for slots")
    scope.cancel()
    joined(thread, "the search that was stopped")
    service.release_slots([taken])
    assert ended == ["the call was cancelled"]
    assert len(here.beam_search(TEXTS[1], 4, 2)) == 4


def test_a_stream_goes_on_beside_long_calls(there: WorkerModel) -> None:
    """The calls would take minutes; they are stopped once the stream is at its end."""
    scope = CancelScope()
    with ThreadPoolExecutor(6) as pool:
        try:
            calls = [pool.submit(scope.run, lambda: there.embed(TEXTS * 400)) for _ in range(6)]
            until(lambda: len(there.worker._calls) == 6, "six calls are under way")
            reply = there.generate(TEXTS[0], max_tokens=20, sampling=WARM, ignore_eos=True)
            reply.read()
            assert len(reply.ids) == 20 and not any(c.done() for c in calls)
            assert there.stats().steps > 0 and not any(c.done() for c in calls)
        finally:
            scope.cancel()
        for call in calls:
            with pytest.raises(RequestError, match="cancelled"):
                call.result(SECONDS)
        calls = [pool.submit(there.embed, TEXTS * 2) for _ in range(6)]
        found = [c.result(SECONDS) for c in calls]
    assert all(np.array_equal(f, found[0]) for f in found)


GRAMMARS = [
    Choice(["yes", "no"]),
    LETTERS,
    JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    JsonSchema('{"enum": ["x", "y"]}'),
    ToolCallGrammar([ToolSchema("f", {"type": "object", "properties": {"on": {"type": "boolean"}}})]),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: type(grammar).__name__)
@pytest.mark.parametrize("reasoning", [None, True, False, 6])
def test_grammars_hold_behind_thinking(here: Model, quick: Model, grammar: Any, reasoning: Any) -> None:
    how: dict[str, Any] = {"grammar": grammar, "sampling": WARM, "max_tokens": 60, "reasoning": reasoning}
    ask = [{"role": "user", "content": "a"}]
    wanted, reply = here.chat(ask, **how), quick.chat(ask, **how)
    wanted.read()
    reply.read()
    assert (reply.text, reply.ids, reply.stats.finish) == (wanted.text, wanted.ids, wanted.stats.finish)
    assert reply.message() == wanted.message() and reply.stats.reason == wanted.stats.reason


@pytest.mark.parametrize("reasoning", [None, 6])
def test_a_grammar_goes_on_where_a_worker_was_lost(
    here: Model, there: WorkerModel, hold: Path, reasoning: Any
) -> None:
    how: dict[str, Any] = {"grammar": LETTERS, "sampling": WARM, "max_tokens": 60, "reasoning": reasoning}
    ask = [{"role": "user", "content": "a"}]
    wanted, reply = here.chat(ask, **how), there.chat(ask, **how)
    wanted.read()
    with standing(hold, STEPS):
        next(reply)
        kill(there)
    reply.read()
    assert (reply.text, reply.ids, reply.stats.finish) == (wanted.text, wanted.ids, wanted.stats.finish)
    assert reply.report.restarted > 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (JsonSchema({"properties": {"a": {"type": "strin"}}}), "#/properties/a/type"),
        (JsonSchema({"not": {}}), "#/not"),
        (Regex("(a"), "at column 1"),
    ],
)
def test_a_wrong_grammar_is_refused_with_its_place_before_anything_runs(
    there: WorkerModel, spec: Any, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        there.generate("x", grammar=spec)


def test_only_the_process_that_draws_prepares_for_masks(here: Model, there: WorkerModel) -> None:
    assert there.tokenizer in compiled._checked and here.tokenizer not in compiled._checked


def test_code_is_not_sent(there: WorkerModel) -> None:
    class Anything:
        finished = False

        def fill(self, bitmask: Any) -> None:
            bitmask[:] = 0xFFFFFFFF

        def accept(self, token: int) -> None: ...
        def rollback(self, n: int) -> None: ...

    for how in ({"constraint": Anything()}, {"logits_processors": [lambda past, logits: None]}):
        with pytest.raises(RequestError, match=r"cannot be sent to a worker process: .*worker='thread'"):
            there.generate("x", **how).read()


@pytest.mark.parametrize("kind", [1, 2])
def test_mirostat_goes_on_as_it_was(here: Model, there: WorkerModel, hold: Path, kind: int) -> None:
    how: dict[str, Any] = {
        "sampling": replace(WARM, mirostat=kind, mirostat_tau=3.0),
        "max_tokens": 60,
        "ignore_eos": True,
        "logprobs": 1,
    }
    wanted = here.generate(TEXTS[0], **how)
    wanted.read()
    reply = there.generate(TEXTS[0], **how)
    with standing(hold, STEPS):
        for _ in range(8):
            next(reply)
        kill(there)
    reply.read()
    assert reply.ids == wanted.ids and reply.logprobs == wanted.logprobs
    assert reply.report.restarted == 1


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_h22_options_of_one_request_leave_speculation_as_it_is(path: Path, here: Model, worker: str) -> None:
    plain: dict[str, Any] = {"max_tokens": 40, "sampling": GREEDY, "ignore_eos": True}
    odd: list[dict[str, Any]] = [
        {"logprobs": 3},
        {"sampling": replace(WARM, repeat_penalty=1.3, dry_multiplier=0.8)},
        {"sampling": replace(WARM, mirostat=2)},
        {"sampling": replace(WARM, logit_bias={5: 3.0}, min_tokens=3)},
        {"grammar": LETTERS},
    ]
    asked = [(TEXTS[i][:20] * 3, plain) for i in range(3)]
    for i, change in enumerate(odd):
        asked.insert(2 * i + 1, (TEXTS[i], {"max_tokens": 40, "sampling": WARM, **change}))
    wanted = []
    for ids, how in asked:
        reply = here.generate(ids, **how)
        reply.read()
        wanted.append((reply.ids, reply.logprobs))
    options: dict[str, Any] = {"slots": 8, "threads": 1, "context": 256, "worker": worker}
    with Model.load(path, speculation=Speculation(lookup=True), **options) as model:
        replies = [model.generate(ids, **how) for ids, how in asked]
        for reply in replies:
            reply.start()
        for reply in replies:
            reply.read()
    assert [(r.ids, r.logprobs) for r in replies] == wanted


def test_an_empty_cache_after_a_loss_is_said(there: WorkerModel) -> None:
    how: dict[str, Any] = {"max_tokens": 2, "sampling": WARM}
    there.generate(TEXTS[0], **how).read()
    again = there.generate(TEXTS[0], **how)
    again.read()
    assert again.report.cached_tokens == 64
    kill(there)
    lost = there.generate(TEXTS[0], **how)
    lost.read()
    assert (lost.report.cached_tokens, lost.report.missed) == (0, Miss.LOST.value)
    assert "lost" in lost.report.missed and there.stats().worker_restarts == there.worker.restarts > 0


def test_a_file_that_is_gone_or_another_one_ends_it_with_one_error(begin: Begin, tmp_path: Path) -> None:
    file = write_chat_model(tmp_path / "m.gguf")
    there = begin(file=file)
    file.unlink()
    reply = there.generate(TEXTS[0], max_tokens=100, ignore_eos=True)
    with standing(tmp_path / "hold", STEPS):
        next(reply)
        kill(there)
    with pytest.raises(
        ModelError, match=r"worker process was lost, and the model cannot be loaded again: .*m\.gguf"
    ):
        reply.read()
    with pytest.raises(ModelError, match="cannot be loaded again"):
        there.embed(TEXTS)
    file = write_model(tmp_path / "n.gguf", seed=1)
    there = begin(file=file)
    file.unlink()
    write_model(file, seed=2)
    kill(there)
    with pytest.raises(ModelError, match="may be another model"):
        there.generate(TEXTS[0], max_tokens=3).read()
    with pytest.raises(ModelError, match="another model"):
        there.stats()


def test_processes_that_die_as_soon_as_they_are_loaded_end_it(begin: Begin, tmp_path: Path) -> None:
    there = begin()
    reply = there.generate(TEXTS[0], ignore_eos=True)
    with standing(tmp_path / "hold", STEPS):
        next(reply)
        (tmp_path / "stillborn").touch()
        kill(there)
    for ask in (reply.read, there.generate(TEXTS[0]).read, there.stats, partial(there.embed, TEXTS)):
        with pytest.raises(DeviceError, match="SIGABRT as soon as it had loaded the model, 3 times in a row"):
            ask()


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_loading_is_told_and_stopped_alike(path: Path, worker: str) -> None:
    told: list[tuple[int, int]] = []
    with Model.load(path, worker=worker, progress=lambda done, total: told.append((done, total))):
        pass
    assert told == sorted(told) and told[-1][0] == told[-1][1] > 0
    with pytest.raises(RequestError, match=r"loading was stopped at .* as the caller asked"):
        Model.load(path, worker=worker, progress=lambda done, total: False)

    def fails(done: int, total: int) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Model.load(path, worker=worker, progress=fails)


def test_relative_paths_are_those_of_the_caller(
    begin: Begin, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    there = begin(file=Path("m.gguf"))
    (tmp_path / "in").mkdir()
    monkeypatch.chdir("in")
    there.generate(TEXTS[0], max_tokens=2).read()
    assert there.save_state("state.kv", TEXTS[0]) == 64
    assert (tmp_path / "in" / "state.kv").exists()
    kill(there)
    assert there.restore_state("state.kv").tokens == 64
