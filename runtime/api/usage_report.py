"""Usage report of one request: sampling options, tokens cut, cached and drafted, times, bytes read."""

from __future__ import annotations

from collections import abc
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from satchel.runtime.sampling import Sampling
from satchel.runtime.scheduler import Sequence


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage report of a request. Times are the engine's."""

    sampling: Sampling  # as used, with the seed
    prompt_tokens: int  # with the cached ones
    generated_tokens: int
    finish: str  # as in Stats
    reason: str  # why, where `finish` does not say it; else ""
    cut_tokens: int  # cut from the middle of the prompt or forgotten in a context shift
    cut_messages: int  # whole messages that were cut
    shifts: int  # number of context shifts
    cached_tokens: int = 0  # prompt tokens found in the cache
    missed: str = ""  # why the rest of the prompt was not in the cache
    drafted: int = 0  # draft tokens that were verified
    accepted: int = 0  # draft tokens that were accepted
    queue_seconds: float = 0.0  # until the prompt began
    line_seconds: float = 0.0  # of these, until one of several replicas had room for it
    prefill_seconds: float = 0.0  # until the first token
    decode_seconds: float = 0.0  # after the first token
    steps: int = 0  # of the engine that had the request in them
    preempted: int = 0  # times that it was preempted
    restarted: int = 0  # times that it was restarted because a worker process or a device was lost
    devices: abc.Mapping[str, float] = field(default_factory=dict)  # each device's share of the time
    weight_bytes: float = 0.0  # read for this request; steps share them among their requests
    kv_bytes: float = 0.0  # read for this request
    bandwidth: float = 0.0  # bytes per second during decoding
    # Bytes per second that the machine can read; None: not measured (Model.bandwidth()).
    limit: float | None = None
    notes: tuple[str, ...] = ()  # warnings for the reader of the answer

    def with_usage(self, seqs: abc.Sequence[Sequence]) -> UsageReport:
        """The report with what the engine used: sums over the request's sequences in their order. The first
        has the prompt's times; each other begins where a shift ended the one before.
        """
        if not seqs:
            return self
        first, used = seqs[0], [s.used for s in seqs]
        seconds = {name: sum(u.devices.get(name, 0.0) for u in used) for u in used for name in u.devices}
        whole, decoding = sum(seconds.values()), sum(u.decode_seconds for u in used)
        began, answered = first.started >= 0, first.first >= 0
        return replace(
            self,
            cached_tokens=first.cached,
            missed=first.miss.value if began else "",
            drafted=sum(u.drafted for u in used),
            accepted=sum(u.accepted for u in used),
            queue_seconds=max(0.0, first.started - first.arrived) if began else 0.0,
            line_seconds=max(0.0, first.placed - first.arrived),
            prefill_seconds=max(0.0, first.first - first.started) if answered else 0.0,
            decode_seconds=max(0.0, used[-1].last - first.first) if answered else 0.0,
            steps=sum(u.steps for u in used),
            preempted=sum(s.preempted for s in seqs),
            restarted=sum(u.restarted for u in used),
            devices={name: s / whole for name, s in seconds.items()} if whole else {},
            weight_bytes=sum(u.weight_bytes for u in used),
            kv_bytes=sum(u.kv_bytes for u in used),
            bandwidth=sum(u.decode_bytes for u in used) / decoding if decoding else 0.0,
        )

    @property
    def acceptance(self) -> float | None:
        """Share of draft tokens that were accepted; None without any."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def bandwidth_share(self) -> float | None:
        """Share of `limit` that decoding reached; None where it is not measured."""
        return self.bandwidth / self.limit if self.limit else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the two shares."""
        shares = {"acceptance": self.acceptance, "bandwidth_share": self.bandwidth_share}
        # Sampling also caches records for kernels, which are not options.
        sampling = {f.name: getattr(self.sampling, f.name) for f in fields(Sampling) if f.init}
        return asdict(replace(self, sampling=Sampling())) | {"sampling": sampling} | shares
