"""The parts of speculative decoding: what is drafted, what is learned, and the best draft length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.runtime.speculative import Speculation
from satchel.runtime.speculative.acceptance import LEAST, Acceptance, evidence
from satchel.runtime.speculative.budget import GRANT, SHARE, TrialBudget
from satchel.runtime.speculative.length import DraftCandidate, lengths, wanted_gain
from satchel.runtime.speculative.ngram import CHAIN, LONGEST, PAIR, SALTS, Ngrams, Past
from satchel.runtime.speculative.rowcost import RowCost


def longest_match(ids: list[int], tail: list[int], last: int) -> tuple[int, int]:
    """(place, length) by looking everywhere, the CHAIN latest places of the last pair first."""
    places = [p for p in range(last, PAIR - 2, -1) if ids[p - 1 : p + 1] == tail[-2:]][:CHAIN]
    best = (-1, 0)
    for p in places:
        n = 0
        while n < min(LONGEST, p + 1, len(tail)) and ids[p - n] == tail[-1 - n]:
            n += 1
        if n > best[1]:
            best = p, n
    return best


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(0, 12), st.lists(st.integers(1, 7), max_size=30))
def test_lookup_gives_what_followed_the_longest_match(ids: list[int], most: int, cuts: list[int]) -> None:
    index, at = Ngrams(), 0
    for cut in [*cuts, len(ids)]:
        index.extend(ids[at : at + cut])
        at += cut
    assert index.ids == ids
    found = index.match(most)
    place, length = longest_match(ids, ids, len(ids) - 2) if len(ids) > PAIR else (-1, 0)
    if not length or most < 1:
        assert found is None
        return
    assert found is not None and found.length == length and len(found.ids) == most
    # What follows the place, and beyond the end what was found so far: a period goes on.
    whole = list(ids)
    for _ in range(most):
        whole.append(whole[place + 1 + len(whole) - len(ids)])
    assert found.ids == tuple(whole[len(ids) :])


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 4), max_size=20))
def test_another_sequence_is_matched_without_being_added(ids: list[int], tail: list[int]) -> None:
    index = Ngrams()
    index.extend(ids)
    found = index.match_other(tail, 5)
    place, length = longest_match(ids, tail, len(ids) - 1) if len(tail) >= PAIR else (-1, 0)
    follows = tuple(ids[place + 1 : place + 6]) if length else ()
    assert (found.ids if found else ()) == follows
    assert index.ids == ids


def test_adding_a_token_and_matching_stay_cheap_on_a_text_of_one_word() -> None:
    """A chain of 100,000 equal pairs is cut short, and the period is seen."""
    index = Ngrams()
    index.extend([7] * 100_000)
    found = index.match(16)
    assert found is not None and found.ids == (7,) * 16 and found.length == LONGEST


def test_the_latest_places_of_a_pair_are_searched() -> None:
    """A longer match before them is not found."""
    for others, follows, length in ((CHAIN - 1, 50, 4), (CHAIN, 60, 2)):
        index = Ngrams()
        index.extend([9, 9, 1, 2, 50] + [7, 1, 2, 60] * others + [9, 9, 1, 2])
        found = index.match(1)
        assert found is not None and (found.ids, found.length) == ((follows,), length)


def test_H19_the_past_is_bounded_and_apart_by_salt() -> None:
    past = Past(100)
    past.add("a", list(range(90)))
    assert past.match("a", [10, 11, 12], 3) is not None
    assert past.match("b", [10, 11, 12], 3) is None and past.match("", [10, 11, 12], 3) is None
    past.add("a", list(range(200, 290)))
    assert past.match("a", [10, 11, 12], 3) is None, "the older half went"
    found = past.match("a", [280, 281, 282], 3)
    assert found is not None and found.ids == (283, 284, 285)
    for i in range(SALTS):
        past.add(f"s{i}", [1, 2, 3, 4])
    assert past.match("a", [280, 281, 282], 3) is None, "the salt that was used longest ago went"
    off = Past(0)
    off.add("", [1, 2, 3, 4])
    assert off.match("", [1, 2], 2) is None


@pytest.mark.parametrize(
    "options",
    [
        {"draft_max": 65},
        {"draft_max": -1},
        {"draft_min": 5, "draft_max": 4},
        {"draft_min": -1},
        {"past": 5},
        {"past": -1},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="expected"):
        Speculation(**options)  # type: ignore[arg-type]


def test_options_that_ask_for_nothing_are_not_active() -> None:
    assert not Speculation().active and not Speculation(lookup=True, draft_max=0).active
    assert Speculation(lookup=True).active and Speculation(draft_model="x").active


def test_chances_follow_what_was_seen_by_kind_and_place() -> None:
    rng, shared = np.random.default_rng(0), Acceptance()
    own, rates = Acceptance(shared), {0: 0.1, 3: 0.9}
    for _ in range(400):
        for kind, rate in rates.items():
            for place in range(6):
                right = bool(rng.random() < rate)
                own.learn(kind, place, right)
                if not right:
                    break
    for kind, rate in rates.items():
        for table in (own, shared, Acceptance(shared)):
            chances = table.chances(kind, 6)
            assert chances[0] == pytest.approx(rate, abs=0.15)
            assert all(a >= b for a, b in itertools.pairwise(chances))
            assert min(chances) >= LEAST
    assert len(own.chances(3, 6)) == 6 > len(own.chances(0, 6))
    assert own.chances(3, 12)[6] > 0.3, "places that were never tried are taken to be as the last"
    assert [evidence(n) for n in (2, 3, 4, 5, 6, 9, 10, 99)] == [0, 1, 2, 2, 3, 3, 4, 4]


def test_costs_of_rows_are_a_staircase_learned_from_noise() -> None:
    rng, cost = np.random.default_rng(0), RowCost()
    true = {n: 1e-3 * (1 + 0.4 * ((n - 1) // 4)) for n in range(1, 18)}
    assert cost.seconds(1) == 0.0
    cost.learn(1, 1e-3)
    assert cost.seconds(5) > cost.seconds(2) > cost.seconds(1), "what was never tried costs something"
    for _ in range(600):
        n = int(rng.choice([1, 2, 4, 5, 9, 13, 17]))
        spike = 20.0 if rng.random() < 0.02 else 1.0
        cost.learn(n, true[n] * spike * rng.lognormal(0, 0.05))
    for n in (1, 2, 4, 5, 9, 13, 17):
        assert cost.seconds(n) == pytest.approx(true[n], rel=0.25), n
    assert cost.seconds(4) < cost.seconds(5) and true[4] * 0.75 < cost.seconds(3) < true[4] * 1.25
    for _ in range(400):
        cost.learn(1, 3e-3)
    assert cost.seconds(17) > 1.5 * true[17], "a slower machine is slower for every number of rows"


def test_a_number_of_rows_is_tried_three_times_before_it_is_measured() -> None:
    """One step that takes too long, for whatever reason, does not put it off for ever."""
    cost = RowCost()
    for rows, seconds in ((1, 1e-3), (17, 2e-3)):
        for _ in range(3):
            cost.learn(rows, seconds)
    hoped = cost.seconds(9)
    cost.learn(9, 0.1)
    assert cost.seconds(9) == hoped < 2e-3 and not cost.measured(9)
    cost.learn(9, 1.6e-3)
    cost.learn(9, 1.5e-3)
    assert cost.measured(9) and cost.seconds(9) == 1.6e-3


def test_rows_between_two_measured_numbers_of_a_group_are_hoped_to_cost_no_more_than_the_fewer() -> None:
    cost = RowCost()
    for rows, seconds in ((1, 1.0), (8, 3.0), (12, 4.0), (16, 3.5)):
        for _ in range(3):
            cost.learn(rows, seconds)
    assert [cost.seconds(rows) for rows in (4, 10, 14)] == [1.0, 3.0, 3.5]


@given(
    st.lists(st.lists(st.floats(0, 1), max_size=5), min_size=1, max_size=3),
    st.floats(0.0, 1.0),
    st.integers(0, 9),
)
def test_no_other_lengths_make_more_tokens_a_second(
    rates: list[list[float]], slope: float, room: int
) -> None:
    """Against all choices, with a cost that is a staircase."""
    candidates = [DraftCandidate(np.cumprod(r).tolist(), 0.05 * i) for i, r in enumerate(rates)]

    def seconds(n: int) -> float:
        return 1.0 + slope * -(-n // 3)

    def rate(chosen: tuple[int, ...]) -> float:
        gain = sum(sum(c.chances[:n]) for c, n in zip(candidates, chosen, strict=True))
        drafting = sum(c.seconds * n for c, n in zip(candidates, chosen, strict=True))
        return (len(candidates) + gain) / (seconds(sum(chosen)) + drafting)

    found = lengths(candidates, len(candidates), seconds, room)
    assert sum(found) <= room
    every = itertools.product(*(range(len(c.chances) + 1) for c in candidates))
    best = max(rate(c) for c in every if sum(c) <= room)
    none = rate((0,) * len(candidates))
    assert rate(tuple(found)) >= none
    if all(c.seconds == 0 for c in candidates):  # else the order by chance alone is close to best, no more
        assert rate(tuple(found)) >= best - 1e-9 or best <= wanted_gain(len(candidates)) * none + 1e-9


def test_drafts_that_do_not_pay_are_not_made_and_short_ones_neither() -> None:
    def seconds(n: int) -> float:
        return 1.0 + 0.3 * n

    good, bad = DraftCandidate([0.9, 0.8, 0.7]), DraftCandidate([0.2, 0.1])
    assert lengths([bad], 1, seconds, 8) == [0]
    assert lengths([good], 1, seconds, 8)[0] >= 2
    assert lengths([good, bad], 2, seconds, 8)[1] == 0
    assert lengths([good], 1, seconds, 0) == [0]
    assert lengths([DraftCandidate([0.9, 0.05])], 1, seconds, 8, least=2) == [0]
    assert lengths([DraftCandidate([0.9, 0.8], seconds=2.0)], 1, seconds, 8) == [0], "drafting takes too long"


def test_trying_spends_a_small_share_of_the_time() -> None:
    budget, spent = TrialBudget(), 0.0
    assert not budget.spend(1e-9)
    for _ in range(10_000):
        budget.earn(1e-3)
        spent += 5e-4 if budget.spend(5e-4) else 0.0
    assert spent <= GRANT * 1e-3 + SHARE * 10.0 + 1e-9
    assert spent >= SHARE * 10.0 * 0.9
