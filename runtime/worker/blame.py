"""Finds the request that crashes worker processes: each request of the last step runs alone for a while. A
request that crashes a process alone, after an earlier crash, is refused; the others go on. Knows request
numbers only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

TRIAL = 2  # tokens that a suspect must generate alone
GROWTH = 8  # factor on the trial after each further crash, for requests that crash late


class Blame:
    """deaths: crashes of processes that had the request in a step, by request."""

    def __init__(self) -> None:
        self.deaths: Counter[int] = Counter()
        self._suspects: deque[int] = deque()

    @property
    def alone(self) -> int | None:
        """The request that must run alone now; None if all may run."""
        return self._suspects[0] if self._suspects else None

    def trial(self, request: int) -> int:
        """Tokens that the request must generate alone before it is trusted."""
        longer = min(8, max(0, self.deaths[request] - 1))
        return TRIAL * int(GROWTH**longer)

    def died(self, step: Iterable[int]) -> int | None:
        """The process crashed in a step of these requests; gives the request to refuse, if any."""
        together = sorted(set(step))
        self.deaths.update(together)
        guilty = together[0] if len(together) == 1 and self.deaths[together[0]] > 1 else None
        known = set(self._suspects)
        self._suspects.extend(n for n in together if n not in known)
        if guilty is not None:
            self.forget(guilty)
        return guilty

    def survived(self, request: int) -> None:
        """The suspect finished its trial. Its crashes are remembered."""
        if request in self._suspects:
            self._suspects.remove(request)

    def forget(self, request: int) -> None:
        """Called when the request ends."""
        self.survived(request)
        del self.deaths[request]
