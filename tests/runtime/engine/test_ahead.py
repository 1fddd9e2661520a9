"""Launch-ahead: steps launched before the last one's tokens are read. Every request gets the same result,
whichever requests end, arrive or leave, and nothing of an obsolete step remains.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny
from waiting import until

from satchel.errors import DeviceError
from satchel.runtime.device.device import Buffer, Device, Exec
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import LAST, BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled, drawn, host_sampling_of
from satchel.runtime.engine.service import Service
from satchel.runtime.layers.arch import Cache
from satchel.runtime.plan import Segment
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculative import Speculation, Speculator
from satchel.runtime.tasks.bench import decode, prefill

APART = {f.name for f in libraries() if not f.reason}
REAL = pytest.param("cuda", marks=pytest.mark.gpu)


def open_engine(backend: str, slots: int = 3, blocks: int = 0, arch: str = "llama") -> Engine:
    if backend not in APART:
        pytest.skip(f"{backend} cannot run here")
    cache = Cache(context=80, slots=slots, block=16, blocks=blocks, batch=32)
    weights = tiny.weights(arch, "q8_0")
    return tiny.engine(
        arch, weights, cache, find_backend(backend).open(threads=1, deterministic=True), batch=32
    )


@pytest.fixture(scope="module", params=["remote", REAL])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = open_engine(request.param)
    assert made.overlaps
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A step that fails when nobody waits for it is reported in the log only."""
    yield
    records = caplog.get_records("call")
    assert all("fell off" in r.getMessage() for r in records if r.levelno >= logging.ERROR)


