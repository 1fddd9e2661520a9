"""Learns the duration of a step: seconds = a + b * decoded rows + c * prompt tokens + d * cached tokens read.
A Kalman filter with four drifting parameters (Kalman, 1960) needs only a few dozen steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

START = np.array([1e-3, 1e-4, 1e-4, 1e-9])  # prior mean of (a, b, c, d)
SPREAD = np.diag([1e-4, 1e-6, 1e-6, 1e-14])  # prior covariance
DRIFT = SPREAD * 1e-5  # process noise per step
LEARNED = 16  # steps after which the parameters can be trusted
NOISE = 0.1  # relative measurement noise


class Load(NamedTuple):
    """What a step, or one sequence of it, computes."""

    decoded: int  # sequences that get one token
    prompt: int  # prompt tokens
    read: int  # context tokens that all of these attend to
    # Rows that verify draft tokens or replay accepted ones; each costs as much as a decoded one.
    drafted: int = 0

    def row(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([1.0, self.decoded + self.drafted, self.prompt, self.read], np.float64)


class StepTime:
    def __init__(self) -> None:
        self.weights, self._spread = START.copy(), SPREAD.copy()
        self.steps = 0

    def seconds(self, load: Load) -> float:
        """The prediction, at least 10 microseconds."""
        return max(1e-5, float(self.weights @ load.row()))

    def parts(self, loads: Sequence[Load], seconds: float) -> list[float]:
        """A step's seconds divided among its loads; the fixed part evenly."""
        start, row, prompt, read = self.weights.tolist()
        start = start / len(loads) + 1e-9
        costs = [start + row * (d + v) + prompt * p + read * r for d, p, r, v in loads]
        scale = seconds / sum(costs)
        return [scale * cost for cost in costs]

    def decode_parts(self, read: Sequence[int], seconds: float) -> list[float]:
        """parts() of sequences that decode a token each. read: context tokens of each."""
        start, row, _, reading = self.weights.tolist()
        least = start / len(read) + 1e-9 + row
        scale = seconds / (least * len(read) + reading * sum(read))
        least, reading = scale * least, scale * reading
        return [least + reading * n for n in read]

    def reading(self, tokens: int) -> float:
        """Seconds to read this many context tokens."""
        return float(self.weights[3]) * tokens

    def computing(self, tokens: int) -> float | None:
        """Seconds that this many prompt tokens add to a step; None before it is learned."""
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
        """The most prompt tokens beside these decoded rows that keep a step within `budget` seconds."""
        low, high = 0, most
        while low < high:
            mid = (low + high + 1) // 2
            if self.seconds(Load(decoded, mid, read)) <= budget:
                low = mid
            else:
                high = mid - 1
        return low
