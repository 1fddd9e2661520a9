"""Finds the request that ends the processes of a fleet, whichever members it goes to.

Invariant: nobody is refused for what another request did. A request or call is guilty only of the end of a
process that computed no other request in that step, after an earlier end. So that it comes to that, a suspect
is computed in steps of its own for a while, beside those of the others, and longer each time.

A signal from outside says less about a request than a crash: it takes more of them to be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from satchel.runtime.worker.blame import GROWTH, TRIAL

CRASH, OUTSIDE = 3, 2  # what an end counts, by its kind
GUILTY = 6  # two crashes, or three ends from outside
Request = TypeVar("Request")
Call = TypeVar("Call")


class Suspects(Generic[Request, Call]):
    """Scores of the requests and calls that processes were computing when they ended."""

    def __init__(self) -> None:
        self._scores: dict[Request | Call, int] = {}

    def died(
        self, requests: Sequence[Request], calls: Sequence[Call], outside: bool
    ) -> Request | Call | None:
        """A process ended in a step of these requests, with these calls in progress; gives the guilty one."""
        step: list[Request | Call] = [*requests, *calls]
        for one in step:
            self._scores[one] = self._scores.get(one, 0) + (OUTSIDE if outside else CRASH)
        if not step:
            return None
        most = max(step, key=self._scores.__getitem__)
        score = self._scores[most]
        known = sum(self._scores[one] == score for one in step) == 1 and (most in calls or len(requests) == 1)
        if not known or score < GUILTY:
            return None
        self.forget(step)  # its end explains those of the others
        return most

    def trial(self, request: Request) -> int:
        """Tokens that the request must generate in steps of its own; 0: it is no suspect."""
        crashes = self._scores.get(request, 0) // CRASH
        return int(TRIAL * GROWTH ** min(8, crashes - 1)) if crashes else 0

    def forget(self, ended: Iterable[Request | Call]) -> None:
        """Called when requests or calls end."""
        for one in ended:
            self._scores.pop(one, None)
