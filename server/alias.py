"""A model alias: one name for weighted versions of a model.

The alias chooses a version for each request, keeps the versions' error rates and latencies, and rolls back a
version that fails too often.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from satchel.server.catalog import AliasTable
from satchel.server.log import LOG

LEAST = 5  # requests before a version is judged


@dataclass(slots=True)
class Record:
    """Request counts of one version, and how its answers compare where it is a shadow."""

    last: deque[bool]  # of each of the last `window` requests: whether it failed
    requests: int = 0
    failed: int = 0
    seconds: float = 0.0  # sum over all requests
    compared: int = 0  # shadow requests
    agreed: int = 0  # shadow answers whose text equals the primary version's
    shadow_seconds: float = 0.0  # sum over all shadow requests
    rolled_back: bool = False

    @property
    def error_share(self) -> float:
        return sum(self.last) / len(self.last) if self.last else 0.0


@dataclass(slots=True)
class Alias:
    """Chooses versions in proportion to their weights. A version that fails too often is rolled back: it gets
    no more requests as long as another version is left.
    """

    name: str
    table: AliasTable
    records: dict[str, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        versions = dict.fromkeys((*self.table.versions, *([self.table.shadow] if self.table.shadow else ())))
        self.records = {v: Record(deque(maxlen=self.table.window)) for v in versions}

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each version that gets requests."""
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
        return bool(self.table.shadow) and random.random() < self.table.shadow_share

    def record(self, version: str, failed: bool, seconds: float) -> None:
        """Counts a finished request, and rolls the version back where its error share is too high."""
        record = self.records[version]
        record.last.append(failed)
        record.requests += 1
        record.failed += failed
        record.seconds += seconds
        if record.rolled_back or len(record.last) < min(LEAST, self.table.window):
            return
        others = [v for v in self.weights if v != version]
        if record.error_share > self.table.rollback_errors and others and version in self.weights:
            record.rolled_back = True
            LOG.error(
                "%s: %s failed %.0f %% of its last %d requests and gets no more; %s take over",
                self.name, version, 100 * record.error_share, len(record.last), ", ".join(others),
            )  # fmt: skip

    def compare(self, same: bool, seconds: float) -> None:
        """Counts a shadow request. same: whether its text equals the primary version's."""
        record = self.records[self.table.shadow]
        record.compared += 1
        record.agreed += same
        record.shadow_seconds += seconds

    def as_json(self) -> dict[str, Any]:
        """The alias as JSON."""
        weights = self.weights
        return {
            "name": self.name,
            "shadow": self.table.shadow or None,
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


def _compared(record: Record) -> dict[str, Any]:
    n = record.compared
    if not n:
        return {}
    return {"compared": n, "agreement": record.agreed / n, "shadow_mean_seconds": record.shadow_seconds / n}


def _share(text: str) -> float:
    """A hash of the text as a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / (1 << 56)
