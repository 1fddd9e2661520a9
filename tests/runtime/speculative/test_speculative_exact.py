"""Speculative decoding is exact: an answer is the same token for token with right drafts, wrong drafts and
none, for any model, sampling and batch.
"""

from __future__ import annotations

import threading
from collections import abc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs

from satchel.runtime.api.model import Model
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.scheduler import Batch, Scheduler, SchedulerLimits, Sequence
from satchel.runtime.scheduler.scheduler import load
from satchel.runtime.speculative import Speculation, Speculator
from satchel.runtime.speculative.room import max_draft_tokens, may_draft, rows_left, take_blocks

pytestmark = needs("cpu")
PENALTIES = Sampling(
    repeat_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3, repeat_last_n=20, seed=5
)


class Forced(Speculator):
    """Drafts of any length: the known answer with some tokens replaced."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]], wrong: float, seed: int = 0) -> None:
        super().__init__(Speculation(lookup=True))
        self.answers, self.wrong, self.rng = answers, wrong, np.random.default_rng(seed)

    def extend(self, batch: Batch, scheduler: Scheduler) -> Batch:
        room = rows_left(batch, scheduler) // len(batch)
        return {
            seq: seq.entry(entry.num_tokens, self._drafted(seq, scheduler, room)) if may_draft(seq) else entry
            for seq, entry in batch.items()
        }

    def _drafted(self, seq: Sequence, scheduler: Scheduler, room: int) -> list[int]:
        pages = scheduler.engine.pages
        known = self.answers[tuple(seq.request.ids)][seq.generated :]
        count = min(int(self.rng.integers(0, 9)), room, max_draft_tokens(seq, pages, 16))
        known = (known + [0] * 20)[: take_blocks(seq, pages, max(0, count))]
        noise = self.rng.random(len(known)) < self.wrong
        other = self.rng.integers(0, tiny.VOCAB, len(known))
        drafts: list[int] = np.where(noise, other, known).astype(int).tolist()
        return drafts


def open_engine(
    arch: str = "llama", format: str = "q8_0", slots: int = 3, blocks: int = 0, kind: str = "f16"
) -> Engine:
    cache = Cache(context=96, slots=slots, block=16, blocks=blocks, keys=kind, values=kind)
    weights = tiny.weights(arch, format, mixed=True)
    return tiny.engine(arch, weights, cache, find_backend("cpu").open(threads=2), batch=64)


def requests(count: int, seed: int = 0) -> list[GenerateRequest]:
    rng = np.random.default_rng(seed)
    kinds = (GREEDY, Sampling(temperature=0.9, seed=1), PENALTIES, replace(PENALTIES, temperature=0.0))
    found = []
    for i in range(count):
        ids = [int(t) for t in rng.integers(0, tiny.VOCAB, rng.integers(1, 50))]
        found.append(GenerateRequest(ids, int(rng.integers(1, 60)), kinds[i % 4], frozenset({3, 4, 5, 6})))
    return found


def answers(
    engine: Engine,
    wanted: abc.Sequence[GenerateRequest],
    speculator: Speculator | None,
    together: bool = True,
) -> tuple[list[list[int]], list[Sequence]]:
    """Tokens of each request, and its sequence; closes nothing."""
    service = Service(engine, SchedulerLimits(), speculator=speculator)
    try:
        if together:
            handles = [service.submit(r) for r in wanted]
            found = [list(t) for t in handles]
        else:
            handles, found = [], []
            for r in wanted:
                handles.append(service.submit(r))
                found.append(list(handles[-1]))
        engine.pages.check()
    finally:
        service.close()
    return found, [t.seq for t in handles]


@pytest.mark.parametrize(
    ("arch", "format", "slots", "blocks", "kind"),
    [
        ("llama", "q8_0", 1, 0, "f16"),
        ("llama", "q4_k", 3, 7, "f16"),
        ("qwen3", "bf16", 3, 0, "q8_0"),
        ("qwen3moe", "q8_0", 2, 0, "f16"),
        ("qwen2", "f32", 3, 0, "f32"),
        ("mamba2", "q8_0", 3, 0, "f16"),
        ("qwen35", "q8_0", 3, 8, "f16"),
        ("granitehybrid", "f32", 2, 0, "f16"),
    ],
)
def test_drafts_change_no_token(arch: str, format: str, slots: int, blocks: int, kind: str) -> None:
    """With few blocks, sequences are preempted while drafts are in flight."""
    wanted, engine = requests(12), open_engine(arch, format, slots, blocks, kind)
    alone, plain = answers(engine, wanted, None, together=False)
    known = {tuple(r.ids): a for r, a in zip(wanted, alone, strict=True)}
    for wrong in (0.0, 0.3, 1.0):
        found, seqs = answers(engine, wanted, Forced(known, wrong))
        assert found == alone
        assert [s.finish for s in seqs] == [s.finish for s in plain]
        drafted, accepted = sum(s.used.drafted for s in seqs), sum(s.used.accepted for s in seqs)
        assert drafted > 20, "nothing was drafted: the test shows nothing"
        assert accepted > 0.5 * drafted if wrong == 0 else accepted < 0.8 * drafted
    engine.pages.tree.clear()
    assert engine.pages.pool.free == engine.pages.pool.size
    engine.close()


def test_what_is_kept_of_an_answer_with_rejected_drafts_is_right() -> None:
    """The next turn finds the first one's blocks, and gives the same answer as without a cache."""
    engine, fresh = open_engine(), open_engine()
    first = GenerateRequest(list(range(20)), 45, Sampling(seed=2))
    plain, _ = answers(fresh, [first], None)
    found, _ = answers(engine, [first], Forced({tuple(first.ids): plain[0]}, 0.5))
    assert found == plain
    second = GenerateRequest([*first.ids, *plain[0], 9, 8], 20, PENALTIES)
    fresh.pages.tree.clear()
    wanted, _ = answers(fresh, [second], None)
    again, seqs = answers(engine, [second], None)
    assert again == wanted and seqs[0].cached == 64
    engine.close()
    fresh.close()


