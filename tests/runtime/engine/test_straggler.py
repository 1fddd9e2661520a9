"""A member of a group that keeps the others waiting is named, once a window."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from satchel.runtime.device.group import GroupDevice, GroupInfo
from satchel.runtime.engine.straggler import WINDOW, Straggler, warning

NAMES = ["cuda", "cuda:1", "cuda:2"]


class FakeGroup:
    """Members that waited so long."""

    name = "+".join(NAMES)

    def __init__(self) -> None:
        self.members = [type("Member", (), {"name": name}) for name in NAMES]
        self.waited = (0.0, 0.0, 0.0)

    def group_info(self) -> GroupInfo:
        return GroupInfo(1, self.waited, "")


@pytest.mark.parametrize(
    ("waited", "busy", "named"),
    [
        ((20.0, 2.0, 21.0), 60, "cuda:1"),
        ((9.0, 2.0, 8.0), 60, ""),  # 10 % of the time
        ((20.0, 20.0, 21.0), 60, ""),  # all wait alike: collectives take long
        ((20.0, 2.0, 21.0), 20, ""),  # the engine was idle for most of it
        ((20.0, 2.0, 5.0), 60, ""),  # one other member waits, one does not: it is no single slow one
    ],
)
def test_who_is_slow(waited: tuple[float, ...], busy: float, named: str) -> None:
    said = warning("group", NAMES, waited, busy, 60.0)
    assert bool(said) == bool(named)
    assert f"{named} is slower" in said or not named


def test_a_window_counts_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "satchel")
    group, now = FakeGroup(), [0.0]
    watched = Straggler(cast("GroupDevice", cast("Any", group)), lambda: now[0])
    for second in range(1, int(3 * WINDOW) + 1):
        now[0] = float(second)
        slow = second <= WINDOW
        group.waited = tuple(w + 0.4 * (slow and i != 2) for i, w in enumerate(group.waited))  # type: ignore[assignment]
        watched.step(1.0)
    (line,) = [r.getMessage() for r in caplog.records]
    assert "cuda:2 is slower than the other members, which waited 40% of the last 60 s" in line
