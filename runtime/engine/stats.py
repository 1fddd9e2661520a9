"""Engine statistics: totals and histograms over all requests, and the usage of each. Only the engine's thread
writes; any thread may take a snapshot. A token costs it a few microseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from satchel.runtime.engine.tally import KVTraffic, Usage, UsageTally

SECONDS = tuple(10.0 ** (e / 4) for e in range(-20, 13))  # 10 us to 1000 s, four to a decade
ROWS = tuple(float(1 << e) for e in range(13))
SHARES = tuple(i / 20 for i in range(21))
BOUNDS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": SECONDS,
    "inter_token_seconds": SECONDS,
    "queue_seconds": SECONDS,
    "prefill_seconds": SECONDS,
    "decode_seconds": SECONDS,
    "step_seconds": SECONDS,
    "step_sequences": ROWS,
    "step_tokens": ROWS,
    "cache_hit_share": SHARES,
    "kv_use_share": SHARES,
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Snapshot of a histogram. counts[i] values are at most bounds[i] and above the bound before; the last
    count is above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float  # sum of the values

    def plus(self, other: Distribution) -> Distribution:
        """Of the values of both, which have the same bounds."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Distribution(self.bounds, counts, self.total + other.total)

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values; 0 without any."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """Upper bound of the bucket with quantile q: up to 1.8 times too large for times; 0 without values,
        infinity above all bounds.
        """
        wanted, seen = q * self.count, 0
        for bound, n in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += n
            if n and seen >= wanted:
                return bound
        return 0.0


class Histogram:
    """Counts of values between fixed bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def value(self) -> Distribution:
        return Distribution(self.bounds, tuple(self.counts), self.total)


class Counted(Protocol):
    """The fields of a sequence that statistics read."""

    used: Usage
    arrived: float
    started: float
    first: float
    cached: int
    preempted: int
    finish: str

    @property
    def prompt(self) -> int: ...

    @property
    def generated(self) -> int: ...


# One sequence's part of a step: the sequence, computed tokens, tokens cached before, and whether it decodes.
# A plain tuple, because one is made for every row of every step.
Part = tuple[Counted, int, int, bool]


@dataclass(slots=True)
class StepFacts:
    """Measurements of a whole step."""

    seconds: float
    weight_bytes: float
    devices: Mapping[str, float]  # seconds by device
    kv_use: float


