"""The library's interface: options declared once, loads that can be cancelled, answers that end when they are
dropped, and correct reports and counts.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import itertools
import logging
import random
import subprocess
import sys
import threading
import typing
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_file import write_model
from waiting import happened, until

from satchel import AsyncModel, Model
from satchel.errors import RequestError
from satchel.runtime.api import recovering
from satchel.runtime.api.generate_options import GenerateKwargs, GenerateOptions
from satchel.runtime.api.options import LoadKwargs, Options
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.stats import BOUNDS, Histogram, KVTraffic
from satchel.runtime.sampling import GREEDY, Sampling, SamplingKwargs


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("face") / "tiny.gguf")


@pytest.fixture
def model(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=3, threads=1) as made:
        yield made


@pytest.mark.parametrize(
    ("definitions", "keywords"),
    [
        ([Options], LoadKwargs),
        ([Sampling], SamplingKwargs),
        ([Sampling, GenerateOptions], GenerateKwargs),
    ],
)
def test_keywords_are_the_fields_of_the_definition(definitions: list[type], keywords: type) -> None:
    fields = {f.name: f.type for one in definitions for f in dataclasses.fields(one) if f.init}
    written = {name: ref.__forward_arg__ for name, ref in keywords.__annotations__.items()}
    assert written == fields
    hints = {name: hint for one in definitions for name, hint in typing.get_type_hints(one).items()}
    assert typing.get_type_hints(keywords) == {name: hints[name] for name in fields}


def test_no_option_of_a_request_shares_its_name_with_one_of_sampling() -> None:
    names = [f.name for one in (Sampling, GenerateOptions) for f in dataclasses.fields(one)]
    assert len(names) == len(set(names))


def test_sampling_options_are_keywords(model: Model) -> None:
    greedy = model.generate([1, 2, 3], max_tokens=8, temperature=0, ignore_eos=True)
    assert greedy.read() == model.generate([1, 2, 3], max_tokens=8, sampling=GREEDY, ignore_eos=True).read()
    said = [{"role": "user", "content": "hello"}]
    assert model.chat(said, temperature=0, max_tokens=3).sampling.temperature == 0
    assert model.answer([1, 2], top_k=3, max_tokens=3).sampling.top_k == 3
    many = model.generate_many([[1], [2]], seed=7, max_tokens=2)
    assert [reply.sampling.seed for reply in many] == [7, 7]
    both = model.generate([1], sampling=Sampling(top_k=3, seed=5), temperature=0, max_tokens=1)
    assert (both.sampling.top_k, both.sampling.seed, both.sampling.temperature) == (3, 5, 0)


def test_a_wrong_keyword_is_named(model: Model) -> None:
    with pytest.raises(TypeError, match="temprature"):
        model.generate([1], temprature=0)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="temperature is -1: expected 0 to 100"):
        model.generate([1], temperature=-1)


@pytest.mark.parametrize("stop", ["there", ["there"], ("there",)])
def test_stop_is_a_text_or_several(stop: Any) -> None:
    assert GenerateOptions(stop=stop).stop == GenerateOptions.of(stop=stop).checked().stop == ("there",)


def test_a_stop_text_is_not_split_into_letters(model: Model) -> None:
    asked: GenerateKwargs = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    free = model.generate("abc", **asked).read()
    stop = free[4:7]
    reply = model.generate("abc", stop=stop, **asked)
    assert reply.read() == free[: free.index(stop)]
    assert (reply.stats.finish, reply.stop_found) == ("stop", stop)
    assert model.chat([{"role": "user", "content": "a"}], stop=stop, **asked).options.stop == (stop,)


@pytest.mark.parametrize("stop", [5, None, [5], [None], {"there": 1, 2: 3}])
def test_a_stop_that_is_no_text_is_refused(model: Model, stop: Any) -> None:
    with pytest.raises(RequestError, match="stop: expected a text or a list of texts, got"):
        model.generate("abc", stop=stop)


def test_one_text_for_several_is_never_read_letter_by_letter(model: Model) -> None:
    for refused in (
        lambda: model.generate_many("abc", max_tokens=1),
        lambda: model.tokenize_many("abc"),
        lambda: model.score("abc", "def"),
        lambda: model.rerank("abc", "def"),
        lambda: model.generate("abc", samplers="top_k"),
        lambda: model.generate("abc", bad_words="def"),
    ):
        with pytest.raises(RequestError, match="expected a list"):
            refused()
    assert Sampling(dry_breakers="ab").dry_breakers == ("ab",)
    assert Options(override_tensor="exps=CPU").placement_options.rules
    assert Options(adapters="a.gguf", control_vectors=Path("b.gguf")).control_vectors == (Path("b.gguf"),)
    assert Options(adapters="a.gguf").adapters == ("a.gguf",)
    with pytest.raises(RequestError, match=r"got str; write \[\{\"role\": \"user\""):
        model.chat("Hello!")  # type: ignore[arg-type]


SAME = [name for name in dir(AsyncModel) if not name.startswith("_") and callable(getattr(Model, name, None))]


@pytest.mark.parametrize("name", [name for name in SAME if name != "load"])
def test_an_async_method_takes_what_the_model_takes(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (AsyncModel, Model))
    assert list(ours.values())[1:] == list(theirs.values())[1:]


def test_the_async_model_has_the_methods_that_take_adapters() -> None:
    for name in ("embed", "score", "rerank", "logits"):
        assert "control_vectors" in inspect.signature(getattr(AsyncModel, name)).parameters, name


def test_options_and_keywords_load_alike(path: Path) -> None:
    with Model.load(path, Options(context=32, slots=2), slots=3) as model:
        assert (model.context, model.cache.slots, model.options.context) == (32, 3, 32)
    with pytest.raises(TypeError, match="contextt"):
        Model.load(path, contextt=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("answer", [False, RuntimeError("enough")])
def test_a_load_that_is_stopped_leaves_nothing(path: Path, answer: bool | Exception) -> None:
    def progress(done: int, total: int) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return answer

    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises((RequestError, RuntimeError), match=r"stopped at [\d,]+ of [\d,]+ bytes|enough"):
            Model.load(path, progress=progress)
    gc.collect()
    # Threads of other tests may end meanwhile.
    until(lambda: set(threading.enumerate()) <= before, "threads of the loads end")
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(path) not in maps.read_text(), "the file is still mapped"


@pytest.mark.parametrize("way", ["close", "with", "del", "break"])
def test_an_answer_that_nobody_wants_ends(model: Model, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill, steps, go = model.engine.fill, itertools.count(), threading.Event()

    def waits(*args: Any, **options: Any) -> Any:
        if next(steps) >= 8:  # the answer must not end by itself before it is let go
            happened(go, "the answer is let go")
        return fill(*args, **options)

    monkeypatch.setattr(model.engine, "fill", waits)
    gc.disable()  # letting go is enough: no cycle keeps an answer alive
    try:
        if way == "break":
            for _ in model.generate([1, 2], ignore_eos=True, sampling=GREEDY):
                break
        else:
            reply = model.generate([1, 2], ignore_eos=True, sampling=GREEDY)
            next(reply)
            if way == "close":
                iter(reply).close()
                assert list(reply) == [] and reply.stats.finish == "cancelled"
            elif way == "with":
                with reply:
                    pass
            del reply
        go.set()
        service = model.service
        assert isinstance(service, Service)
        until(lambda: not service._handles, "the answer is let go")
        until(lambda: model.stats().requests, "it is counted")
        assert model.stats().requests["cancelled"] == 1
    finally:
        go.set()
        gc.enable()


def test_a_model_that_is_dropped_in_a_step_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage is collected in any thread, an event loop's too."""
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    dropped = Model.load(path)
    fill, steps = dropped.engine.fill, itertools.count()

    def waits(*args: Any, **options: Any) -> Any:
        if next(steps) == 2:
            begun.set()
            happened(go, "the model is dropped")
            ended.set()
        return fill(*args, **options)

    monkeypatch.setattr(dropped.engine, "fill", waits)
    reply = dropped.generate([1, 2], ignore_eos=True, sampling=GREEDY)
    next(reply)
    happened(begun, "a step runs")
    service = dropped.service
    assert isinstance(service, Service)
    gone = weakref.ref(dropped)
    try:
        del reply, dropped
        gc.collect()
        assert gone() is None and not ended.is_set() and service._thread.is_alive()
    finally:
        go.set()
    until(lambda: not service._thread.is_alive(), "the engine's thread ends")


