"""Members of a fleet and requests, for tests of routing: typical ones, and any."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from satchel.runtime.fleet.router import Ask, View

STEP = (2e-3, 5e-5, 3e-5, 3e-8)


def nothing(digests: Sequence[bytes]) -> int:
    return 0


def everything(digests: Sequence[bytes]) -> int:
    return len(digests)


IDLE = View(0, 0, 0, 0, 1.0, 500_000, 64, 512, STEP, nothing)
BUSY = IDLE._replace(running=8, read=8 * 1500, remaining=100.0)
DIGESTS = [number.to_bytes(8, "big") for number in range(64)]
LONG = Ask(64 * 64, 100.0, DIGESTS)  # computing it takes 0.12 s

counts, seconds = st.integers(0, 10**6), st.floats(0, 10)
views = st.builds(
    View,
    waiting=st.integers(0, 10_000),
    queued=counts,
    running=st.integers(0, 1000),
    read=counts,
    remaining=st.floats(0, 1e6),
    free=st.integers(-(10**6), 10**7),
    block=st.integers(1, 256),
    chunk=st.integers(1, 8192),
    step=st.tuples(seconds, seconds, seconds, seconds),
    cached=st.integers(0, 64).map(lambda n: lambda digests: min(n, len(digests))),
    slots=st.integers(0, 1000),
)
asks = st.builds(Ask, st.integers(0, 10**6), st.floats(0, 1e6), st.integers(0, 64).map(lambda n: DIGESTS[:n]))