@pytest.mark.parametrize("ends", [{3}, set()])
def test_an_answer_ends_where_it_would_in_the_middle_of_right_drafts(ends: set[int]) -> None:
    engine = open_engine(slots=1)
    plain, _ = answers(engine, [GenerateRequest([1, 2, 3], 30, GREEDY)], None)
    end = frozenset({plain[0][9]} if ends else ())
    known = {(1, 2, 3): plain[0]}
    for most in (1, 2, 7, 30):
        (found,), (seq,) = answers(
            engine, [GenerateRequest([1, 2, 3], most, GREEDY, end)], Forced(known, 0.0)
        )
        stop = next((i + 1 for i, t in enumerate(plain[0]) if t in end), 99)
        assert found == plain[0][: min(most, stop)]
        assert seq.finish == ("stop" if stop <= most else "length")
    ids = list(range(90))
    full, _ = answers(engine, [GenerateRequest(ids, 50)], None)
    (found,), (seq,) = answers(engine, [GenerateRequest(ids, 50)], Forced({tuple(ids): full[0]}, 0.0))
    assert found == full[0] and len(found) == 7 and seq.finish == "length", "the context holds 96 tokens"
    engine.close()


def test_a_feed_gives_a_token_for_each_of_its_last_rows() -> None:
    engine = open_engine()
    ids = [5, 9, 200, 31, 7]
    alone = []
    for n in range(1, 6):
        alone += engine.step([BatchEntry(0, ids[:n], PENALTIES)])
        engine.rewind(0, 0)
    for samples in range(1, 6):
        both = engine.step(
            [BatchEntry(1, [1, 2], GREEDY), BatchEntry(0, ids, PENALTIES, samples), BatchEntry(2, [1, 2])],
        )
        assert both[1:] == alone[-samples:]
        for slot in range(3):
            engine.rewind(slot, 0)
    engine.close()


def test_sampling_with_drafts_follows_the_same_distribution() -> None:
    """Chi-square over pairs of tokens from seeds of their own, and of the first against the probabilities;
    the limit is the 99.9 % point (Wilson and Hilferty's approximation). The seeds are fixed.
    """
    engine, count = open_engine(slots=4), 1500
    chosen = Sampling(temperature=1.0, top_k=5, top_p=1.0, min_p=0.0, seed=0)

    def pairs(start: int, speculator: Speculator | None) -> list[tuple[int, ...]]:
        wanted = [GenerateRequest([11, 12], 3, chosen.with_seed(start + i)) for i in range(count)]
        service = Service(engine, SchedulerLimits(queue=count), speculator=speculator)
        found = [tuple(t) for t in [service.submit(r) for r in wanted]]
        service.close()
        return [(a, b) for _, a, b in found]

    plain = pairs(0, None)
    # The likeliest answer is drafted always: often right, often wrong.
    draft = Forced({(11, 12): [0, *max(set(plain), key=plain.count), 1]}, 0.0)
    drafted = pairs(10_000, draft)
    kinds = [k for k in set(plain) | set(drafted) if plain.count(k) + drafted.count(k) >= 10]
    table = np.array([[side.count(k) for k in kinds] for side in (plain, drafted)], float)
    table = np.c_[table, count - table.sum(1)]
    table = table[:, table.sum(0) > 0]
    wanted = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    chi2, free = float(((table - wanted) ** 2 / wanted).sum()), table.shape[1] - 1
    limit = free * (1 - 2 / (9 * free) + 3.09 * (2 / (9 * free)) ** 0.5) ** 3
    print(f"chi-square {chi2:.1f} over {free} degrees of freedom, limit {limit:.1f}")
    assert free > 10 and chi2 < limit
    engine.close()


