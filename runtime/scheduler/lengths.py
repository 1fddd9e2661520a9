"""Predicts how many tokens an answer will have from the answers that its user had: a running mean of their
logarithms, since lengths spread over orders of magnitude. An unknown user gets the mean of all.
"""

from __future__ import annotations

from math import exp, log

from satchel.runtime.scheduler.sequence import Sequence

RATE = 0.2  # weight of the last answer
START = 128.0  # tokens, before any answer ended
KNOWN = 4096  # users that are remembered


class Lengths:
    def __init__(self) -> None:
        self._all = log(START)
        self._users: dict[str, float] = {}

    def learn(self, seq: Sequence) -> None:
        """The sequence's answer ended by itself; what was cut or cancelled tells nothing."""
        if seq.finish != "stop":
            return
        seen, user = log(max(1, seq.generated)), seq.request.user
        self._all += RATE * (seen - self._all)
        before = self._users.pop(user, self._all)
        self._users[user] = before + RATE * (seen - before)
        while len(self._users) > KNOWN:
            del self._users[next(iter(self._users))]

    def answer(self, seq: Sequence) -> float:
        """Tokens that the answer will have, no more than it may."""
        return min(float(seq.request.max_tokens), exp(self._users.get(seq.request.user, self._all)))

    def remaining(self, seq: Sequence) -> float:
        """Tokens to compute and to sample until the sequence ends."""
        return seq.remaining + max(1.0, self.answer(seq) - seq.generated)