def test_a_model_that_was_closed_is_not_closed_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[object] = []
    monkeypatch.setattr(recovering, "close_apart", again.append)
    for closes in (True, False):
        once = Model.load(path)
        once.generate([1], max_tokens=1, sampling=GREEDY).read()
        service = once.service
        if closes:
            once.close()
        del once
        gc.collect()
    assert again == [service]
    service.close()


def test_a_timeout_ends_an_answer(model: Model) -> None:
    reply = model.generate([1, 2, 3], ignore_eos=True, timeout=1e-6)
    reply.read()
    assert reply.stats.finish == "deadline"
    with pytest.raises(RequestError, match="weight"):
        model.generate([1], weight=0)


def test_threads_get_what_each_would_get_alone(model: Model) -> None:
    rng = random.Random(4)
    asked = [[rng.randrange(10, 250) for _ in range(rng.randrange(1, 30))] for _ in range(24)]
    alone = [model.generate(ids, max_tokens=10, sampling=GREEDY).read() for ids in asked]
    together = model.generate_many(asked, max_tokens=10, sampling=GREEDY)
    assert [r.text for r in together] == alone


@pytest.mark.nightly
def test_32_threads_of_20_calls_get_what_each_would_get_alone(path: Path) -> None:
    with Model.load(path, slots=8) as model:
        asked = [[10 + i, 20 + i % 7, i % 3] for i in range(200)]
        alone = [model.generate(ids, max_tokens=20, sampling=GREEDY).read() for ids in asked]
        wrong: list[int] = []

        def work(first: int) -> None:
            for k in range(20):
                i = (first * 37 + k * 11) % len(asked)
                if model.generate(asked[i], max_tokens=20, sampling=GREEDY).read() != alone[i]:
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert wrong == []


