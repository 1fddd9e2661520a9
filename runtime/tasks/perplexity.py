"""Perplexity of a model on a text, and KL divergence from another model's probabilities.

As in llama-perplexity: the text is cut into non-overlapping windows of `context` tokens. Each starts from an
empty cache, with BOS first if the tokenizer adds one, and the tokens after its first half are scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from satchel.errors import RequestError
from satchel.formats.logits import LogitsFile, Records, encode, scored, write_logits
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine

F32 = npt.NDArray[np.float32]
Window = npt.NDArray[np.int32]
SLICE = 64 << 20  # bytes of logits that are processed together
UNLIKELY = -16.0  # lower log-probabilities are ignored: a file of logits cannot represent them
QUANTILES = (0, 0.01, 0.05, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1)
WINDOW_PARTS = 16  # parts of a window with a divergence of their own
Progress = Callable[[int, int, "Perplexity"], None]  # windows done, windows in all, so far


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp(mean negative log-likelihood), its standard error, and how many tokens were scored."""

    ppl: float
    ppl_error: float
    tokens: int


@dataclass(frozen=True, slots=True)
class WindowPart:
    """Divergence at positions `first` to `last` of every window."""

    first: int
    last: int
    kld: float  # mean
    same_top: float  # share of tokens for which both models have the same top token


@dataclass(frozen=True, slots=True)
class Divergence:
    """KL divergence from a base, in nats per token.

    kld_pN: N-th percentile.
    same_top: share of tokens (0 to 1) for which both models have the same top token, with its standard error.
    by_position: divergence for parts of the window.
    """

    kld_mean: float
    kld_error: float
    kld_min: float
    kld_p1: float
    kld_p5: float
    kld_p10: float
    kld_median: float
    kld_p90: float
    kld_p95: float
    kld_p99: float
    kld_p99_9: float
    kld_max: float
    same_top: float
    same_top_error: float
    ppl_base: float
    by_position: tuple[WindowPart, ...]


@dataclass(slots=True)
class Tally:
    """Sums over negative log-likelihoods."""

    total: float = 0.0
    squares: float = 0.0
    count: int = 0

    def add(self, nll: npt.NDArray[np.float64]) -> None:
        self.total += float(nll.sum())
        self.squares += float(np.square(nll).sum())
        self.count += len(nll)

    def result(self) -> Perplexity:
        mean = self.total / self.count
        ppl = math.exp(mean) if mean < 700 else math.inf
        return Perplexity(ppl, ppl * spread(self.squares / self.count - mean * mean, self.count), self.count)


def spread(variance: float, count: int) -> float:
    """Standard error of the mean of `count` values with this variance."""
    return math.sqrt(variance / (count - 1)) if variance > 0 and count > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Softmax:
    """Logits (n, V) with the terms of their log-softmax."""

    logits: F32
    high: F32  # (n), each row's maximum
    log_sum: F32  # (n), log(sum(exp(logits - high)))

    @classmethod
    def of(cls, logits: F32) -> Softmax:
        high = logits.max(axis=-1)
        terms = np.exp(logits - high[:, None])
        return cls(logits, high, np.log(terms.sum(axis=-1, dtype=np.float64)).astype(np.float32))

    def nll(self, targets: Window) -> npt.NDArray[np.float64]:
        """Negative log-likelihood of one target token per row."""
        chosen = self.logits[np.arange(len(targets)), targets]
        return (self.high + self.log_sum - chosen).astype(np.float64)


def windows(ids: Sequence[int], context: int, limit: int = -1) -> npt.NDArray[np.int32]:
    """Token ids (windows, context). limit: most windows; -1: all. Raises RequestError if the text
    fills none.
    """
    if context < 4:
        raise RequestError(f"a window of {context} tokens is too short to score: give at least -c 4")
    if limit == 0 or limit < -1:
        raise RequestError(f"{limit} windows were asked for: give 1 or more, or -1 for all")
    whole = len(ids) // context
    if not whole:
        raise RequestError(
            f"the text has {len(ids)} tokens, one window needs {context}: give a longer text or a smaller -c"
        )
    count = whole if limit < 0 else min(limit, whole)
    return np.asarray(ids[: count * context], np.int32).reshape(count, context)


