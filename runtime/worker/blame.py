"""Finds the request that ended a worker process: each of its last step is tried alone for a while. One that
dies alone, and died before, is refused; the others go on. Knows numbers of requests only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

TRIAL = 2  # tokens that a suspect must give alone
GROWTH = 8  # so many times as many after each further death, for what kills late


class Blame:
    """deaths: of the request's processes, by request."""

    def __init__(self) -> None:
        self.deaths: Counter[int] = Counter()
        self._suspects: deque[int] = deque()

    @property
    def alone(self) -> int | None:
        """The request that must run alone now; None where all may run."""
        return self._suspects[0] if self._suspects else None

    def trial(self, request: int) -> int:
        """Tokens that the request must give before it is trusted."""
        longer = min(8, max(0, self.deaths[request] - 1))
        return TRIAL * int(GROWTH**longer)

    def died(self, step: Iterable[int]) -> int | None:
        """The process ended in a step of these requests; gives the one that is to be refused."""
        together = sorted(set(step))
        self.deaths.update(together)
        guilty = together[0] if len(together) == 1 and self.deaths[together[0]] > 1 else None
        known = set(self._suspects)
        self._suspects.extend(n for n in together if n not in known)
        if guilty is not None:
            self.forget(guilty)
        return guilty

    def survived(self, request: int) -> None:
        """The suspect gave its tokens alone. Its deaths are remembered."""
        if request in self._suspects:
            self._suspects.remove(request)

    def forget(self, request: int) -> None:
        """The request has ended."""
        self.survived(request)
        del self.deaths[request]
