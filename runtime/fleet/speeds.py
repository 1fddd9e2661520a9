"""How long the steps of a fleet's members take, from what all with the same hardware have measured.

Steps of about one size say how long such a step takes, not how much of that is fixed and how much is each
row's: any two numbers with the right sum fit. Compared by such numbers of their own, two equal members differ
as much as these do, and one gets requests that wait for a slot while the other has free ones.

Invariant: members with the same hardware have the same times, the mean of what each has learned. That one of
them is slower now shows in what it still has to do.
"""

from __future__ import annotations

from collections.abc import Iterable

from satchel.runtime.fleet.member import LoadReport, Member, Weights
from satchel.runtime.scheduler.steptime import LEARNED


class Speeds:
    """Of these members, as they have reported."""

    def __init__(self, members: Iterable[Member]) -> None:
        members = list(members)
        # One that has hardly begun takes as long as the one that has learned most: they run one model.
        loads = (member.load for member in members)
        self._usual = max(loads, key=lambda load: load.steps, default=LoadReport()).step
        self._learned: dict[str, list[Weights]] = {}
        for member in members:
            if member.load.steps >= LEARNED:
                self._learned.setdefault(member.service.hardware, []).append(member.load.step)
        self._means: dict[str, Weights] = {}

    def of(self, member: Member) -> Weights:
        """Seconds of a step at this member: what is fixed, and what each decoded row, each prompt token and
        each context token that is read adds.
        """
        hardware = member.service.hardware
        learned = self._learned.get(hardware)
        if learned is None:
            return self._usual
        if hardware not in self._means:
            a, b, c, d = (sum(column) / len(learned) for column in zip(*learned, strict=True))
            self._means[hardware] = a, b, c, d
        return self._means[hardware]
