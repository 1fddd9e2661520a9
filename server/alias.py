"""A name that stands for versions of a model: which of them a request gets, how they did, and when one is
taken back.
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
    """How a version did. last: whether each of its last requests failed. agreed: answers of a shadow that
    were the same as those it was compared with.
    """

    last: deque[bool]
    requests: int = 0
    failed: int = 0
    seconds: float = 0.0
    compared: int = 0
    agreed: int = 0
    shadow_seconds: float = 0.0
    rolled_back: bool = False

    @property
    def error_share(self) -> float:
        return sum(self.last) / len(self.last) if self.last else 0.0


@dataclass(slots=True)
class Alias:
    """Weights say how often each version is chosen. One that fails too often gets no more requests, as long
    as another is left.
    """

    name: str
    table: AliasTable
    records: dict[str, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        versions = dict.fromkeys((*self.table.versions, *([self.table.shadow] if self.table.shadow else ())))
        self.records = {v: Record(deque(maxlen=self.table.window)) for v in versions}

    @property
    def weights(self) -> Mapping[str, float]:
        """Of the versions that get requests."""
        live = {v: w for v, w in self.table.versions.items() if w > 0 and not self.records[v].rolled_back}
        return live or self.table.versions

    @property
    def main(self) -> str:
        """The version that gets most."""
        return max(self.weights, key=lambda v: self.weights[v])

    def choose(self, user: str = "") -> str:
        """A version for a request; a user keeps his."""
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
        """Notes how a request went, and takes a version back that fails too often."""
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
        """Notes how the shadow did beside the version that was asked."""
        record = self.records[self.table.shadow]
        record.compared += 1
        record.agreed += same
        record.shadow_seconds += seconds

    def told(self) -> dict[str, Any]:
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
    """The same number in [0, 1) for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / (1 << 56)
