"""How long the steps of a fleet's members take, from what all with the same hardware have measured.

Steps of about one size say how long such a step takes, not how much of that is fixed and how much is each
row's: any two numbers with the right sum fit. Compared by such numbers of their own, two equal members differ
as much as these do, and one gets requests that wait for a slot while the other has free ones.

Invariant: members with the same hardware have the same times, the mean of what each has learned. That one of
them is slower now shows in what it still has to do.
"""

from __future__ import annotations

from collections.abc import Iterable

from satchel.runtime.fleet.member import Member, Weights
from satchel.runtime.scheduler.steptime import LEARNED


class Speeds:
    """Of these members, as they have reported."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = list(members)
        self._of: dict[str, Weights] = {}  # by hardware, as they are asked for

    def of(self, member: Member) -> Weights:
        """Seconds of a step at this member: what is fixed, and what each decoded row, each prompt token and
        each context token that is read adds.
        """
        hardware = member.service.hardware
        if hardware not in self._of:
            self._of[hardware] = self._mean(hardware)
        return self._of[hardware]

    def _mean(self, hardware: str) -> Weights:
        """Of those with this hardware that have learned."""
        loads = [one.load for one in self._members if one.service.hardware == hardware]
        learned = [load.step for load in loads if load.steps >= LEARNED]
        if not learned:  # they take as long as the one that has learned most: they run one model
            return max((one.load for one in self._members), key=lambda load: load.steps).step
        a, b, c, d = (sum(column) / len(learned) for column in zip(*learned, strict=True))
        return a, b, c, d
