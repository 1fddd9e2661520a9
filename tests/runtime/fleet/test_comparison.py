"""A new version is promoted or taken back by confidence intervals over requests, not by single ones."""

from __future__ import annotations

import random
from math import log

import pytest

from satchel.errors import RequestError
from satchel.runtime.fleet.comparison import (
    FAILED,
    WORST,
    Comparison,
    Observation,
    VersionLimits,
    divergence,
    interval,
    observe,
    student,
)
from satchel.runtime.sampling.logprobs import Logprob


def told(*chances: float) -> Logprob:
    """The report of a distribution over tokens 0, 1, ...; best first, as a model gives it."""
    ordered = sorted(enumerate(chances), key=lambda pair: -pair[1])
    return Logprob(0, log(chances[0]), 0, tuple((token, log(p)) for token, p in ordered if p))


def test_divergence_is_that_of_both_distributions() -> None:
    assert divergence(told(0.5, 0.5), told(0.5, 0.5)) == 0
    wanted = 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75)
    assert divergence(told(0.5, 0.5), told(0.25, 0.75)) == pytest.approx(wanted)
    assert divergence(told(1.0), Logprob(5, 0.0, 0, ((5, 0.0),))) == WORST, "nothing in common"


def test_what_is_not_among_the_likeliest_counts_as_one_token() -> None:
    full = divergence(told(0.5, 0.3, 0.15, 0.05), told(0.4, 0.3, 0.1, 0.2))
    cut = divergence(told(0.5, 0.3), told(0.4, 0.3))
    assert 0 < cut < full, "never more than over all tokens"
    assert cut == pytest.approx(0.5 * log(0.5 / 0.4) + 0.2 * log(0.2 / 0.3))


def test_a_request_is_one_observation() -> None:
    a, b = told(0.6, 0.4), told(0.4, 0.6)
    assert observe([a, a, a, a], [a, a, a, b]) == Observation(divergence(a, b) / 4, 0.75)
    for wrong in ([], [a]):
        with pytest.raises(RequestError, match="expected reports of the same tokens"):
            observe(wrong, [a, b])


@pytest.mark.parametrize(
    ("share", "freedom", "wanted"),
    [(0.975, 7, 2.3646), (0.975, 31, 2.0395), (0.995, 15, 2.9467), (0.975, 1000, 1.9623), (0.5, 9, 0.0)],
)
def test_students_quantiles(share: float, freedom: int, wanted: float) -> None:
    """Of printed tables."""
    assert student(share, freedom) == pytest.approx(wanted, abs=3e-3)


def test_an_interval_has_the_true_mean_as_often_as_it_says() -> None:
    rng, hits = random.Random(1), 0
    for _ in range(1000):
        found = interval([rng.expovariate(20) for _ in range(64)], 0.05)
        hits += found.low <= 0.05 <= found.high
    assert 920 <= hits <= 970, "skewed numbers cost little of 95 %"


def run(
    bounds: VersionLimits, mean: float, agreement: float, seed: int, failing: float = 0.0
) -> tuple[str, int]:
    """The decision, and after how many requests. Divergence is exponential, agreement that of 20 tokens."""
    rng, comparison = random.Random(seed), Comparison(bounds)
    while True:
        same = sum(rng.random() < agreement for _ in range(20)) / 20
        seen = FAILED if rng.random() < failing else Observation(rng.expovariate(1 / mean), same)
        verdict = comparison.add(seen)
        if verdict is not None:
            assert verdict.requests == comparison.requests
            return verdict.decision, verdict.requests


def test_a_version_that_is_as_good_is_promoted_and_a_worse_one_taken_back() -> None:
    bounds = VersionLimits(0.1, 0.9, 32, 4096)
    for seed in range(40):
        assert run(bounds, 0.01, 0.985, seed)[0] == "promote"
        assert run(bounds, 0.5, 0.985, seed)[0] == "take back", "far in its numbers"
        assert run(bounds, 0.01, 0.7, seed)[0] == "take back", "another likeliest token too often"
        assert run(bounds, 0.01, 0.985, seed, failing=0.2)[0] == "take back", "it fails"


def test_a_clear_case_takes_few_requests_and_a_close_one_many() -> None:
    bounds = VersionLimits(0.1, 0.9, 32, 4096)
    assert run(bounds, 1.0, 0.98, 1)[1] == 32
    close = [run(bounds, 0.09, 0.98, seed)[1] for seed in range(10)]
    assert min(close) > 64 and all(count & (count - 1) == 0 for count in close), "looks double"


def test_at_the_limit_a_version_is_hardly_ever_promoted() -> None:
    """Its true divergence is a little above what is allowed: promoting it would be wrong."""
    bounds = VersionLimits(0.1, 0.5, 32, 512)
    wrong = sum(run(bounds, 0.101, 0.98, seed)[0] == "promote" for seed in range(300))
    assert wrong <= 15


def test_what_is_not_found_good_in_time_is_taken_back() -> None:
    decision, requests = run(VersionLimits(0.1, 0.5, 32, 100), 0.1, 0.98, 3)
    assert (decision, requests) == ("take back", 100)


def test_too_few_requests_for_an_interval_are_refused() -> None:
    for least, most in ((4, 100), (64, 32)):
        with pytest.raises(RequestError, match="requests before the first look"):
            Comparison(VersionLimits(least=least, most=most))
