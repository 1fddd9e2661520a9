"""The rows of a step as lists: what they say of its entries, and that steps which only decode write theirs
once.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import tiny

from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import LAST, BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.step_rows import StepRows
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY, Sampling

HOT = Sampling(temperature=1.3, seed=3)


@pytest.fixture
def engine() -> Iterator[Engine]:
    cache = Cache(context=128, slots=4, block=16, blocks=32)
    found = tiny.engine("llama", tiny.weights("llama"), cache, find_backend("cpu").open(), batch=64)
    yield found
    found.close()


def test_the_rows_of_prompts_drafts_and_decoded_tokens() -> None:
    entries = [
        BatchEntry(2, (5, 6, 7)),
        BatchEntry(0, (LAST,), HOT, decodes=True),
        BatchEntry(3, (1, 8, 9), GREEDY, samples=3, speculated=True),
        BatchEntry(1, (4, 4), HOT, adapter_scales=(0.5,)),
    ]
    rows = StepRows.of(entries)
    assert rows.slots == [2, 0, 3, 1] and rows.counts == [3, 1, 3, 2] and rows.total == 9
    assert rows.ids.tolist() == [5, 6, 7, LAST, 1, 8, 9, 4, 4]
    assert rows.token_slots.tolist() == [2, 2, 2, 0, 3, 3, 3, 1, 1]
    assert rows.sampled.tolist() == [3, 4, 5, 6, 8]
    assert rows.samplings == [HOT, GREEDY, GREEDY, GREEDY, HOT]
    assert not rows.single and rows.speculated and rows.adapted and not rows.host_sampled
    starts = [10, 20, 30, 0]
    assert rows.ends(starts) == [13, 21, 33, 2]
    assert list(rows.positions(starts)) == [10, 11, 12, 20, 30, 31, 32, 0, 1]
    assert [(e.slot, part.start, part.stop) for e, part in rows.parts()] == [
        (2, 0, 3),
        (0, 3, 4),
        (3, 4, 7),
        (1, 7, 9),
    ]


def test_rows_are_the_same_for_the_same_entries_alone() -> None:
    first, second = (BatchEntry(slot, (LAST,), GREEDY, decodes=True) for slot in (0, 1))
    rows = StepRows.of([first, second])
    assert rows.single and list(rows.positions([7, 9])) == [7, 9] and rows.ends([7, 9]) == [8, 10]
    assert rows.are((first, second))
    others = ((second, first), (first,), (first, replace(second)), (first, second, first))
    assert not any(rows.are(entries) for entries in others)
    assert StepRows.of(()).total == 0 and StepRows.of(()).are(())


def test_a_stretch_of_decoding_writes_its_rows_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four answers at once: each begins and ends in one step, and nothing else changes the rows."""
    asked = [GenerateRequest([3 + n, 5, n], 20, replace(HOT, seed=n)) for n in range(4)]
    service = Service(engine)
    alone = [list(service.submit(r)) for r in asked]
    written, fill_rows = [], engine._fill_rows

    def counted(*args: object, every: bool) -> None:
        written.append(args)
        fill_rows(*args, every=every)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_fill_rows", counted)
    handles = []
    service.call(lambda: handles.extend(service.submit(r) for r in asked))
    assert [list(h) for h in handles] == alone
    assert len(written) == 2, "the prompts, and the decoded tokens"
    service.close()


@pytest.mark.skipif("null" not in {f.name for f in libraries() if not f.reason}, reason="no null backend")
def test_a_sequence_that_comes_back_is_computed_from_its_tokens() -> None:
    """LAST stands for what a slot sampled. A sequence that lost its slot has sampled nothing in the next."""
    cache = Cache(context=128, slots=2, block=16, blocks=8)
    engine = tiny.engine("llama", tiny.weights("llama"), cache, find_backend("null").open(), batch=64)
    service = Service(engine)
    steps: list[tuple[BatchEntry, ...]] = []
    step = engine.sample
    engine.sample = lambda entries: (steps.append(tuple(entries)), step(entries))[1]  # type: ignore[method-assign]
    handles = []
    asked = [GenerateRequest([n + 1] * 20, 60) for n in range(2)]
    service.call(lambda: handles.extend(service.submit(r) for r in asked))
    assert all(len(list(h)) == 60 for h in handles)
    assert sum(h.seq.preempted for h in handles) > 0, "eight blocks hold 128 of 160 tokens"
    sampled_by: dict[int, object] = {}  # by slot, the tokens of the sequence that sampled there last
    for entries in steps:
        for e in entries:
            assert not e.decodes or sampled_by[e.slot] is e.past
            if e.rows:
                sampled_by[e.slot] = e.past
    service.close()
    engine.close()