class Counted:
    """Counts steps that were launched during another one."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.under, self.ahead = engine, 0, 0
        self._launch, self._collect = engine.launch, engine.collect

    def __enter__(self) -> Counted:
        def launch(entries: Sequence[BatchEntry], *, alone: bool = False) -> object:
            self.ahead += self.under
            self.under += 1
            assert self.under <= 2
            return self._launch(entries, alone=alone)

        def collect(step: object) -> list[int]:
            self.under -= 1
            return self._collect(step)  # type: ignore[arg-type]

        self.engine.launch, self.engine.collect = launch, collect  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        del self.engine.launch, self.engine.collect
        assert self.under == 0, "a step was never collected"


def requests(count: int) -> list[GenerateRequest]:
    """Greedy and random ones, some with penalties that look at the last tokens; ends that some will meet."""
    rng, found = np.random.default_rng(count), []
    for i in range(count):
        ids = [int(t) for t in rng.integers(0, tiny.VOCAB, rng.integers(1, 40))]
        kinds = (GREEDY, Sampling(temperature=1.3, top_k=0, seed=i), Sampling(repeat_penalty=1.4, seed=i))
        # The second request ends soon in any case.
        few = range(0, tiny.VOCAB, 2 if i == 1 else 40)
        ends = frozenset(few) if i % 3 else frozenset[int]()
        found.append(GenerateRequest(ids, int(rng.integers(1, 30)), kinds[i % 3], ends))
    return found


def answers(engine: Engine, wanted: Sequence[GenerateRequest], overlaps: bool) -> list[tuple[list[int], str]]:
    """All at once, through a service of their own, from an empty cache."""
    engine.overlaps = overlaps
    service = Service(engine)
    try:
        handles = [service.submit(r) for r in wanted]
        return [(list(t), t.finish) for t in handles]
    finally:
        service.close()
        engine.pages.check()
        engine.overlaps = True


def test_answers_are_those_of_one_step_at_a_time(engine: Engine) -> None:
    wanted = requests(9)
    alone = [answers(engine, [r], overlaps=False)[0] for r in wanted]
    assert {finish for _, finish in alone} == {"stop", "length"}
    with Counted(engine) as counted:
        if engine.devices == ("remote",):  # other backends may round differently by batch
            assert answers(engine, wanted[:4], overlaps=True) == alone[:4]
        assert [answers(engine, [r], overlaps=True)[0] for r in wanted] == alone
    assert counted.ahead > 10


def test_rows_that_wait_for_the_host_are_launched_ahead_too(engine: Engine) -> None:
    """One request with log-probabilities and one with a minimum length, among others."""
    plain = requests(3)[0]
    reported = GenerateRequest([5, 6, 7], 12, GREEDY, logprobs=2)
    late = GenerateRequest(
        [9, 8], 14, Sampling(temperature=0, min_tokens=9), frozenset(range(0, tiny.VOCAB, 2))
    )
    alone = [answers(engine, [r], overlaps=False)[0] for r in (plain, reported, late)]
    with Counted(engine) as counted:
        assert answers(engine, [plain, reported, late], overlaps=True) == alone
    assert counted.ahead > 5


def test_what_comes_late_leaves_nothing_behind(engine: Engine) -> None:
    """An answer that ends is found whole by the next one, and no token beyond its end."""
    first = answers(engine, [GenerateRequest([3, 1, 4, 1, 5], 40)], overlaps=False)[0][0]
    end = next(t for t in first[8:] if t not in first[:8])
    cut = first[: first.index(end) + 1]
    with Counted(engine) as counted:
        service = Service(engine)
        try:
            assert (
                list(service.submit(GenerateRequest([3, 1, 4, 1, 5], 40, stop_ids=frozenset([end])))) == cut
            )
            again = service.submit(GenerateRequest([3, 1, 4, 1, 5, *cut, 2], 3))
            assert len(list(again)) == 3
            assert again.seq.cached == (5 + len(cut) - 1) // 16 * 16
        finally:
            service.close()
    assert counted.ahead and all(engine.length(slot) == 0 for slot in range(3))
    engine.pages.check()


def test_who_cancels_comes_or_runs_out_of_time_meanwhile_is_served(engine: Engine) -> None:
    alone = answers(engine, [GenerateRequest([7, 7, 7], 30)], overlaps=False)[0]
    with Counted(engine) as counted:
        service = Service(engine)
        try:
            kept, gone = (
                service.submit(GenerateRequest([7, 7, 7], 30)),
                service.submit(GenerateRequest([8, 9], 60)),
            )
            late = service.submit(GenerateRequest([1, 2], 60, deadline=service.clock() + 0.05))
            given = [kept.get() for _ in range(5)]
            gone.cancel()
            found: list[int] = []
            service.with_slot(lambda slot: found.extend(engine.step([BatchEntry(slot, [4, 5], GREEDY)])))
            assert [*given, *kept] == alone[0] and len(found) == 1
            assert [list(gone)[-1:], gone.finish][1] == "cancelled"
            assert (list(late), late.finish)[1] in ("deadline", "length")
        finally:
            service.close()
    assert counted.ahead
    engine.pages.check()


def test_few_blocks_make_somebody_give_way() -> None:
    """Where the next token has no block, it is not launched before another request is preempted."""
    engine = open_engine("remote", slots=3, blocks=6)
    wanted = [GenerateRequest([i, i + 1, i + 2], 40, Sampling(temperature=1, seed=i)) for i in range(3)]
    alone = [answers(engine, [r], overlaps=False)[0] for r in wanted]
    with Counted(engine) as counted:
        assert answers(engine, wanted, overlaps=True) == alone
    assert counted.ahead
    engine.close()


def test_a_step_that_fails_ends_everybody_and_the_next_ones_run(engine: Engine) -> None:
    alone = answers(engine, [GenerateRequest([2, 3], 6)], overlaps=False)[0]
    collect, failing = engine.collect, iter([False, False, False, True])
    with Counted(engine):
        inner = engine.collect

        def fail(step: object) -> list[int]:
            found = inner(step)  # type: ignore[arg-type]
            if next(failing, False):
                raise DeviceError("the card fell off")
            return found

        engine.collect = fail  # type: ignore[method-assign, assignment]
        service = Service(engine)
        try:
            handle = service.submit(GenerateRequest([2, 3], 60))
            with pytest.raises(DeviceError, match="fell off"):
                list(handle)
            assert (list(service.submit(GenerateRequest([2, 3], 6))), "length") == alone
        finally:
            service.close()
    assert engine.collect == collect
    engine.pages.check()


def test_a_launch_that_fails_leaves_nothing_under_way(engine: Engine) -> None:
    alone = answers(engine, [GenerateRequest([2, 3], 6)], overlaps=False)[0]
    with Counted(engine):
        inner, calls = engine.launch, iter(range(100))

        def fail(entries: Sequence[BatchEntry], *, alone: bool = False) -> object:
            if next(calls) == 4:
                raise DeviceError("the card fell off")
            return inner(entries, alone=alone)

        engine.launch = fail  # type: ignore[method-assign, assignment]
        service = Service(engine)
        try:
            with pytest.raises(DeviceError, match="fell off"):
                list(service.submit(GenerateRequest([2, 3], 60)))
            assert (list(service.submit(GenerateRequest([2, 3], 6))), "length") == alone
        finally:
            service.close()
    engine.pages.check()


def test_windows_and_mixtures_overlap_too() -> None:
    for arch in ("gemma3", "qwen3moe"):
        engine = open_engine("remote", arch=arch)
        wanted = requests(3)
        alone = [answers(engine, [r], overlaps=False)[0] for r in wanted]
        assert answers(engine, wanted, overlaps=True) == alone
        engine.close()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every plan that a device compiles, which is when a GPU captures it."""
    found, inner = list[object](), Device.compile

    def compile(device: Device, segment: Segment, buffers: Sequence[Buffer]) -> Exec:
        found.append(segment)
        return inner(device, segment, buffers)

    monkeypatch.setattr(Device, "compile", compile)
    return found


def entries_of(tokens: Sequence[int | Sampled], logprobs: int = -1) -> list[BatchEntry]:
    host = host_sampling_of(GenerateRequest((1, 2), 1, logprobs=logprobs))
    return [BatchEntry(i, [int(t)], GREEDY, host_sampling=host) for i, t in enumerate(drawn(tokens))]


