"""Perplexity and divergence: llama-perplexity's windows and scored tokens, numpy's sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs

from satchel.errors import RequestError
from satchel.formats.logits import open_logits
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.layers.arch import Cache
from satchel.runtime.tasks import perplexity
from satchel.runtime.tasks.perplexity import Tally, diverge, measure, windows, write_base

VOCAB = 11


@dataclass
class Table:
    """A fake engine: logits are a function of the last token and its position; input tokens are recorded."""

    batch: int
    cache: Cache = field(default_factory=lambda: Cache(64))
    seed: int = 0
    fed: list[list[int]] = field(default_factory=list)
    headless: int = 0
    wrong: float = 0.0

    def rewind(self, slot: int, length: int) -> None:
        assert (slot, length) == (0, 0)
        self.fed.append([])

    def step(self, entries: Sequence[BatchEntry]) -> list[int]:
        (one,) = entries
        assert one.sampling is None and 0 < len(one.ids) <= self.batch
        self.fed[-1] += one.ids
        self.headless += len(one.ids)
        return []

    def logits(self, entries: Sequence[BatchEntry]) -> np.ndarray:
        (one,) = entries
        assert 0 < len(one.ids) <= self.batch
        first = len(self.fed[-1])
        self.fed[-1] += one.ids
        return np.stack([self.row(i, first + n) for n, i in enumerate(one.ids)])

    def row(self, token: int, place: int) -> np.ndarray:
        rng = np.random.default_rng((self.seed, token, place))
        return (rng.standard_normal(VOCAB) * 3 + self.wrong * rng.standard_normal(VOCAB)).astype(np.float32)

    def log_probs(self, window: Sequence[int]) -> np.ndarray:
        """(places, V) in float64."""
        rows = np.stack([self.row(int(t), n) for n, t in enumerate(window)]).astype(np.float64)
        return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def text(count: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(count).integers(1, VOCAB, count)]


def expected(engine: Table, cut: np.ndarray, bos: int | None) -> list[float]:
    nll = []
    for window in cut:
        ids = [bos if bos is not None else window[0], *window[1:]]
        probs = engine.log_probs(ids)
        nll += [-probs[n - 1, ids[n]] for n in range(len(ids) // 2 + 1, len(ids))]
    return nll


@pytest.mark.parametrize("context", [4, 5, 16, 33])
@pytest.mark.parametrize("batch", [1, 3, 64])
@pytest.mark.parametrize("bos", [None, 0])
def test_the_second_half_of_each_window_is_scored(context: int, batch: int, bos: int | None) -> None:
    cut, engine = windows(text(3 * context + 1), context), Table(batch)
    found = measure(engine, cut, VOCAB, bos)  # type: ignore[arg-type]
    nll = expected(engine, cut, bos)
    mean = sum(nll) / len(nll)
    assert found.tokens == len(nll) == 3 * (context - 1 - context // 2)
    assert found.ppl == pytest.approx(math.exp(mean), rel=1e-5)
    variance = sum(x * x for x in nll) / len(nll) - mean * mean
    error = math.exp(mean) * math.sqrt(variance / (len(nll) - 1)) if len(nll) > 1 else 0
    assert found.ppl_error == pytest.approx(error, rel=1e-4)
    wanted = [[bos if bos is not None else w[0], *w[1:-1]] for w in cut.tolist()]
    assert engine.fed == wanted, "the last token is a target, never fed"
    assert engine.headless == 3 * (context // 2), "the first half needs no logits"


def test_large_vocabularies_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = windows(text(64), 32)
    whole = measure(Table(64), cut, VOCAB)  # type: ignore[arg-type]
    monkeypatch.setattr(perplexity, "SLICE", 4 * VOCAB * 5)
    sliced = measure(Table(64), cut, VOCAB)  # type: ignore[arg-type]
    assert sliced.ppl == pytest.approx(whole.ppl, rel=1e-9)


def test_windows_are_cut_and_limited() -> None:
    assert windows(text(35), 8).shape == (4, 8)
    assert windows(text(35), 8, 2).tolist() == windows(text(35), 8).tolist()[:2]
    assert windows(text(35), 8, 99).shape == (4, 8)


@pytest.mark.parametrize(
    ("count", "context", "limit"), [(7, 8, -1), (40, 3, -1), (40, 8, 0), (40, 8, -2), (0, 8, -1)]
)
def test_windows_that_cannot_be(count: int, context: int, limit: int) -> None:
    with pytest.raises(RequestError):
        windows(text(count), context, limit)


def test_windows_beyond_the_context() -> None:
    with pytest.raises(RequestError, match="context of 64"):
        measure(Table(64), windows(text(100), 80), VOCAB)  # type: ignore[arg-type]


def test_hopeless_text_is_infinite_not_an_error() -> None:
    tally = Tally()
    tally.add(np.array([800.0, 900.0]))
    assert tally.result().ppl == math.inf


def test_a_model_does_not_diverge_from_itself(tmp_path: Path) -> None:
    cut = windows(text(100), 16)
    written = write_base(tmp_path / "base", Table(64), cut, VOCAB, 0)  # type: ignore[arg-type]
    ppl, kld = diverge(Table(64), open_logits(tmp_path / "base"), VOCAB, 0)  # type: ignore[arg-type]
    assert ppl == written
    assert abs(kld.kld_mean) < 1e-6 and kld.kld_max < 1e-4 and kld.same_top == 1
    assert kld.ppl_base == pytest.approx(ppl.ppl, rel=1e-4)


@pytest.mark.parametrize("limit", [-1, 2])
def test_divergence_is_what_numpy_computes(tmp_path: Path, limit: int) -> None:
    cut, base, other = windows(text(70), 16), Table(64), Table(5, wrong=0.5)
    write_base(tmp_path / "base", base, cut, VOCAB)  # type: ignore[arg-type]
    _, kld = diverge(other, open_logits(tmp_path / "base"), VOCAB, None, limit)  # type: ignore[arg-type]
    each, same = [], []
    for window in cut[: None if limit < 0 else limit]:
        p, q = (e.log_probs(window)[8:15] for e in (base, other))
        each += (np.exp(p) * (p - q)).sum(axis=1).tolist()
        same += (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
    assert kld.kld_mean == pytest.approx(np.mean(each), rel=1e-3)
    assert kld.kld_error == pytest.approx(np.std(each) / math.sqrt(len(each) - 1), rel=1e-3)
    quantiles = (kld.kld_median, kld.kld_p95, kld.kld_p99, kld.kld_max)
    assert quantiles == pytest.approx(np.quantile(each, [0.5, 0.95, 0.99, 1]), rel=1e-3)
    assert kld.same_top == pytest.approx(np.mean(same))


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    write_base(tmp_path / "base", Table(64), windows(text(32), 16), VOCAB)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="one vocabulary"):
        diverge(Table(64), open_logits(tmp_path / "base"), VOCAB + 1)  # type: ignore[arg-type]


@needs("cpu")
def test_a_real_engine_gives_what_its_logits_say() -> None:
    cut = windows([int(i) for i in np.random.default_rng(5).integers(0, tiny.VOCAB, 96)], 48)
    cache = Cache(context=tiny.CONTEXT, block=16)
    engine = tiny.engine("llama", tiny.weights("llama"), cache, find_backend("cpu").open(threads=2), batch=20)
    try:
        found = measure(engine, cut, tiny.VOCAB)
        nll = [x for window in cut for x in _nll(engine, window.tolist())]
    finally:
        engine.close()
    assert found.tokens == len(nll) == 46
    assert found.ppl == pytest.approx(math.exp(sum(nll) / len(nll)), rel=1e-5)


def _nll(engine: Engine, ids: list[int]) -> list[float]:
    engine.rewind(0, 0)
    rows = np.concatenate([engine.logits([BatchEntry(0, ids[i : i + 16])]) for i in range(0, 48, 16)])
    rows = rows.astype(np.float64)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return [-rows[n - 1, ids[n]] for n in range(25, 48)]
