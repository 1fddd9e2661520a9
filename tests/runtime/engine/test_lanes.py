"""Lanes: steps of a pipeline that are under way at the same time. Every request gets the tokens that it gets
on one device, whatever the lanes, and the devices of a pipeline do work at the same time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs
from tiny_file import write_model
from waiting import until

from satchel.cli.main import main
from satchel.errors import DeviceError
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import drawn
from satchel.runtime.engine.lanes import StageThreads, Turn
from satchel.runtime.engine.request_handle import RequestHandle
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculative import Speculation, Speculator

pytestmark = needs("remote")
ONE, TWO, THREE = ("remote",), ("remote", "remote:1"), ("remote", "remote:1", "remote:2")


class Pipeline:
    """What the devices of a pipeline do, by the lines of SATCHEL_REMOTE_LOG, and devices that are held."""

    def __init__(self, folder: Path) -> None:
        self.log, self.hold, self._start = folder / "log", folder / "hold", 0

    @property
    def lines(self) -> list[str]:
        text = self.log.read_text() if self.log.exists() else ""
        return [" ".join(line.split()[:2]) for line in text.splitlines()]

    def count(self, line: str) -> int:
        """How often a device began or ended a run since held()."""
        return self.lines[self._start :].count(line)

    def between(self, before: int, after: int) -> int:
        """Steps that one device has computed since held() and the next one has not."""
        return self.count(f"end remote:{before}") - self.count(f"end remote:{after}")

    @contextmanager
    def held(self, index: int) -> Iterator[None]:
        """No run of the device ends meanwhile, but for one that is past its beginning."""
        path = self.hold.with_name(f"{self.hold.name}.{index}")
        path.touch()
        self._start = len(self.lines)
        try:
            yield
        finally:
            path.unlink()


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    made = Pipeline(tmp_path)
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "3")
    monkeypatch.setenv("SATCHEL_REMOTE_LATE_US", "0")
    monkeypatch.setenv("SATCHEL_REMOTE_LOG", str(made.log))
    monkeypatch.setenv("SATCHEL_REMOTE_HOLD", str(made.hold))
    return made


def wanted_on(names: Sequence[str], layers: int, head: int = -1):  # type: ignore[no-untyped-def]
    """Layers in equal parts, the embeddings on the first device, the head on the last one or on `head`."""

    def wanted(node: Node) -> str:
        if node.name.startswith("blk."):
            return names[int(node.name.split(".")[1]) * len(names) // layers]
        tokens = node.op in ("tokens_put", "tokens_get")  # the token table is where tokens are sampled
        return names[0] if node.name == "embed" and not tokens else names[head]

    return wanted


@contextmanager
def opened(
    names: Sequence[str], lanes: int = 0, arch: str = "llama", blocks: int = 0, head: int = -1
) -> Iterator[Engine]:
    cache = Cache(context=96, slots=6, block=16, blocks=blocks, batch=32)
    weights = tiny.weights(arch, "q8_0")
    devices = [find_backend("remote").open(i, threads=1) for i in range(len(names))]
    layers = 1 + max(int(n.split(".")[1]) for n in weights.tensors if n.startswith("blk."))
    made = tiny.engine(
        arch, weights, cache, *devices, wanted=wanted_on(names, layers, head), batch=32, lanes=lanes
    )
    with closing(made):
        assert made.stages == (tuple(names) if len(names) > 1 else ())
        yield made


def requests(count: int) -> list[GenerateRequest]:
    """Greedy and seeded ones, some whose prompts take several steps, some with penalties."""
    rng, found = np.random.default_rng(count), []
    for i in range(count):
        ids = [int(t) for t in rng.integers(0, tiny.VOCAB, rng.integers(1, 70 if i % 3 == 2 else 20))]
        kinds = (GREEDY, Sampling(temperature=1.3, top_k=0, seed=i), Sampling(repeat_penalty=1.4, seed=i))
        found.append(GenerateRequest(ids, int(rng.integers(4, 20)), kinds[i % 3]))
    return found


def answers(engine: Engine, wanted: Sequence[GenerateRequest]) -> list[tuple[list[int], str]]:
    """All at once, through a service of their own."""
    service = Service(engine)
    try:
        return [(list(t), t.finish) for t in [service.submit(r) for r in wanted]]
    finally:
        service.close()
        engine.pages.check()
        assert engine.idle()


@cache
def answers_alone() -> list[tuple[list[int], str]]:
    """The answers of one device, each request alone."""
    with opened(ONE) as engine:
        return [answers(engine, [r])[0] for r in requests(7)]


@pytest.fixture
def golden(pipeline: Pipeline) -> list[tuple[list[int], str]]:
    return answers_alone()


@pytest.mark.parametrize(("names", "lanes"), [(TWO, 0), (TWO, 1), (TWO, 2), (TWO, 4), (THREE, 3)])
def test_answers_are_those_of_one_device(
    golden: list[tuple[list[int], str]], names: Sequence[str], lanes: int
) -> None:
    with opened(names, lanes) as engine:
        assert engine.lanes == (lanes or len(names))
        assert answers(engine, requests(7)) == golden


def test_a_head_on_the_first_device_is_the_last_stage_of_a_step(golden: list[tuple[list[int], str]]) -> None:
    with opened(TWO, head=0) as engine:
        assert answers(engine, requests(7)) == golden


@pytest.mark.parametrize("arch", ["gemma3", "qwen3next"])
def test_windows_and_recurrent_states_are_those_of_one_device(pipeline: Pipeline, arch: str) -> None:
    with opened(ONE, arch=arch) as engine:
        alone = [answers(engine, [r])[0] for r in requests(7)]
    with opened(TWO, arch=arch) as engine:
        assert answers(engine, requests(7)) == alone


def test_a_stage_computes_one_lane_while_the_next_stage_computes_another(pipeline: Pipeline) -> None:
    """The second device is held in the first lane's step: only then is the second lane's step launched, and
    the first device computes it.
    """
    entries = [[BatchEntry(0, (3, 1, 4), GREEDY)], [BatchEntry(1, (1, 5, 9), GREEDY)]]
    with opened(ONE) as engine:
        alone = [drawn(engine.step(e)) for e in entries]
    with opened(TWO) as engine:
        with pipeline.held(1):
            first = engine.launch(entries[0])
            until(lambda: pipeline.count("begin remote:1"), "the first lane is in the second stage")
            second = engine.launch(entries[1])
            until(lambda: pipeline.count("end remote:0") == 2, "the first stage computes the second lane")
            assert pipeline.count("end remote:1") == 0
        assert [drawn(engine.collect(step)) for step in (first, second)] == alone


def test_requests_of_a_service_are_divided_among_lanes(pipeline: Pipeline) -> None:
    """While the second device is held, two steps pass the first one. Each step has half of the sequences."""
    wanted = [GenerateRequest([i + 1] * 20, 30, GREEDY) for i in range(8)]  # two fill a step
    with opened(ONE) as engine:
        alone = answers(engine, wanted[:4])
    with opened(TWO, lanes=2) as engine:
        sizes, launch = list[int](), engine.launch

        def noted(entries: Sequence[BatchEntry], *, alone: bool = False) -> object:
            sizes.append(len(entries))
            return launch(entries, alone=alone)

        engine.launch = noted  # type: ignore[method-assign, assignment]
        service = Service(engine)

        def asked(first: int) -> list[RequestHandle]:
            """Submitted in the engine's thread, so that all wait when the first step is planned."""
            return service.ask(lambda: [service.submit(r) for r in wanted[first : first + 4]])

        for handle in asked(4):  # compiles the plans of the same steps
            list(handle)
        with pipeline.held(1):
            handles = asked(0)
            until(lambda: pipeline.between(0, 1) == 2, "two steps have passed the first stage alone")
        assert [(list(h), h.finish) for h in handles] == alone
        service.close()
        assert 2 in sizes[-20:] and max(sizes[-20:]) <= 2, sizes


