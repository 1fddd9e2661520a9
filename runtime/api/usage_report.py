"""Usage report of one request: sampling options, tokens cut, cached and drafted, times, bytes read."""

from __future__ import annotations

from collections import abc
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from satchel.runtime.sampling import Sampling
from satchel.runtime.scheduler import Sequence


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage report of a request. Times are the engine's."""

    sampling: Sampling  # as used, with the seed
    prompt_tokens: int
    generated_tokens: int
    finish: str
    reason: str
    cut_tokens: int  # cut from the middle of the prompt or forgotten in a context shift
    cut_messages: int  # whole messages that were cut
    shifts: int  # number of context shifts
    cached_tokens: int
    missed: str  # why the rest of the prompt was not in the cache
    drafted: int
    accepted: int
    queue_seconds: float  # until the prompt began
    prefill_seconds: float  # until the first token
    decode_seconds: float  # after the first token
    steps: int
    preempted: int  # times that it was preempted
    restarted: int  # times that it was restarted because a worker process was lost
    devices: abc.Mapping[str, float]  # each device's share of the time
    weight_bytes: float  # read for this request; steps share them among their requests
    kv_bytes: float  # read for this request
    bandwidth: float  # bytes per second during decoding
    limit: float | None  # bytes per second that the machine can read; None: not measured (Model.bandwidth())
    notes: tuple[str, ...]

    @property
    def acceptance(self) -> float | None:
        """Share of draft tokens that were accepted; None without any."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def bandwidth_share(self) -> float | None:
        return self.bandwidth / self.limit if self.limit else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the two shares."""
        shares = {"acceptance": self.acceptance, "bandwidth_share": self.bandwidth_share}
        # Sampling also caches records for kernels, which are not options.
        sampling = {f.name: getattr(self.sampling, f.name) for f in fields(Sampling) if f.init}
        return asdict(replace(self, sampling=Sampling())) | {"sampling": sampling} | shares


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """The engine's part of a usage report: sums over a request's consecutive sequences."""

    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    steps: int = 0
    preempted: int = 0
    restarted: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0
    missed: str = ""
    devices: abc.Mapping[str, float] | None = None
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    bandwidth: float = 0.0

    @classmethod
    def of(cls, seqs: abc.Sequence[Sequence]) -> EngineUsage:
        """Sums over sequences in order: the first has the prompt's times; each other begins where a shift
        ended the one before.
        """
        if not seqs:
            return cls()
        first, used = seqs[0], [s.used for s in seqs]
        seconds = {name: sum(u.devices.get(name, 0.0) for u in used) for u in used for name in u.devices}
        whole, decoding = sum(seconds.values()), sum(u.decode_seconds for u in used)
        return cls(
            max(0.0, first.started - first.arrived) if first.started >= 0 else 0.0,
            max(0.0, first.first - first.started) if first.first >= 0 else 0.0,
            max(0.0, used[-1].last - first.first) if first.first >= 0 else 0.0,
            sum(u.steps for u in used),
            sum(s.preempted for s in seqs),
            sum(u.restarted for u in used),
            sum(u.drafted for u in used),
            sum(u.accepted for u in used),
            first.cached,
            first.miss.value if first.started >= 0 else "",
            {name: s / whole for name, s in seconds.items()} if whole else {},
            sum(u.weight_bytes for u in used),
            sum(u.kv_bytes for u in used),
            sum(u.decode_bytes for u in used) / decoding if decoding else 0.0,
        )