def test_lookup_finds_repetition_and_many_callers_get_what_each_gets_alone() -> None:
    """Prompts that repeat themselves, so that tokens are drafted; mostly wrong ones: the model is random."""
    rng, engine = np.random.default_rng(1), open_engine(slots=4)
    wanted = []
    for i in range(16):
        part = [int(t) for t in rng.integers(0, 6, 12)]
        wanted.append(
            GenerateRequest(part * 3, 50, (GREEDY, Sampling(temperature=0.7, seed=i), PENALTIES)[i % 3])
        )
    alone, _ = answers(engine, wanted, None, together=False)
    service = Service(engine, speculator=Speculator(Speculation(lookup=True, past=500)))
    found: list[list[int]] = [[] for _ in wanted]
    seqs: list[Sequence] = []

    def submit(first: int) -> None:
        for i in range(first, len(wanted), 4):
            handle = service.submit(wanted[i])
            found[i] = list(handle)
            seqs.append(handle.seq)

    threads = [threading.Thread(target=submit, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    service.close()
    assert found == alone
    assert sum(s.used.drafted for s in seqs) > 0
    engine.pages.check()
    engine.close()


def test_H22_a_request_that_wants_no_drafts_has_none_beside_others_that_do() -> None:
    engine = open_engine(slots=2)
    ids = [1, 2, 3, 4] * 5
    both = [GenerateRequest(ids, 60, GREEDY), GenerateRequest([*ids, 1], 60, PENALTIES, draft=0)]
    alone, _ = answers(engine, both, None, together=False)
    known = {tuple(r.ids): a for r, a in zip(both, alone, strict=True)}
    found, seqs = answers(engine, both, Forced(known, 0.2))
    assert found == alone and seqs[0].used.drafted > 0 == seqs[1].used.drafted
    engine.close()


def test_drafts_are_the_first_to_go() -> None:
    """No drafts while a request waits for memory, and none beyond batch, context, pool and answer."""
    engine = open_engine(slots=2, blocks=4)
    scheduler = Scheduler(engine, 2)
    seq = Sequence(GenerateRequest([1] * 60, 30, draft=9), 0.0)
    scheduler.add(seq)
    scheduler.done(scheduler.plan(0.0), [1], 0.0, 0.01)
    batch = scheduler.plan(0.0)
    assert list(batch) == [seq] and rows_left(batch, scheduler) == 63
    assert max_draft_tokens(seq, engine.pages, 16) == 3, "the pool has 64 positions"
    assert take_blocks(seq, engine.pages, 3) == 3
    with_drafts = load({seq: seq.entry(1, (1, 2))})
    assert (with_drafts.decoded, with_drafts.prompt, with_drafts.drafted) == (1, 0, 2)
    scheduler.add(Sequence(GenerateRequest([1], 1), 0.0))
    assert rows_left(batch, scheduler) == 0
    slot = scheduler.acquire_slot()
    assert rows_left(batch, scheduler) == 63, "a slot is what it waits for"
    assert slot is not None
    scheduler.release_slot(slot)
    assert max_draft_tokens(Sequence(GenerateRequest([1], 5, draft=9), 0.0, ids=[]), engine.pages, 16) == 4
    assert max_draft_tokens(Sequence(GenerateRequest([1], 50, draft=9), 0.0, ids=[]), engine.pages, 16) == 9
    engine.close()


def test_the_bundled_model_says_the_same_and_faster_in_fewer_steps(bundled_model: Path) -> None:
    with (
        Model.load(bundled_model, context=512) as plain,
        Model.load(bundled_model, context=512, speculation=Speculation(lookup=True)) as model,
    ):
        counting = "one two three four five six seven eight nine ten, "
        ids = plain.tokenizer.encode(2 * counting + "one two three four")  # greedy, it goes on so for long
        for chosen in (GREEDY, Sampling(seed=3), replace(PENALTIES, repeat_penalty=1.05)):
            wanted = plain.generate(ids, max_tokens=80, sampling=chosen, ignore_eos=True)
            reply = model.generate(ids, max_tokens=80, sampling=chosen, ignore_eos=True)
            wanted.read()
            reply.read()
            assert reply.ids == wanted.ids
            assert wanted.stats.drafted == 0 and reply.stats.accepted <= reply.stats.drafted
        assert model.engine.timing.steps < plain.engine.timing.steps
