"""The candidates that each stage of a sampler chain keeps, worked out by hand; exp, log and sums; DRY's
repetitions.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.runtime.graph import Array
from satchel.runtime.sampling import Sampling, sample_row
from satchel.runtime.sampling.chain import CODE, STAGE, Candidates, StageContext
from satchel.runtime.sampling.dry import Breakers, dry_penalties, find_breakers, suffix_lengths
from satchel.runtime.sampling.exact import BITS, exp, lanes, log, power, weights
from satchel.runtime.sampling.record import chain, numbers, record

P = np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])


def context_of(stage: str, sampling: Sampling, vocabulary: int, pos: int = 0) -> StageContext:
    ring, penalties = np.zeros(8, np.int32), np.zeros((0, 2), np.int32)
    return StageContext(record(sampling), numbers(sampling, stage), ring, pos, penalties, vocabulary)


def kept(stage: str, sampling: Sampling, p: Array = P, pos: int = 3) -> list[int]:
    row = context_of(stage, sampling, len(p), pos)
    c = Candidates(np.log(p).astype(np.float32), np.arange(len(p)))
    found: list[int] = STAGE[CODE[stage]](c, row).ids.tolist()
    return found


@pytest.mark.parametrize(
    ("stage", "options", "ids"),
    [
        ("top_k", {"top_k": 2}, [0, 1]),
        ("top_p", {"top_p": 0.69}, [0, 1]),
        ("top_p", {"top_p": 0.71}, [0, 1, 2]),
        ("min_p", {"min_p": 0.3}, [0, 1, 2]),
        ("min_p", {"min_p": 1.0}, [0]),
        (
            "typical",
            {"typical_p": 0.29},
            [1],
        ),  # nearest to the entropy of 1.43 nats
        ("typical", {"typical_p": 0.4}, [1, 2]),
        ("top_n_sigma", {"top_n_sigma": 0.5}, [0, 1]),
        ("top_n_sigma", {"top_n_sigma": 0.0}, [0]),
        ("xtc", {"xtc_probability": 1.0, "xtc_threshold": 0.09}, [3, 4, 5]),
        ("xtc", {"xtc_probability": 1.0, "xtc_threshold": 0.35}, [0, 1, 2, 3, 4, 5]),
        ("xtc", {"xtc_probability": 0.0, "xtc_threshold": 0.1}, [0, 1, 2, 3, 4, 5]),
        ("mirostat_2", {"mirostat_tau": 1.0}, [0, 1]),  # mu is 2 bits: a quarter
        ("temperature", {"temperature": 0.0}, [0]),
        ("temperature", {"temperature": 0.0, "dynatemp_range": 2.0}, [0]),
    ],
)
def test_what_each_stage_keeps(stage: str, options: dict[str, float], ids: list[int]) -> None:
    assert kept(stage, Sampling(seed=0, **options)) == ids  # type: ignore[arg-type]


def test_xtc_draws_as_often_as_it_is_told() -> None:
    sampling = Sampling(seed=5, xtc_probability=0.3, xtc_threshold=0.1)
    cut = sum(len(kept("xtc", sampling, pos=i)) < 6 for i in range(2000))
    assert 530 < cut < 670


def test_a_dynamic_temperature_follows_the_entropy() -> None:
    sampling = Sampling(temperature=1, dynatemp_range=0.9, seed=0)
    row = context_of("temperature", sampling, 4)
    for p, by in ((np.full(4, 0.25), 1.9), (np.array([1 - 3e-6, 1e-6, 1e-6, 1e-6]), 0.1)):
        c = Candidates(np.log(p).astype(np.float32), np.arange(4))
        spread = STAGE[CODE["temperature"]](c, row).x
        np.testing.assert_allclose(spread * by, c.below, rtol=0.01)


def test_the_order_of_stages_counts() -> None:
    hot = Sampling(temperature=4, top_p=0.8, min_p=0, top_k=0, seed=0, samplers=("temperature", "top_p"))
    cold = Sampling(temperature=4, top_p=0.8, min_p=0, top_k=0, seed=0, samplers=("top_p", "temperature"))
    assert chain(hot) == ("temperature", "top_p") and chain(cold) == ("top_p", "temperature")
    found = [
        {sample_row(np.log(P), np.zeros(4, np.int32), pos, record(s))[0] for pos in range(400)}
        for s in (hot, cold)
    ]
    assert found[1] == {0, 1, 2} and found[0] > found[1]


def test_nll_bits_are_those_of_the_set() -> None:
    sampling = Sampling(temperature=1, top_k=2, top_p=1, min_p=0, seed=0)
    for pos in range(20):
        token, bits = sample_row(np.log(P), np.zeros(4, np.int32), pos, record(sampling))
        assert bits == pytest.approx(-math.log2(P[token] / 0.7), abs=1e-5)


def test_exact_functions_are_close_to_the_true_ones() -> None:
    x = np.linspace(-39, 0, 4001).astype(np.float32)
    true = np.exp(x.astype(np.float64)) * 2.0**BITS
    assert np.all(np.abs(weights(x) - true) <= 0.51 + 3e-7 * true)
    assert weights(np.array([0, -41, -np.inf], np.float32)).tolist() == [1 << BITS, 0, 0]
    for y in (1e-300, 1e-5, 0.7, 1.0, 1.5, 2.0, 1e18):
        assert log(y) == pytest.approx(math.log(y), rel=1e-14, abs=1e-15)
    for y in (-600.0, -1.0, 0.0, 0.3, 50.0):
        assert exp(y) == pytest.approx(math.exp(y), rel=1e-13)
    assert (power(0, 0), power(0, 2), power(3, 2)) == (1, 0, pytest.approx(9))
    assert lanes(np.arange(100.0)) == 4950


# --- DRY


def plain_suffixes(ids: list[int]) -> list[int]:
    n = len(ids)
    return [next((k for k in range(i + 1) if ids[i - k] != ids[n - 1 - k]), i + 1) for i in range(n)]


@pytest.mark.parametrize("seed", range(20))
def test_suffix_lengths(seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 3, 40)
    assert suffix_lengths(ids).tolist() == plain_suffixes(ids.tolist())


DRY = Sampling(dry_multiplier=0.8, dry_base=1.75, dry_allowed_length=2, seed=0)


def test_dry_grows_with_the_repetition() -> None:
    found = dict(dry_penalties([1, 2, 3, 4, 9, 1, 2, 3], DRY, Breakers(), 64))
    assert found == {4: pytest.approx(-0.8 * 1.75)}
    longer = dict(dry_penalties([7, 1, 2, 3, 4, 9, 7, 1, 2, 3], DRY, Breakers(), 64))
    assert longer == {4: pytest.approx(-0.8 * 1.75**2)}
    assert dry_penalties([1, 2, 3, 4, 9, 8, 7, 3], DRY, Breakers(), 64) == [], "one token may be repeated"
    assert dry_penalties([1, 2, 3, 4, 9, 1, 2, 3], DRY, Breakers(), 5) == [], "the copy is out of reach"


def test_breakers_end_a_repetition() -> None:
    pieces = [b"a", b"b", b"c", b"\n", b"x\n", b"d"]
    found = find_breakers(("\n",), len(pieces), pieces.__getitem__, lambda text: [])
    assert found.tails == {3: ((),), 4: ((),)}
    assert dry_penalties([0, 3, 1, 5, 0, 3, 1], DRY, found, 64) == [], "only one token since the break"
    assert dry_penalties([0, 1, 3, 0, 1], DRY, found, 64) == [], "a breaker itself loses nothing"
    assert dict(dry_penalties([0, 1, 3, 0, 1], DRY, Breakers(), 64)).keys() == {3}


def test_breakers_of_several_tokens() -> None:
    pieces = [b"q", b"Us", b"er", b":"]
    texts = {"er:": [2, 3], ":": [3], "r:": [9]}
    found = find_breakers(("User:",), len(pieces), pieces.__getitem__, lambda text: texts.get(text, []))
    assert found.tails == {1: ((2, 3),)}
    assert found.at([0, 1, 2, 3], 1) and not found.at([0, 1, 2, 0], 1)


def test_too_many_biases_are_refused() -> None:
    with pytest.raises(RequestError, match="512"):
        Sampling(logit_bias=dict.fromkeys(range(513), 1.0))
    for bad in ({-1: 1.0}, {3: math.nan}, {3: math.inf}):
        with pytest.raises(RequestError, match="logit_bias"):
            Sampling(logit_bias=bad)


def test_falling_weights() -> None:
    found = weights(-np.arange(0, 30, 0.01, dtype=np.float32)).tolist()
    assert all(a >= b for a, b in pairwise(found))
