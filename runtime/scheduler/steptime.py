"""How long a step will take, learned while running: seconds = a + b decoded rows + c prompt tokens + d cached
tokens read. A Kalman filter whose four numbers may drift (Kalman, 1960); it needs no more than a few dozen
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

START = np.array([1e-3, 1e-4, 1e-4, 1e-9])  # a prior that the first steps replace
SPREAD = np.diag([1e-4, 1e-6, 1e-6, 1e-14])  # how far from the prior the numbers may lie: variances
DRIFT = SPREAD * 1e-5  # of a step
LEARNED = 16  # steps after which the numbers can be trusted
NOISE = 0.1  # of a measured time, as a share of it


@dataclass(frozen=True, slots=True)
class Load:
    """What a step computes. decoded: sequences that get one token; prompt: tokens of prompts; read: tokens of
    context that all of these look at; drafted: rows that verify draft tokens, or replay accepted ones: they
    cost what decoded ones do.
    """

    decoded: int
    prompt: int
    read: int
    drafted: int = 0

    def row(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([1.0, self.decoded + self.drafted, self.prompt, self.read], np.float64)


class StepTime:
    def __init__(self) -> None:
        self.weights, self._spread = START.copy(), SPREAD.copy()
        self.steps = 0

    def seconds(self, load: Load) -> float:
        """The prediction, never below 10 microseconds."""
        return max(1e-5, float(self.weights @ load.row()))

    def parts(self, loads: Sequence[Load], seconds: float) -> list[float]:
        """The seconds of a step, divided among those whose loads it had; what it takes anyhow, evenly."""
        costs = [float(self.weights @ (load.row() / (len(loads), 1, 1, 1))) + 1e-9 for load in loads]
        return [seconds * cost / sum(costs) for cost in costs]

    def reading(self, tokens: int) -> float:
        """The part of a step in which so many tokens of context are read."""
        return float(self.weights[3]) * tokens

    def computing(self, tokens: int) -> float | None:
        """What so many tokens of a prompt add to a step; None before that was learned."""
        return float(self.weights[2]) * tokens if self.steps >= LEARNED else None

    def learn(self, load: Load, seconds: float) -> None:
        x = load.row()
        self._spread += DRIFT
        along = self._spread @ x
        gain = along / ((NOISE * seconds) ** 2 + x @ along)
        self.weights = np.maximum(self.weights + gain * (seconds - self.weights @ x), 0.0)
        self._spread -= np.outer(gain, along)
        self.steps += 1

    def prompt_tokens(self, decoded: int, read: int, budget: float, most: int) -> int:
        """The most prompt tokens beside so many decoded rows that keep a step within `budget` seconds."""
        low, high = 0, most
        while low < high:
            mid = (low + high + 1) // 2
            if self.seconds(Load(decoded, mid, read)) <= budget:
                low = mid
            else:
                high = mid - 1
        return low