def test_chunks_of_a_prompt_follow_each_other_through_the_stages(pipeline: Pipeline) -> None:
    """A prompt of three steps: the second chunk is in the first stage while the first one is held in the
    second stage.
    """
    wanted = [GenerateRequest([int(i % 40) + 1 for i in range(80)], 6, GREEDY)]
    with opened(ONE) as engine:
        alone = answers(engine, wanted)
    with opened(TWO) as engine, closing(Service(engine)) as service:
        with pipeline.held(1):
            handle = service.submit(wanted[0])
            until(lambda: pipeline.count("end remote:0") == 2, "the first stage computes the second chunk")
            assert pipeline.count("end remote:1") == 0
        assert [(list(handle), handle.finish)] == alone


def test_few_blocks_make_sequences_give_way_and_change_no_answer(
    golden: list[tuple[list[int], str]],
) -> None:
    with opened(TWO, lanes=2, blocks=8) as engine:
        service = Service(engine)
        handles = [service.submit(r) for r in requests(7)]
        assert [(list(h), h.finish) for h in handles] == golden
        service.close()
        engine.pages.check()


def test_cancels_deadlines_and_late_requests_leave_the_others_as_they_are(
    golden: list[tuple[list[int], str]],
) -> None:
    now = [0.0]
    with opened(TWO, lanes=2) as engine, closing(Service(engine, clock=lambda: now[0])) as service:
        asked = requests(7)
        late = GenerateRequest([7, 7], 90, GREEDY, deadline=1.0)
        handles = [service.submit(r) for r in asked[:4]]
        gone, expired = service.submit(GenerateRequest([5, 6], 90, GREEDY)), service.submit(late)
        until(lambda: gone.seq.generated > 3 and expired.seq.generated > 3, "both answer")
        gone.cancel()
        now[0] = 2.0
        handles += [service.submit(r) for r in asked[4:]]
        assert [(list(h), h.finish) for h in handles] == golden
        assert list(gone)[:4] and gone.finish == "cancelled"
        assert list(expired)[:4] and expired.finish == "deadline"


