"""A model alias: one name for weighted versions of a model.

The alias chooses a version for each request, keeps the versions' error rates and latencies, and rolls back a
version that fails too often. A shadow version gets copies of requests; it is promoted, or taken back, by what
they show (runtime/fleet/comparison.py). Each change is logged, and told to a webhook.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from satchel.runtime.fleet.comparison import (
    FAILED,
    PROMOTE,
    Comparison,
    Interval,
    Observation,
    VersionLimits,
    VersionVerdict,
)
from satchel.server.catalog import AliasTable
from satchel.server.log import LOG
from satchel.server.webhook import tell

LEAST = 5  # requests before a version is judged
CHANGES = 20  # that are remembered
Event = dict[str, Any]


@dataclass(slots=True)
class Record:
    """Request counts of one version, and how its answers compare where it is a shadow."""

    last: deque[bool]  # of each of the last `window` requests: whether it failed
    requests: int = 0
    failed: int = 0
    seconds: float = 0.0  # sum over all requests
    comparison: Comparison | None = None  # of a shadow, until there is a verdict
    verdict: VersionVerdict | None = None
    compared: int = 0  # shadow requests
    shadow_seconds: float = 0.0  # sum over all shadow requests
    rolled_back: bool = False

    @property
    def error_share(self) -> float:
        return sum(self.last) / len(self.last) if self.last else 0.0


@dataclass(slots=True)
class Alias:
    """Chooses versions in proportion to their weights. A version that fails too often is rolled back: it gets
    no more requests as long as another version is left.

    promoted: the shadow once it was found as good: it gets all requests, unless it is rolled back.
    tell: gets each change, for the webhook.
    """

    name: str
    table: AliasTable
    records: dict[str, Record] = field(default_factory=dict)
    promoted: str = ""
    comparable: dict[str, bool] = field(default_factory=dict)  # whether a version's tokens are the shadow's
    changes: deque[Event] = field(default_factory=lambda: deque(maxlen=CHANGES))
    tell: Callable[[str, Event], None] = tell

    def __post_init__(self) -> None:
        versions = dict.fromkeys((*self.table.versions, *([self.table.shadow] if self.table.shadow else ())))
        self.records = {v: Record(deque(maxlen=self.table.window)) for v in versions}
        if self.table.shadow:
            t = self.table
            bounds = VersionLimits(t.most_divergence, t.least_agreement, t.least_compared, t.most_compared)
            self.records[t.shadow].comparison = Comparison(bounds)

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each version that gets requests."""
        if self.promoted and not self.records[self.promoted].rolled_back:
            return {self.promoted: 1.0}
        live = {v: w for v, w in self.table.versions.items() if w > 0 and not self.records[v].rolled_back}
        return live or self.table.versions

    @property
    def main(self) -> str:
        """The version with the largest weight."""
        return max(self.weights, key=lambda v: self.weights[v])

    def choose(self, user: str = "") -> str:
        """A version for a request: the same one each time for the same user, a random one without a user."""
        weights = self.weights
        at = _share(f"{self.name}/{user}") if user else random.random()
        at *= sum(weights.values())
        for version, weight in weights.items():
            at -= weight
            if at < 0:
                return version
        return self.main

    def shadows(self) -> bool:
        """Whether this request goes to the shadow too."""
        shadow = self.table.shadow
        return (
            bool(shadow)
            and not self.promoted
            and not self.records[shadow].rolled_back
            and random.random() < self.table.shadow_share
        )

    def record(self, version: str, failed: bool, seconds: float) -> None:
        """Counts a finished request, and rolls the version back where its error share is too high."""
        record = self.records[version]
        record.last.append(failed)
        record.requests += 1
        record.failed += failed
        record.seconds += seconds
        if record.rolled_back or len(record.last) < min(LEAST, self.table.window):
            return
        promoted = version == self.promoted
        others = [v for v in (self.table.versions if promoted else self.weights) if v != version]
        if record.error_share > self.table.rollback_errors and others and version in self.weights:
            record.rolled_back = True
            LOG.error(
                "%s: %s failed %.0f %% of its last %d requests and gets no more; %s take over",
                self.name, version, 100 * record.error_share, len(record.last), ", ".join(others),
            )  # fmt: skip
            self._changed(
                "rolled back", version, {"failed": record.error_share, "requests": len(record.last)}
            )

    def compare(self, seen: Observation | None, seconds: float) -> None:
        """Counts a shadow request. seen: how its answer compares; None: it failed. Promotes the shadow or
        takes it back where that is to be done and enough was seen.
        """
        record = self.records[self.table.shadow]
        record.compared += 1
        record.shadow_seconds += seconds
        if record.verdict is not None or record.comparison is None:
            return
        record.verdict = verdict = record.comparison.add(FAILED if seen is None else seen)
        if verdict is None:
            return
        LOG.warning("%s: %s: %s", self.name, self.table.shadow, told(verdict))
        if verdict.decision == PROMOTE and self.table.promote:
            self.promoted = self.table.shadow
            self._changed("promoted", self.table.shadow, figures(verdict))
        elif self.table.promote:
            record.rolled_back = True
            self._changed("taken back", self.table.shadow, figures(verdict))
        else:
            self._changed(f"would {verdict.decision}", self.table.shadow, figures(verdict))

    def cannot_compare(self, why: str) -> None:
        """The shadow's tokens are others than those of the versions: it gets no more copies."""
        record = self.records[self.table.shadow]
        if not record.rolled_back:
            record.rolled_back = True
            LOG.error("%s: %s cannot be compared: %s", self.name, self.table.shadow, why)
            self._changed("taken back", self.table.shadow, {"reason": why})

    def _changed(self, change: str, version: str, facts: Mapping[str, Any]) -> None:
        event = {"alias": self.name, "change": change, "model": version, "time": time.time(), **facts}
        self.changes.append(event)
        if self.table.webhook:
            self.tell(self.table.webhook, event)

    def as_json(self) -> dict[str, Any]:
        """The alias as JSON."""
        weights = self.weights
        return {
            "name": self.name,
            "shadow": self.table.shadow or None,
            "promoted": self.promoted or None,
            "changes": list(self.changes),
            "versions": [
                {
                    "model": version,
                    "weight": weights.get(version, 0.0),
                    "requests": r.requests,
                    "failed": r.failed,
                    "mean_seconds": r.seconds / r.requests if r.requests else None,
                    "rolled_back": r.rolled_back,
                    **_compared(r),
                }
                for version, r in self.records.items()
            ],
        }