# Metadata of a field that says how things are now.
GAUGE = {"gauge": True}


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the model was loaded, current gauges, and histograms by name."""

    requests: Mapping[str, int]  # by finish reason
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    steps: int
    preemptions: int
    waiting: int = field(metadata=GAUGE)
    running: int = field(metadata=GAUGE)
    kv_blocks: int = field(metadata=GAUGE)
    kv_free: int = field(metadata=GAUGE)
    kv_kept: int = field(metadata=GAUGE)  # blocks that finished requests left in the prefix tree
    histograms: Mapping[str, Distribution]
    worker_restarts: int = 0  # times that a worker process was restarted
    host_blocks: int = field(default=0, metadata=GAUGE)  # blocks in the host-memory tier
    host_bytes: int = field(default=0, metadata=GAUGE)  # bytes of the host-memory tier
    host_moved_out: int = 0  # blocks moved to host memory so far
    host_moved_back: int = 0  # blocks moved back so far
    expert_cache_lookups: int = 0  # expert selections in layers with an expert cache
    expert_cache_hits: int = 0  # of those, computed by a GPU from the cache
    expert_cache_moved_bytes: int = 0  # bytes of experts moved into the cache

    def after(self, earlier: EngineStats | None) -> EngineStats:
        """The same with the totals and histograms of an earlier load of the model added."""
        if earlier is None:
            return self
        sums = {name: getattr(self, name) + getattr(earlier, name) for name in TOTALS}
        requests = Counter(self.requests)
        requests.update(earlier.requests)
        both = {name: one.plus(earlier.histograms[name]) for name, one in self.histograms.items()}
        return replace(self, requests=requests, histograms=both, **sums)

    def ended(self) -> EngineStats:
        """The same once the model is unloaded: all gauges are 0."""
        none: dict[str, Any] = dict.fromkeys(GAUGES, 0)
        return replace(self, **none)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


# Fields of EngineStats that say how things are now, and those that count since the model was loaded.
GAUGES = tuple(one.name for one in fields(EngineStats) if one.metadata)
TOTALS = tuple(one.name for one in fields(EngineStats) if one.type == "int" and not one.metadata)


def summed(parts: Sequence[EngineStats]) -> EngineStats:
    """The sum of the stats of one or more engines."""
    made: dict[str, Any] = {}
    for one in fields(EngineStats):
        values = [getattr(part, one.name) for part in parts]
        if one.name == "requests":
            made[one.name] = dict(sum((Counter(v) for v in values), Counter[str]()))
        elif one.name == "histograms":
            made[one.name] = {key: _merged([v[key] for v in values if key in v]) for key in values[0]}
        else:
            made[one.name] = sum(values)
    return EngineStats(**made)


def _merged(parts: Sequence[Distribution]) -> Distribution:
    """The sum of histograms that have the same bounds."""
    counts = tuple(sum(column) for column in zip(*(p.counts for p in parts), strict=True))
    return Distribution(parts[0].bounds, counts, sum(p.total for p in parts))


class StatsCollector:
    """Counters of the engine thread, from which EngineStats are made."""

    def __init__(self, traffic: KVTraffic) -> None:
        self.traffic, self._tally = traffic, UsageTally(traffic)
        self.histograms = {name: Histogram(bounds) for name, bounds in BOUNDS.items()}
        self.requests: Counter[str] = Counter()
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = self.steps = self.preemptions = 0

    def step(
        self, decoding: Sequence[Counted], before: Sequence[int], parts: Sequence[Part], facts: StepFacts
    ) -> None:
        """Counts a step. decoding: sequences that compute their last token alone, before: tokens that each
        had in the cache; parts: the others.
        """
        h, total, seconds = self.histograms, len(decoding) + sum(p[1] for p in parts), facts.seconds
        self.steps += 1
        h["step_seconds"].add(seconds)
        h["step_sequences"].add(len(decoding) + len(parts))
        h["step_tokens"].add(total)
        h["kv_use_share"].add(facts.kv_use)
        kv = self.traffic.kv
        read = [kv(cached, count) for _, count, cached, _ in parts]
        each = facts.weight_bytes / total
        moved = facts.weight_bytes + sum(read) + self.traffic.step(before)
        devices = [(name, spent / total) for name, spent in facts.devices.items()]
        self._tally.step(decoding, before, (each, moved, seconds), devices)
        for (seq, count, _, decodes), own in zip(parts, read, strict=True):
            used = seq.used
            used.steps += 1
            used.weight_bytes += each * count
            used.kv_bytes += own
            for name, spent in devices:
                used.devices[name] = used.devices.get(name, 0.0) + spent * count
            if decodes:
                used.decode_bytes += moved
                used.decode_seconds += seconds

    def tokens(self, given: Iterable[tuple[Counted, int]], now: float) -> None:
        """Counts the tokens that a step sampled for each sequence."""
        seconds: dict[float, int] = {}  # how often each time since the last token: few differ
        for seq, count in given:
            self.generated_tokens += count
            used = seq.used
            last, used.last = used.last, now
            if last >= 0:
                each = (now - last) / count
                seconds[each] = seconds.get(each, 0) + 1
        for each, times in seconds.items():
            self.histograms["inter_token_seconds"].add(each, times)

    def ended(self, seq: Counted, now: float) -> None:
        """Counts the end of a sequence."""
        h = self.histograms
        self._tally.settle(seq)
        self.requests[seq.finish] += 1
        self.preemptions += seq.preempted
        if seq.started < 0:
            return
        self.prompt_tokens += seq.prompt
        self.cached_tokens += seq.cached
        h["queue_seconds"].add(seq.started - seq.arrived)
        h["cache_hit_share"].add(seq.cached / max(1, seq.prompt))
        if seq.first >= 0:
            h["time_to_first_token_seconds"].add(seq.first - seq.arrived)
            h["prefill_seconds"].add(seq.first - seq.started)
            h["decode_seconds"].add(now - seq.first)

    def snapshot(self, waiting: int, running: int, blocks: tuple[int, int, int]) -> EngineStats:
        """blocks: (pool size, free blocks, blocks kept in the prefix tree)."""
        return EngineStats(
            dict(self.requests),
            self.prompt_tokens,
            self.cached_tokens,
            self.generated_tokens,
            self.steps,
            self.preemptions,
            waiting,
            running,
            *blocks,
            {name: h.value() for name, h in self.histograms.items()},
        )