def test_rows_that_wait_for_the_host_have_lanes_too(pipeline: Pipeline) -> None:
    def three(ids: Sequence[int], logits: np.ndarray) -> None:  # type: ignore[type-arg]
        logits[::3] = -np.inf

    ends = frozenset(range(0, tiny.VOCAB, 2))
    wanted = [
        GenerateRequest([5, 6, 7], 12, GREEDY, logprobs=2),
        GenerateRequest([9, 8], 14, Sampling(temperature=0, min_tokens=9), ends),
        GenerateRequest([4, 4, 4], 12, GREEDY),
        GenerateRequest([1, 2], 12, Sampling(seed=3), logits_processors=(three,)),
    ]

    def told(handle: RequestHandle) -> list[object]:
        return [*handle]

    found = []
    for names in (ONE, TWO):
        with opened(names) as engine, closing(Service(engine)) as service:
            found.append([told(h) for h in [service.submit(r) for r in wanted]])
    assert found[0] == found[1]


def test_a_step_whose_masks_never_change_passes_each_device_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sampling, launched later, would wait for the layers of the next step."""
    chains, begin = list[list[str]](), StageThreads.begin

    def noted(self: StageThreads, turns: Sequence[Turn]) -> Future[None]:
        chains.append([device for device, _ in turns])
        return begin(self, turns)

    monkeypatch.setattr(StageThreads, "begin", noted)
    asked = GenerateRequest([5, 6, 7], 6, GREEDY, banned=frozenset({1, 2}))
    with opened(TWO) as engine, closing(Service(engine)) as service:
        assert not {1, 2} & set(service.submit(asked))
    assert len(chains) == 6 and all(chain == [*TWO] for chain in chains)


def test_lookup_drafts_change_no_answer(pipeline: Pipeline) -> None:
    wanted = [GenerateRequest([1, 2, 3, 4] * 5, 30, GREEDY), GenerateRequest([2, 3] * 6, 30, GREEDY)]
    with opened(ONE) as engine:
        alone = answers(engine, wanted)
    with opened(TWO, lanes=2) as engine:
        service = Service(engine, speculator=Speculator(Speculation(draft_max=4)))
        assert [(list(h), h.finish) for h in [service.submit(r) for r in wanted]] == alone
        service.close()


def test_a_lost_stage_is_the_loss_of_all_lanes_and_another_engine_goes_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second device is lost with two steps under way. The service that takes over has all the requests,
    with the tokens that they had.
    """
    wanted = [GenerateRequest([i + 1, 2, 3], 40, GREEDY) for i in range(4)]
    with opened(ONE) as engine:
        alone = answers(engine, wanted)
        monkeypatch.setenv("SATCHEL_REMOTE_LOST", "1:25")
        lost = threading.Event()

        def on_lost(error: DeviceLost) -> DeviceError:
            assert error.device == "remote:1"
            lost.set()
            return DeviceError("placed anew")

        with opened(TWO, lanes=2) as broken:
            first = Service(broken, on_lost=on_lost)
            handles = [first.submit(r) for r in wanted]
            first.join()
            assert lost.is_set() and all(h.seq.underway == 1 for h in handles)
        with closing(Service(engine, after=first)):
            assert [(list(h), h.finish) for h in handles] == alone


def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(pipeline: Pipeline) -> None:
    wanted = [GenerateRequest([i + 1, 2, 3], 10, GREEDY) for i in range(4)]
    with opened(TWO, lanes=2) as engine, closing(Service(engine)) as service:
        alone = [(list(h), h.finish) for h in [service.submit(r) for r in wanted]]
        program = engine.program(2, 2)
        turn, program._turn = program._turn, None  # type: ignore[attr-defined]
        handles = [service.submit(r) for r in wanted]
        for handle in handles:
            with pytest.raises(DeviceError, match="the engine failed"):
                list(handle)
        program._turn = turn  # type: ignore[attr-defined]
        assert [(list(h), h.finish) for h in [service.submit(r) for r in wanted]] == alone


def test_a_plan_tells_the_stages(
    pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_model(tmp_path / "tiny.gguf"))
    assert main(["plan", path, "-dev", "remote,remote:1", "-ts", "1,1", "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["stages"]) == ["remote", "remote:1"]
    assert main(["plan", path, "-dev", "remote,remote:1", "-ts", "1,1"]) == 0
    assert "lanes: up to 2 steps are under way" in capsys.readouterr().out
    assert main(["plan", path, "-dev", "remote", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"] == []