def test_many_texts_are_tokenized_as_one(model: Model) -> None:
    texts = ["", "hello", "a b c" * 50, "ü€😀"] * 10
    assert model.tokenize_many(texts) == [model.tokenize(t) for t in texts]


def test_the_report_tells_what_was_done(model: Model) -> None:
    ids = list(range(40))
    model.generate(ids, max_tokens=2, sampling=GREEDY, ignore_eos=True).read()
    reply = model.generate([*ids, 5], max_tokens=9, sampling=Sampling(top_k=7), ignore_eos=True)
    reply.read()
    report = reply.report
    assert report.sampling.top_k == 7 and report.sampling.seed is not None
    assert (report.prompt_tokens, report.generated_tokens, report.finish) == (41, 9, "length")
    assert report.cached_tokens == 32 and report.missed.startswith("all of it was")
    assert report.steps == 9 and report.devices == {model.device.name: 1.0}
    per_token = sum(a.bytes for a in ledger(model))
    assert report.kv_bytes == per_token * sum(range(41, 50))
    weights = model.engine.program(1, 1).weight_bytes
    assert 8 * weights < report.weight_bytes < 20 * weights and report.bandwidth > 0
    assert report.limit is None and report.bandwidth_share is None and report.acceptance is None
    assert model.bandwidth() == model.bandwidth() > 1e5  # bytes a second
    share = reply.report.bandwidth_share
    assert share is not None and 0 < share == reply.report.as_dict()["bandwidth_share"]


