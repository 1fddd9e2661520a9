"""The summary of a load: counts, rates, and the distribution of latencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from satchel.cli.load.drive import Driven
from satchel.cli.load.stream import Outcome
from satchel.cli.tables import Column, Row

SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


def summary(driven: Driven) -> dict[str, Any]:
    """The summary as plain values, with times in milliseconds. A response that the client left counts up to
    there.

    ttft_ms begins when a request is due, so it includes the wait for the concurrency limit. inter_token_ms is
    the time between two chunks of a response.
    """
    outcomes = driven.outcomes
    failed = [o for o in outcomes if o.error]
    tokens = sum(o.tokens for o in outcomes)
    return {
        "requests": len(outcomes),
        "completed": sum(o.whole for o in outcomes),
        "disconnected": sum(o.left for o in outcomes),
        "refused": sum(o.refused for o in failed),
        "failed": sum(not o.refused for o in failed),
        "errors": dict(Counter(o.error for o in failed).most_common()),
        "seconds": driven.seconds,
        "most_at_once": driven.most,
        "requests_per_second": len(outcomes) / driven.seconds,
        "steady_requests_per_second": steady_rate(outcomes),
        "prompt_tokens": sum(o.prompt_tokens for o in outcomes),
        "cached_tokens": sum(o.cached_tokens for o in outcomes),
        "tokens": tokens,
        "tokens_per_second": tokens / driven.seconds,
        "tokens_per_piece": _ratio([o for o in outcomes if o.whole]),
        "ttft_ms": spread(o.pieces[0] - o.due for o in outcomes if o.pieces),
        "inter_token_ms": spread(b - a for o in outcomes for a, b in pairwise(o.pieces)),
        "request_ms": spread(o.ended - o.due for o in outcomes if o.whole),
    }


def steady_rate(outcomes: Sequence[Outcome]) -> float:
    """Whole answers per second while every client had a request: until the last one was sent. Over the whole
    load, where no answer had ended by then; 0 without any.
    """
    whole = [o for o in outcomes if o.whole]
    if not whole:
        return 0.0
    begin, last = min(o.sent for o in outcomes), max(o.sent for o in outcomes)
    early = sum(o.ended <= last for o in whole)
    return early / (last - begin) if early else len(whole) / (max(o.ended for o in whole) - begin)


def _ratio(outcomes: Sequence[Outcome]) -> float | None:
    pieces = sum(len(o.pieces) for o in outcomes)
    return sum(o.tokens for o in outcomes) / pieces if pieces else None


def spread(seconds: Iterable[float]) -> dict[str, float] | None:
    """Mean, percentiles and maximum in milliseconds; None without values."""
    ranked = sorted(seconds)
    if not ranked:
        return None
    cuts = {name: 1e3 * quantile(ranked, share) for name, share in SHARES.items()}
    return {"mean": 1e3 * math.fsum(ranked) / len(ranked), **cuts, "max": 1e3 * ranked[-1]}


def quantile(ranked: Sequence[float], share: float) -> float:
    """The percentile of sorted values by nearest rank."""
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def _time(name: str, cut: str) -> Column:
    def text(row: Row) -> str:
        found: Mapping[str, float] | None = row[name]
        return "" if found is None else f"{found[cut]:.1f}"

    head = {"ttft_ms": "first", "inter_token_ms": "next"}[name]
    return f"{head} {cut} ms", 12, text


COLUMNS: tuple[Column, ...] = (
    ("model", -16, lambda r: r["model"]),
    ("load", -14, lambda r: r["load"]),
    ("asked", 6, lambda r: str(r["requests"])),
    ("whole", 6, lambda r: str(r["completed"])),
    ("left", 5, lambda r: str(r["disconnected"])),
    ("refused", 7, lambda r: str(r["refused"])),
    ("failed", 6, lambda r: str(r["failed"])),
    ("at once", 7, lambda r: str(r["most_at_once"])),
    ("req/s", 7, lambda r: f"{r['requests_per_second']:.2f}"),
    ("t/s", 8, lambda r: f"{r['tokens_per_second']:.1f}"),
    *(_time(name, cut) for name in ("ttft_ms", "inter_token_ms") for cut in ("p50", "p99")),
)
