"""Who is in a fleet: leases, partitions, names, versions, and any order of what members say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.runtime.fleet.roster import HEARTBEAT, LEASE, Changes, Hello, Roster

A = Hello("a", "host1:7000", "v1")
B = Hello("b", "host2:7000", "v1")


def test_members_stay_as_long_as_they_are_heard() -> None:
    roster = Roster("v1")
    first, second = roster.admit(A, 0.0), roster.admit(B, 0.5)
    assert (first.ends, second.ends) == (LEASE, 0.5 + LEASE) and first.epoch != second.epoch
    now = 0.0
    for beat in range(1, 20):
        now = beat * HEARTBEAT
        lease = roster.heartbeat("a", first.epoch, now, {"queued": beat})
        assert lease is not None and lease.ends == now + LEASE
    assert list(roster.members(now)) == ["a"] and roster.members(now)["a"].report == {"queued": 19}
    assert roster.changes(now) == Changes(("a", "b"), (), ("b",))
    assert roster.changes(now) == Changes((), (), ())


def test_a_lost_heartbeat_or_two_loses_nobody() -> None:
    roster = Roster("v1")
    lease = roster.admit(A, 0.0)
    assert roster.heartbeat("a", lease.epoch, 2.9, {}) is not None
    assert list(roster.members(5.8)) == ["a"] and not roster.members(5.9)


def test_who_comes_back_from_a_partition_is_told_that_it_is_gone() -> None:
    roster = Roster("v1")
    lease = roster.admit(A, 0.0)
    assert roster.heartbeat("a", lease.epoch, 3.0, {}) is None
    assert not roster.drain("a", lease.epoch, 3.0)
    assert roster.changes(3.0).lost == ("a",)
    again = roster.admit(A, 3.5)
    assert again.epoch > lease.epoch
    assert roster.heartbeat("a", lease.epoch, 4.0, {}) is None  # what was replaced still speaks
    assert roster.heartbeat("a", again.epoch, 4.0, {}) is not None
    roster.leave("a", lease.epoch, 4.1)
    assert list(roster.members(4.1)) == ["a"]


def test_a_member_that_was_begun_anew_takes_its_name_at_once() -> None:
    roster = Roster("v1")
    lease = roster.admit(A, 0.0)
    with pytest.raises(RequestError, match=r"name is taken by host1:7000 for 2\.0 s more"):
        roster.admit(A._replace(address="host3:7000"), 1.0)
    roster.admit(A._replace(replaces=True), 1.0)
    assert roster.changes(1.0) == Changes(("a", "a"), (), ("a",))
    assert roster.heartbeat("a", lease.epoch, 1.5, {}) is None


def test_versions_that_differ_are_refused() -> None:
    roster = Roster("v1")
    with pytest.raises(RequestError, match="expected version v1, got v2"):
        roster.admit(A._replace(version="v2"), 0.0)
    assert not roster.members(0.0)


def test_who_drains_is_listed_so_and_leaves_without_being_lost() -> None:
    roster = Roster("v1")
    lease = roster.admit(A, 0.0)
    assert roster.drain("a", lease.epoch, 0.5) and roster.members(1.0)["a"].draining
    assert roster.heartbeat("a", lease.epoch, 1.0, {}) is not None and roster.members(1.0)["a"].draining
    roster.leave("a", lease.epoch, 1.5)
    assert roster.changes(9.0) == Changes(("a",), ("a",), ())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "anew", "beat", "old", "leave"]), st.sampled_from("ab"), st.floats(0, 4)
        )
    )
)
def test_any_order_loses_each_member_at_most_once(said: list[tuple[str, str, float]]) -> None:
    roster, now, epochs = Roster("v1"), 0.0, {"a": 0, "b": 0}
    heard = {"a": -9.0, "b": -9.0}
    joined, gone = 0, 0
    for what, name, gap in said:
        now += gap
        there = name in roster.members(now)
        assert there <= (now < heard[name] + LEASE)
        if what in ("join", "anew"):
            hello = Hello(name, name, "v1", what == "anew")
            if there and what == "join":
                with pytest.raises(RequestError):
                    roster.admit(hello, now)
            else:
                epochs[name], heard[name] = roster.admit(hello, now).epoch, now
        elif what == "leave":
            roster.leave(name, epochs[name], now)
        else:
            epoch = epochs[name] - (what == "old")
            renewed = roster.heartbeat(name, epoch, now, {})
            assert (renewed is not None) == (there and what == "beat")
            heard[name] = now if renewed is not None else heard[name]
        changes = roster.changes(now)
        joined += len(changes.joined)
        gone += len(changes.left) + len(changes.lost)
        assert joined - gone == len(roster.members(now))
