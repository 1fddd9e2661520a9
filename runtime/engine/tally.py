"""Tally: what sequences that decode have used, as sums over the steps instead of numbers for each sequence
in each step. All that decode get the same of a step but for what they read of the cache, which follows from
their lengths. So a sequence notes the sums when it begins to decode, and gets the difference when it stops.

Invariant: the members are the sequences that decoded in the last step, each in every step since it joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Protocol

OFTEN = 64  # steps after which every member's usage is brought up to date, for those who look meanwhile


@dataclass(slots=True)
class Usage:
    """Resources that a request has used."""

    steps: int = 0
    weight_bytes: float = 0.0  # weights read in its steps, its share by tokens
    kv_bytes: float = 0.0  # read from its own cache
    decode_bytes: float = 0.0  # of the whole steps that gave it a token
    decode_seconds: float = 0.0  # of the same steps
    last: float = -1.0  # clock time of its last token
    restarted: int = 0  # times that the request was restarted because its worker process or a device was lost
    drafted: int = 0  # draft tokens that were verified
    accepted: int = 0  # draft tokens that were accepted
    devices: dict[str, float] = field(default_factory=dict)  # seconds by device, its share of each step


class UsageOwner(Protocol):
    """A sequence."""

    used: Usage


class KVTraffic:
    """Bytes of the KV cache that a step reads. windows: bytes of a position by window (0: all positions)."""

    def __init__(self, attention: Iterable[tuple[int, int]]) -> None:
        sizes: dict[int, int] = {}
        for window, size in attention:
            sizes[window] = sizes.get(window, 0) + size
        self._all = sizes.pop(0, 0)
        self._windows = list(sizes.items())

    def kv(self, before: int, count: int) -> int:
        """Bytes read to compute `count` tokens after `before` others."""
        end = before + count
        read = self._all * end
        for window, size in self._windows:
            read += size * min(end, window + count)
        return read

    def step(self, before: Sequence[int]) -> int:
        """Bytes read to compute a token of each of several sequences, after so many others."""
        read = self._all * (sum(before) + len(before))
        for window, size in self._windows:
            read += size * sum([min(n, window) + 1 for n in before])
        return read

    def steps(self, before: int, count: int) -> int:
        """Bytes read to compute `count` tokens after `before` others, one by one."""
        read = self._all * _sum(before, before + count)
        for window, size in self._windows:
            full = min(max(before, window + 1), before + count)  # the first length that fills the window
            read += size * (_sum(before, full) + (before + count - full) * (window + 1))
        return read


def _sum(low: int, high: int) -> int:
    """The sum of the whole numbers above `low`, up to `high`."""
    return (high * (high + 1) - low * (low + 1)) // 2


class UsageTally:
    """The sums, and where each member joined."""

    def __init__(self, traffic: KVTraffic) -> None:
        self._traffic, self._sums = traffic, Usage()
        self._members: dict[UsageOwner, tuple[int, Usage]] = {}  # tokens cached when it joined, and the sums
        self._last: Sequence[UsageOwner] = ()  # the members, in the order of the last step
        self._settled = 0  # steps at which all members' usage was up to date

    def step(
        self,
        seqs: Sequence[UsageOwner],
        before: Sequence[int],
        used: tuple[float, float, float],
        devices: Iterable[tuple[str, float]],
    ) -> None:
        """Counts a step in which these sequences decode, after so many cached tokens. used: of each, its
        bytes of weights; the bytes and the seconds of the whole step. devices: seconds of each, by device.
        """
        sums, last = self._sums, self._last
        if sums.steps - self._settled >= OFTEN:
            self.settle(*self._members)
            self._settled = sums.steps
        if len(seqs) != len(last) or not all(map(is_, seqs, last)) or self._last is not last:
            self._change(seqs, before)
        weight_bytes, step_bytes, seconds = used
        sums.steps += 1
        sums.weight_bytes += weight_bytes
        sums.decode_bytes += step_bytes
        sums.decode_seconds += seconds
        for name, spent in devices:
            sums.devices[name] = sums.devices.get(name, 0.0) + spent

    def _change(self, seqs: Sequence[UsageOwner], before: Sequence[int]) -> None:
        """Makes these the members."""
        present = {*seqs}
        self.settle(*[seq for seq in self._members if seq not in present])
        sums: Usage | None = None
        for seq, n in zip(seqs, before, strict=True):
            if seq not in self._members:
                sums = sums or _copy(self._sums)
                self._members[seq] = n, sums
        self._last = seqs

    def settle(self, *seqs: UsageOwner) -> None:
        """Gives sequences what they used since they joined, and lets them go; ignores others."""
        sums = self._sums
        for seq in seqs:
            if seq not in self._members:
                continue
            before, at = self._members.pop(seq)
            used, steps = seq.used, sums.steps - at.steps
            used.steps += steps
            used.weight_bytes += sums.weight_bytes - at.weight_bytes
            used.kv_bytes += self._traffic.steps(before, steps)
            used.decode_bytes += sums.decode_bytes - at.decode_bytes
            used.decode_seconds += sums.decode_seconds - at.decode_seconds
            _add(used.devices, sums.devices, at.devices)
            self._last = ()


def _copy(sums: Usage) -> Usage:
    return Usage(
        sums.steps,
        sums.weight_bytes,
        decode_bytes=sums.decode_bytes,
        decode_seconds=sums.decode_seconds,
        devices={**sums.devices},
    )


def _add(to: dict[str, float], high: Mapping[str, float], low: Mapping[str, float]) -> None:
    """Adds the differences, by name."""
    for name, spent in high.items():
        if name not in low or spent != low[name]:
            to[name] = to.get(name, 0.0) + spent - low.get(name, 0.0)