def ledger(model: Model) -> list[typing.Any]:
    from satchel.runtime.compiler.cost import CostModel

    return list(CostModel(model.engine).attention.values())


def test_counts_add_up(model: Model) -> None:
    many = model.generate_many([[i] * 10 for i in range(7)], max_tokens=5, sampling=GREEDY, ignore_eos=True)
    stats = model.stats()
    h = stats.histograms
    assert set(h) == set(BOUNDS) and stats.requests == {"length": 7}
    assert stats.prompt_tokens == 70 and stats.generated_tokens == 35
    assert stats.cached_tokens == sum(r.stats.cached for r in many)
    assert h["time_to_first_token_seconds"].count == h["queue_seconds"].count == 7
    assert h["inter_token_seconds"].count == 28 and h["step_seconds"].count == stats.steps
    assert h["step_tokens"].total == 70 - stats.cached_tokens + 28
    assert (stats.waiting, stats.running) == (0, 0) and stats.kv_free <= stats.kv_blocks
    plain = stats.as_dict()
    assert plain["histograms"]["step_seconds"]["counts"] == h["step_seconds"].counts
    assert 0 < h["step_seconds"].quantile(0.5) <= h["step_seconds"].quantile(0.99) < 100


@given(st.lists(st.floats(0, 1e6), max_size=200))
def test_histograms_hold_every_value_once(values: list[float]) -> None:
    made = Histogram(BOUNDS["queue_seconds"])
    for v in values:
        made.add(v)
    found = made.value()
    assert found.count == len(values) and found.total == pytest.approx(sum(values))
    cumulative = np.cumsum(found.counts)
    assert [int(c) for c in cumulative[:-1]] == [sum(v <= b for v in values) for b in found.bounds]
    for q in (0.1, 0.5, 0.9):
        bound = found.quantile(q)
        assert sum(v <= bound for v in values) >= q * len(values)


def test_a_window_bounds_what_is_read() -> None:
    traffic = KVTraffic([(0, 100), (8, 10), (8, 10)])
    assert traffic.kv(4, 1) == 500 + 100 and traffic.kv(100, 1) == 10100 + 20 * 9


def test_logs_hold_no_text(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "satchel"), Model.load(path, context=64) as model:
        reply = model.generate("zebra " * 40, max_tokens=4, on_overflow="truncate-middle")
        reply.read()
    said = " ".join(r.getMessage() for r in caplog.records)
    assert "left out" in said and "loaded" in said and "zebra" not in said


def resident() -> int:
    """Resident bytes of this process, including shared file pages."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    return int(status.read_text().split("VmRSS:")[1].split()[0]) << 10


STOPPED_LOADS = """
import gc, pathlib, sys
from satchel import AsyncModel, Model
from satchel.errors import RequestError

def resident():
    return int(pathlib.Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) << 10

for turn in range(60):
    try:
        Model.load(pathlib.Path(sys.argv[1]), progress=lambda done, total: False)
    except RequestError as error:
        assert "stopped" in str(error)
    else:
        raise SystemExit("a load went on that was told to stop")
    if turn == 29:
        gc.collect()
        before = resident()
gc.collect()
print(resident() - before)
"""


def test_loads_that_are_stopped_keep_memory_flat(path: Path) -> None:
    resident()
    # A process of its own: what other tests' threads take and give back is not the loads'.
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_LOADS, path], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4 << 20


@pytest.mark.nightly
def test_loading_and_closing_50_times_keeps_memory_within_2_percent(bundled_model: Path) -> None:
    def once() -> None:
        with Model.load(bundled_model, context=256) as model:
            model.generate("hello", max_tokens=4, sampling=GREEDY).read()

    for _ in range(5):
        once()
    gc.collect()
    before = resident()
    for _ in range(50):
        once()
    gc.collect()
    assert resident() < before * 1.02