def figures(verdict: VersionVerdict) -> dict[str, Any]:
    """A verdict as JSON."""
    return {
        "compared": verdict.requests,
        "divergence": _interval(verdict.divergence),
        "agreement": _interval(verdict.agreement),
    }


def told(verdict: VersionVerdict) -> str:
    """A verdict in words."""
    far, near = verdict.divergence, verdict.agreement
    return (
        f"{verdict.decision}: over {verdict.requests} requests its next tokens diverge by {far.mean:.3g} nats"
        f" ({far.low:.3g} to {far.high:.3g}), {near.mean:.1%} of the likeliest are the same"
        f" ({near.low:.1%} to {near.high:.1%})"
    )


def _interval(found: Interval) -> list[float]:
    return [found.mean, found.low, found.high]


def _compared(record: Record) -> dict[str, Any]:
    n = record.compared
    if not n or record.comparison is None:
        return {}
    verdict, (far, near) = record.verdict, record.comparison.intervals()
    found: dict[str, Any] = {"compared": n, "shadow_mean_seconds": record.shadow_seconds / n}
    if n > 1:  # [mean, low, high]
        found |= {"divergence": _interval(far), "agreement": _interval(near)}
    return {**found, "verdict": verdict.decision if verdict else None}


def _share(text: str) -> float:
    """A hash of the text as a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / (1 << 56)