@pytest.mark.parametrize("logprobs", [-1, 2])
@pytest.mark.parametrize("backend", ["remote", "emulated", REAL])
def test_no_step_but_a_buckets_first_compiles(backend: str, logprobs: int, compiled: list[object]) -> None:
    engine = open_engine(backend)
    for count in (1, 2):  # sequences, each count a bucket
        before = len(compiled)
        first = engine.launch(entries_of([5] * count, logprobs))
        engine.launch_sampling(first)
        after = len(compiled)
        assert after - before == 2 * len(first.program.plan.segments)
        tokens = engine.collect(first)
        for _ in range(3):
            under = engine.launch(entries_of(tokens, logprobs))
            engine.launch_sampling(under)
            behind = engine.launch(entries_of([LAST] * count, logprobs))
            engine.collect(under)
            engine.launch_sampling(behind)
            tokens = engine.collect(behind)
        assert len(compiled) == after
    engine.close()


@pytest.mark.parametrize(("backend", "overlaps"), [("remote", True), ("cpu", False)])
def test_steps_that_none_follows_have_one_program(
    backend: str, overlaps: bool, compiled: list[object]
) -> None:
    engine = open_engine(backend)
    assert engine.overlaps is overlaps
    counts = []
    for run in (
        lambda: engine.step([BatchEntry(0, [5], GREEDY)]),
        lambda: engine.collect(engine.launch([BatchEntry(0, [5, 6, 7], GREEDY)])),  # a prompt's
        lambda: engine.collect(engine.launch([BatchEntry(0, [5], GREEDY)])),  # it may be followed
    ):
        before = len(compiled)
        run()
        counts.append(len(compiled) - before)
    engine.close()
    assert counts == [1, 1, 1 if overlaps else 0]


def test_drafts_take_steps_that_none_follows(compiled: list[object]) -> None:
    engine = open_engine("remote")
    speculator = Speculator(Speculation(lookup=True))
    with Counted(engine) as counted:
        service = Service(engine, speculator=speculator)
        try:
            given = list(service.submit(GenerateRequest([1, 2, 3, 1, 2, 3, 1, 2], 12)))
        finally:
            service.close()
    assert (len(given), counted.ahead) == (12, 0)
    assert len(compiled) == len({id(segment) for segment in compiled}), "no plan has a second program"
    engine.close()


@pytest.mark.parametrize("backend", ["remote", "emulated", REAL])
def test_the_loop_that_is_timed_gives_the_same_tokens(backend: str) -> None:
    engine = open_engine(backend, slots=2)
    runs = []
    for overlaps in (False, True):
        engine.overlaps = overlaps
        for slot in range(2):
            engine.rewind(slot, 0)
        runs.append(decode(engine, prefill(engine, [[5, 9, 2], [7] * 4]), 5))
        assert [engine.length(slot) for slot in range(2)] == [3 + 5, 4 + 5]
    engine.close()
    assert runs[0] == runs[1]


@pytest.mark.parametrize("logprobs", [-1, 2])
def test_a_step_is_read_while_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logprobs: int
) -> None:
    """The device starts each run when the test allows it: one per step, two with host-side sampling."""
    monkeypatch.setenv("SATCHEL_REMOTE_HOLD", str(tmp_path / "hold"))
    engine, held, go = open_engine("remote"), tmp_path / "hold.0", tmp_path / "hold.0.go"
    host = host_sampling_of(GenerateRequest((1, 2), 1, logprobs=logprobs))
    runs = 1 if host is None else 2

    def leave() -> None:
        for _ in range(runs * held.exists()):
            go.touch()
            until(lambda: not go.exists(), "a run has begun")

    def two_steps() -> list[int | Sampled]:
        engine.rewind(0, 0)
        first = engine.launch([BatchEntry(0, [5, 9], GREEDY, host_sampling=host)])
        engine.launch_sampling(first)
        second = engine.launch([BatchEntry(0, [LAST], GREEDY, host_sampling=host)])
        leave()
        tokens = engine.collect(first)  # the second step is held meanwhile
        engine.launch_sampling(second)
        leave()
        return tokens + engine.collect(second)

    usual = two_steps()  # compiles the programs, which waits for the device
    held.touch()
    assert two_steps() == usual
    held.unlink()
    engine.close()


def test_a_third_step_is_refused(engine: Engine) -> None:
    engine.rewind(0, 0)
    steps = [engine.launch([BatchEntry(0, [5], GREEDY)]), engine.launch([BatchEntry(0, [LAST], GREEDY)])]
    with pytest.raises(ValueError, match="2 steps are under way"):
        engine.launch([BatchEntry(0, [LAST], GREEDY)])
    tokens = [engine.collect(step)[0] for step in steps]
    engine.rewind(0, 0)
    first = engine.step([BatchEntry(0, [5], GREEDY)])
    assert tokens == [*first, *engine.step([BatchEntry(0, first, GREEDY)])]
