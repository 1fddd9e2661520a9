"""Predicts the length of an answer from its user's earlier answers: a running mean of logarithms, because
lengths span orders of magnitude. An unknown user gets the mean of all.
"""

from __future__ import annotations

from math import exp, log

from satchel.runtime.scheduler.sequence import Sequence

RATE = 0.2  # weight of the last answer
START = 128.0  # initial prediction, in tokens
KNOWN = 4096  # most remembered users


class Lengths:
    def __init__(self) -> None:
        self._all = log(START)
        self._users: dict[str, float] = {}

    def learn(self, seq: Sequence) -> None:
        """Learns from an answer that ended by itself; truncated and cancelled ones are ignored."""
        if seq.finish != "stop":
            return
        seen, user = log(max(1, seq.generated)), seq.request.user
        self._all += RATE * (seen - self._all)
        before = self._users.pop(user, self._all)
        self._users[user] = before + RATE * (seen - before)
        while len(self._users) > KNOWN:
            del self._users[next(iter(self._users))]

    def answer(self, seq: Sequence) -> float:
        """Predicted tokens of the answer, at most its limit."""
        return min(float(seq.request.max_tokens), exp(self._users.get(seq.request.user, self._all)))

    def remaining(self, seq: Sequence) -> float:
        """Predicted tokens to compute and to sample until the sequence ends."""
        return seq.remaining + max(1.0, self.answer(seq) - seq.generated)
