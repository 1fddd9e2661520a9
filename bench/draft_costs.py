"""What a step costs by its number of rows, relative to a step of one row: measured points, and lines between
them.

A table is the name of one that was measured, or "rows:cost" pairs with commas between them, as in
"1:1,9:1.3,17:1.5". Beyond the last point the line between the last two goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.errors import RequestError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Measured by bench/gpu_drafts.py, but for the wanted ones, at which verification aims: docs/notes/drafts.md.
TABLES: Mapping[str, str] = {
    "h200": "1:1,2:1.19,3:1.38,4:1.46,5:1.64,8:1.69,9:1.83,16:1.94,17:2.03",
    "h200-4096": "1:1,2:1.29,4:1.51,8:1.74,16:2.05",
    "cpu": "1:1,2:1.05,3:1.15,4:1.19,5:1.60,6:1.39,7:1.86,8:1.70,9:2.17,11:2.54,13:2.85,16:2.91,17:3.22,"
    "24:4.01,32:5.09",
    "wanted": "1:1,3:1.3,9:1.3,17:1.5",
}


class StepCosts:
    """Costs of steps. points: (rows, cost), of at least two numbers of rows, the first of which is 1."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        self.points = sorted(points)
        rows = [n for n, _ in self.points]
        if len(rows) < 2 or rows[0] != 1 or len(set(rows)) < len(rows) or min(c for _, c in self.points) <= 0:
            raise RequestError("a table of costs has two rows or more, each once and above 0, the first of 1")
        self._known: dict[int, float] = {}

    def __call__(self, rows: int) -> float:
        cost = self._known.get(rows)
        if cost is None:
            cost = self._known[rows] = self._between(rows) / self.points[0][1]
        return cost

    def _between(self, rows: int) -> float:
        spans = list(pairwise(self.points))
        (low, before), (high, after) = next((s for s in spans if rows <= s[1][0]), spans[-1])
        return before + (after - before) * (rows - low) / (high - low)


def read_costs(text: str) -> StepCosts:
    """The table of a name, or of a text."""
    try:
        pairs = [part.split(":") for part in TABLES.get(text, text).split(",")]
        return StepCosts([(int(rows), float(cost)) for rows, cost in pairs])
    except ValueError as error:
        raise RequestError(
            f"{text!r}: expected one of {', '.join(TABLES)}, or pairs as in 1:1,9:1.3,17:1.5"
        ) from error


@dataclass(slots=True)
class Tally:
    """Sums over steps that decode."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    cost: float = 0.0  # in steps of one row

    def add(self, drafted: int, accepted: int, cost: float) -> None:
        self.tokens, self.steps, self.cost = self.tokens + accepted + 1, self.steps + 1, self.cost + cost
        self.drafted, self.accepted = self.drafted + drafted, self.accepted + accepted

    @property
    def speed_up(self) -> float:
        """Relative to a step for each token."""
        return self.tokens / self.cost

    def cells(self) -> str:
        """Tokens, tokens a step, draft tokens a step, their accepted share and the speed-up."""
        share = f"{self.accepted / self.drafted:.0%}" if self.drafted else "-"
        return (
            f"{self.tokens:,} | {self.tokens / self.steps:.2f} | {self.drafted / self.steps:.2f} | {share} | "
            f"{self.speed_up:.2f}"
        )


def write_results(path: Path | None, found: Sequence[DataclassInstance]) -> None:
    """Writes all results as JSON, where a file is asked for."""
    if path:
        path.write_text(json.dumps([asdict(r) for r in found], indent=1) + "\n", encoding="utf-8")
