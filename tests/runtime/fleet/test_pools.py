"""Prefill at one member and decode at another, only where that is predicted to save a tenth."""

from __future__ import annotations

from collections.abc import Sequence

from fleet_cases import BUSY, DIGESTS, IDLE, LONG, asks, everything, views
from hypothesis import given, settings

from satchel.runtime.fleet.pools import KVLink, PrefillPools
from satchel.runtime.fleet.router import Ask, LeastTime, View

FAST = KVLink(token=131_072, rate=50e9)
SLOW = KVLink(token=131_072, rate=0.01e9)
CROWDED = BUSY._replace(running=60, read=60 * 2000, remaining=200.0)
ROLES = {"p": "prefill", "d": "decode", "e": "decode"}


def test_a_prompt_goes_through_the_prefill_member_where_that_spares_those_that_decode() -> None:
    views = {"p": IDLE, "d": CROWDED, "e": CROWDED}
    route = PrefillPools(ROLES, FAST).choose(LONG, views)
    assert (route.prefill, route.member in ("d", "e")) == ("p", True)


def test_nothing_moves_over_a_slow_link() -> None:
    views = {"p": IDLE, "d": CROWDED, "e": CROWDED}
    route = PrefillPools(ROLES, SLOW).choose(LONG, views)
    assert route.prefill == "" and route.member in ("d", "e")


def test_nothing_moves_where_the_prompt_is_cached_where_it_is_answered() -> None:
    views = {"p": IDLE, "d": CROWDED._replace(cached=everything), "e": CROWDED}
    assert PrefillPools(ROLES, FAST).choose(LONG, views).prefill == ""


def test_a_member_that_only_computes_prompts_answers_none_while_another_does() -> None:
    for ask in (LONG, Ask(10, 1000.0, [])):
        assert PrefillPools({"p": "prefill"}, SLOW).choose(ask, {"p": IDLE, "d": CROWDED}).member == "d"
    assert PrefillPools({"p": "prefill"}, SLOW).choose(LONG, {"p": IDLE}).member == "p"


def test_only_what_is_not_sent_in_time_delays_the_answer() -> None:
    pools = PrefillPools(ROLES, FAST)
    quick, late = (PrefillPools(ROLES, link).split(LONG, {"p": IDLE}, {"d": BUSY}) for link in (FAST, SLOW))
    assert quick is not None and late is not None
    assert quick.first == late.first  # the first token comes from where the prompt was computed
    waiting = SLOW.seconds(LONG.prompt) - late.first - FAST.seconds(512)
    assert abs(late.seconds - quick.seconds - waiting) < 1e-9
    assert pools.split(LONG, {"p": IDLE}, {"p": IDLE}) is None


@settings(max_examples=60, deadline=None)
@given(views, views, views, asks)
def test_any_members_give_a_route_to_members_that_are_there(p: View, d: View, e: View, ask: Ask) -> None:
    named = {"p": p, "d": d, "e": e}
    route = PrefillPools(ROLES, FAST, LeastTime()).choose(ask, named)
    assert route.member in ("d", "e") and route.prefill in ("", "p")


def test_the_digests_of_a_prompt_that_moves_are_asked_for_at_both() -> None:
    asked: list[int] = []

    def found(digests: Sequence[bytes]) -> int:
        asked.append(len(digests))
        return 0

    seen = IDLE._replace(cached=found)
    PrefillPools(ROLES, FAST).choose(LONG, {"p": seen, "d": CROWDED._replace(cached=found)})
    assert set(asked) == {len(DIGESTS)}
