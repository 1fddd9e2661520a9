"""Usage report of one request: sampling as used, tokens cut, cached and drafted, times, bytes read."""

from __future__ import annotations

from collections import abc
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from satchel.runtime.sampling import Sampling
from satchel.runtime.scheduler import Sequence


@dataclass(frozen=True, slots=True)
class UsageReport:
    """sampling: as used, with the seed. cut_tokens: left out of the prompt's middle (cut_messages: whole
    messages) or forgotten in one of `shifts`. missed: why the prompt's rest was not in the cache. Seconds are
    the engine's: queue until the prompt began, prefill until the first token, decode after it.

    devices: each one's share of the time. weight_bytes and kv_bytes: read for this request, weights shared
    with those in the same steps. bandwidth: bytes a second while the answer was made; limit: what the machine
    can read, bandwidth_share: the one over the other; None where that was never measured (Model.bandwidth()).
    preempted: times it gave way to others; replayed: times it began anew because a worker was lost.
    """

    sampling: Sampling
    prompt_tokens: int
    generated_tokens: int
    finish: str
    reason: str
    cut_tokens: int
    cut_messages: int
    shifts: int
    cached_tokens: int
    missed: str
    drafted: int
    accepted: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    steps: int
    preempted: int
    replayed: int
    devices: abc.Mapping[str, float]
    weight_bytes: float
    kv_bytes: float
    bandwidth: float
    limit: float | None
    notes: tuple[str, ...]

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that stood; None where none was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def bandwidth_share(self) -> float | None:
        return self.bandwidth / self.limit if self.limit else None

    def as_dict(self) -> dict[str, Any]:
        """As plain values, with the two shares."""
        shares = {"acceptance": self.acceptance, "bandwidth_share": self.bandwidth_share}
        # The sampling keeps records for kernels beside its options, which are no part of what was asked.
        sampling = {f.name: getattr(self.sampling, f.name) for f in fields(Sampling) if f.init}
        return asdict(replace(self, sampling=Sampling())) | {"sampling": sampling} | shares


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """The engine's part of a usage report: sums over a request's sequences, run one after the other."""

    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    steps: int = 0
    preempted: int = 0
    replayed: int = 0
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
        """Sequences in order: the first has the prompt's times, the others begin where a shift ended the one
        before.
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
            sum(u.replayed for u in used),
            sum(u.drafted for u in used),
            sum(u.accepted for u in used),
            first.cached,
            first.miss.value if first.started >= 0 else "",
            {name: s / whole for name, s in seconds.items()} if whole else {},
            sum(u.weight_bytes for u in used),
            sum(u.kv_bytes for u in used),
            sum(u.decode_bytes for u in used) / decoding if decoding else 0.0,
        )