def slices(engine: Engine, window: Window, vocab: int) -> Iterator[tuple[int, Window, Softmax]]:
    """(index among the scored tokens, target ids, softmax) of a window from an empty cache, a slice of rows
    at a time.

    The first half needs no output head, and the last token is only a target: neither costs an output row.
    """
    first, rows = len(window) // 2, scored(len(window))
    engine.rewind(0, 0)
    for at in range(0, first, engine.batch):
        engine.step([BatchEntry(0, window[at : min(first, at + engine.batch)].tolist())])
    size = max(1, min(engine.batch, SLICE // (4 * vocab)))
    for at in range(0, rows, size):
        n = min(size, rows - at)
        part = window[first + at : first + at + n].tolist()
        yield (
            at,
            window[first + at + 1 : first + at + n + 1],
            Softmax.of(engine.logits([BatchEntry(0, part)])),
        )


def measure(
    engine: Engine,
    cut: npt.NDArray[np.int32],
    vocab: int,
    bos: int | None = None,
    keep: Callable[[Records], None] | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Perplexity over windows (n, context). bos: first token of each; None: unchanged. keep: called with the
    records of formats/logits.py of all scored tokens, in order.
    """
    tally = Tally()
    for number, window in enumerate(opened(engine, cut, bos)):
        for _, targets, soft in slices(engine, window, vocab):
            tally.add(soft.nll(targets))
            if keep:
                keep(encode(soft.logits, soft.high, soft.log_sum))
        if progress:
            progress(number + 1, len(cut), tally.result())
    return tally.result()


def opened(engine: Engine, cut: npt.NDArray[np.int32], bos: int | None) -> Iterator[Window]:
    """The windows with BOS as their first token."""
    if cut.shape[1] > engine.cache.context:
        raise RequestError(
            f"windows of {cut.shape[1]} exceed the context of {engine.cache.context}; load a larger one"
        )
    for window in cut:
        ready = window.copy()
        if bos is not None:
            ready[0] = bos
        yield ready


def write_base(
    path: str | Path,
    engine: Engine,
    cut: npt.NDArray[np.int32],
    vocab: int,
    bos: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """As `measure`, and writes the log-probabilities to a file for `diverge`."""
    found: list[Perplexity] = []

    def fill(keep: Callable[[Records], None]) -> None:
        found.append(measure(engine, cut, vocab, bos, keep, progress))

    write_logits(path, cut.shape[1], vocab, cut.reshape(-1).tolist(), fill)
    return found[0]


@dataclass(slots=True)
class Compared:
    """Divergence and top-token agreement of each scored token so far."""

    context: int
    kld: list[F32] = field(default_factory=list)
    same: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    base: Tally = field(default_factory=Tally)

    def add(self, soft: Softmax, log_base: F32, targets: Window) -> None:
        """log_base: log-probabilities (n, V) of the base."""
        log_probs = soft.logits - (soft.high + soft.log_sum)[:, None]
        terms = np.where(log_base > UNLIKELY, np.exp(log_base) * (log_base - log_probs), 0)
        self.kld.append(terms.sum(axis=-1, dtype=np.float64).astype(np.float32))
        self.same.append(log_base.argmax(axis=-1) == soft.logits.argmax(axis=-1))
        self.base.add(-log_base[np.arange(len(targets)), targets].astype(np.float64))

    def result(self) -> Divergence:
        kld, same = np.concatenate(self.kld).astype(np.float64), np.concatenate(self.same)
        mean, top, n = float(kld.mean()), float(same.mean()), len(kld)
        least, p1, p5, p10, median, p90, p95, p99, p99_9, most = map(float, np.quantile(kld, QUANTILES))
        return Divergence(
            kld_mean=mean,
            kld_error=spread(float(np.square(kld).mean()) - mean * mean, n),
            kld_min=least,
            kld_p1=p1,
            kld_p5=p5,
            kld_p10=p10,
            kld_median=median,
            kld_p90=p90,
            kld_p95=p95,
            kld_p99=p99,
            kld_p99_9=p99_9,
            kld_max=most,
            same_top=top,
            same_top_error=spread(top - top * top, n),
            ppl_base=self.base.result().ppl,
            by_position=self._by_position(kld, same),
        )

    def _by_position(
        self, kld: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]
    ) -> tuple[WindowPart, ...]:
        rows = scored(self.context)
        by_place = kld.reshape(-1, rows).mean(axis=0), same.reshape(-1, rows).mean(axis=0)
        start = self.context // 2 + 1
        cut = np.array_split(np.arange(rows), min(WINDOW_PARTS, rows))
        return tuple(
            WindowPart(start + int(at[0]), start + int(at[-1]), *(float(m[at].mean()) for m in by_place))
            for at in cut
        )


def diverge(
    engine: Engine,
    base: LogitsFile,
    vocab: int,
    bos: int | None = None,
    limit: int = -1,
    progress: Progress | None = None,
) -> tuple[Perplexity, Divergence]:
    """Runs the base's own windows and compares. Raises RequestError if the base has another vocabulary."""
    if base.vocab != vocab:
        found = f"made with a vocabulary of {base.vocab}, this model has {vocab}"
        raise RequestError(f"{base.path}: {found}; compare models of one vocabulary")
    cut = windows(base.tokens.reshape(-1).tolist(), base.context, limit)
    tally, compared = Tally(), Compared(base.context)
    for number, window in enumerate(opened(engine, cut, bos)):
        for at, targets, soft in slices(engine, window, vocab):
            tally.add(soft.nll(targets))
            compared.add(soft, base.log_probs(number, at, at + len(targets)), targets)
        if progress:
            progress(number + 1, len(cut), tally.result())
    return tally.result(), compared.result()
