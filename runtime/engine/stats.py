"""What the engine counts while it works: totals and histograms over all requests, and the work of each one.
The engine's thread alone writes; anybody may take a snapshot. A token costs a few microseconds of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

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
    """A histogram as it stood. counts[i] values were at most bounds[i] and above the bound before; the last
    count is of those above all bounds. total: their sum.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """The bound below which the share q of the values lies: up to 1.8 times too large for times; 0
        without a value, infinity where it is above all bounds.
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

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def value(self) -> Distribution:
        return Distribution(self.bounds, tuple(self.counts), self.total)


@dataclass(slots=True)
class Usage:
    """What a request took so far. weight_bytes: its share, by tokens, of the weights that its steps read;
    kv_bytes: of its own cache. decode_*: of the whole steps in which it got a token, for a rate. last: clock
    time of its last token. replayed: times that its worker process was lost. drafted, accepted: draft
    tokens that were verified, and those that were accepted. devices: seconds by device, its share of each
    step.
    """

    steps: int = 0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    decode_bytes: float = 0.0
    decode_seconds: float = 0.0
    last: float = -1.0
    replayed: int = 0
    drafted: int = 0
    accepted: int = 0
    devices: dict[str, float] = field(default_factory=dict)


class Counted(Protocol):
    """What is read of a sequence."""

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


# One sequence's part in a step: computed tokens, those in its cache before, and whether it went on with its
# answer. A plain tuple, for one is made for every row of every step.
Part = tuple[Counted, int, int, bool]


@dataclass(slots=True)
class StepFacts:
    """A step as a whole. devices: seconds by device."""

    seconds: float
    weight_bytes: float
    devices: Mapping[str, float]
    kv_use: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the model was loaded, what there is now, and histograms by name. requests: by how they
    ended. kv_kept: blocks that finished requests left for others to find. worker_restarts: how often a worker
    process was started again. host_blocks, host_bytes: of the cache's blocks, those in host memory, where
    host_moved_out went so far and host_moved_back came back from. expert_cache_lookups: experts that tokens
    were routed to in layers with an expert cache; expert_cache_hits: those that a GPU computed from it;
    expert_cache_moved_bytes: bytes of experts that were moved into it.
    """

    requests: Mapping[str, int]
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    steps: int
    preemptions: int
    waiting: int
    running: int
    kv_blocks: int
    kv_free: int
    kv_kept: int
    histograms: Mapping[str, Distribution]
    worker_restarts: int = 0
    host_blocks: int = 0
    host_bytes: int = 0
    host_moved_out: int = 0
    host_moved_back: int = 0
    expert_cache_lookups: int = 0
    expert_cache_hits: int = 0
    expert_cache_moved_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


class KVTraffic:
    """Bytes of the KV cache that a step reads. windows: bytes of a position by window (0: all positions)."""

    def __init__(self, attention: Iterable[tuple[int, int]]) -> None:
        sizes: Counter[int] = Counter()
        for window, size in attention:
            sizes[window] += size
        self._all = sizes.pop(0, 0)
        self._windows = list(sizes.items())

    def kv(self, before: int, count: int) -> int:
        """Bytes read for `count` tokens after `before` others."""
        end = before + count
        read = self._all * end
        for window, size in self._windows:
            read += size * min(end, window + count)
        return read


class StatsCollector:
    """Counters of the engine thread, from which EngineStats are made."""

    def __init__(self, traffic: KVTraffic) -> None:
        self.traffic = traffic
        self.histograms = {name: Histogram(bounds) for name, bounds in BOUNDS.items()}
        self.requests: Counter[str] = Counter()
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = self.steps = self.preemptions = 0

    def step(self, parts: Sequence[Part], facts: StepFacts, now: float) -> None:
        """A step was done at clock time `now`."""
        h, total, seconds = self.histograms, sum(p[1] for p in parts), facts.seconds
        self.steps += 1
        h["step_seconds"].add(seconds)
        h["step_sequences"].add(len(parts))
        h["step_tokens"].add(total)
        h["kv_use_share"].add(facts.kv_use)
        kv = self.traffic.kv
        read = [kv(before, count) for _, count, before, _ in parts]
        moved, each = facts.weight_bytes + sum(read), facts.weight_bytes / total
        devices = [(name, spent / total) for name, spent in facts.devices.items()]
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

    def token(self, seq: Counted, now: float, count: int = 1) -> None:
        """So many tokens of the sequence were sampled by a step."""
        self.generated_tokens += count
        used = seq.used
        last = used.last
        if last >= 0:
            self.histograms["inter_token_seconds"].add((now - last) / count)
        used.last = now

    def ended(self, seq: Counted, now: float) -> None:
        """The sequence ended, for whatever reason."""
        h = self.histograms
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
        """blocks: those of the pool, free ones, and those kept for requests to come."""
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
