"""How many tokens an answer will have, guessed from those that its user had: a running mean of their
logarithms, since lengths spread over orders of magnitude. Who is not known gets the mean of all.
"""

from __future__ import annotations

from math import exp, log

from satchel.runtime.scheduler.job import Job

RATE = 0.2  # weight of the last answer
START = 128.0  # tokens, before any answer ended
KNOWN = 4096  # users that are remembered


class Lengths:
    def __init__(self) -> None:
        self._all = log(START)
        self._users: dict[str, float] = {}

    def learn(self, job: Job) -> None:
        """The job's answer ended by itself; what was cut or cancelled tells nothing."""
        if job.finish != "stop":
            return
        seen, user = log(max(1, job.generated)), job.request.user
        self._all += RATE * (seen - self._all)
        before = self._users.pop(user, self._all)
        self._users[user] = before + RATE * (seen - before)
        while len(self._users) > KNOWN:
            del self._users[next(iter(self._users))]

    def answer(self, job: Job) -> float:
        """Tokens that the answer will have, no more than it may."""
        return min(float(job.request.most), exp(self._users.get(job.request.user, self._all)))

    def left(self, job: Job) -> float:
        """Tokens to be fed and sampled until the job ends."""
        return job.left + max(1.0, self.answer(job) - job.generated)
