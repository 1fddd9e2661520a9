"""The definition of sampling: each option does what it says, and the random number is a function of (seed,
position).
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.runtime.device.device import SAMPLING
from satchel.runtime.layers.arch import SAMPLING_BYTES
from satchel.runtime.option import options_of
from satchel.runtime.sampling import GREEDY, NAMES, Sampling, penalized, sample_row, uniform
from satchel.runtime.sampling.chain import CODE, STAGES
from satchel.runtime.sampling.options import SAMPLERS
from satchel.runtime.sampling.record import record

RING = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)


HEADER = Path(__file__).parents[3] / "cext" / "kernels" / "sample_stages.k.h"


def draw(logits, sampling: Sampling, pos: int = 3) -> int:
    params = np.array([record(sampling)], SAMPLING)[0]
    return sample_row(np.asarray(logits, np.float32), RING, pos, params)[0]


def share(logits, sampling: Sampling, n: int = 4000) -> np.ndarray:
    """How often each token is drawn over n seeds."""
    drawn = [draw(logits, replace(sampling, seed=i, repeat_last_n=0)) for i in range(n)]
    return np.bincount(drawn, minlength=len(logits)) / n


PLAIN = Sampling(temperature=1, top_k=0, top_p=1, min_p=0, seed=0)
LOGITS = np.log([0.5, 0.25, 0.15, 0.1])


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert draw([1, 5, 5, 2, *[0] * 6], GREEDY) == 1
    assert draw([-np.inf, -3, *[-np.inf] * 8], GREEDY) == 1


def test_plain_sampling_follows_the_distribution() -> None:
    counts = share(LOGITS, PLAIN) * 4000
    expected = np.array([0.5, 0.25, 0.15, 0.1]) * 4000
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 16.3, "0.1 % point of chi-square with 3 degrees of freedom"


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1, top_k=2, top_p=1, min_p=0), {0, 1}),
        (Sampling(1, top_k=1, top_p=1, min_p=0), {0}),
        (Sampling(1, top_k=0, top_p=0.6, min_p=0), {0, 1}),
        (Sampling(1, top_k=0, top_p=0.0, min_p=0), {0}),
        (Sampling(1, top_k=0, top_p=1, min_p=0.4), {0, 1}),
        (Sampling(1, top_k=0, top_p=1, min_p=1.0), {0}),
        (Sampling(1, top_k=100, top_p=1, min_p=0), {0, 1, 2, 3}),
    ],
)
def test_what_each_filter_keeps(sampling: Sampling, kept: set[int]) -> None:
    assert set(np.flatnonzero(share(LOGITS, sampling, 400))) == kept


def test_temperature_sharpens_and_flattens() -> None:
    cold, warm = (share(LOGITS, Sampling(t, top_k=0, top_p=1, min_p=0))[0] for t in (0.5, 2.0))
    assert cold > 0.6 and warm < 0.42


def test_penalties_count_and_divide() -> None:
    logits = np.array([2.0, -2.0, 1.0], np.float32)
    out = penalized(logits, np.array([0, 1, 1]), 2.0, 0.5, 0.25)
    assert out.tolist() == [2 / 2 - 0.25 - 0.5, -2 * 2 - 0.5 - 0.5, 1.0]
    assert logits[0] == 2.0, "the logits themselves stay"


def test_penalties_look_back_as_far_as_told() -> None:
    logits = np.zeros(10, np.float32)
    logits[3], logits[1] = 1, 0.9
    near, far = (Sampling(0, presence_penalty=5, repeat_last_n=n, seed=0) for n in (3, 4))
    assert draw(logits, near) == 3, "position 0 held token 3, four back"
    assert draw(logits, far) not in (1, 3)


@pytest.mark.parametrize("last_n", [len(RING), len(RING) + 1, 3 * len(RING), 64, 2**31 - 1, -1])
def test_penalties_count_what_the_ring_holds_once(last_n: int) -> None:
    """At position 19 the ring has gone around twice: each of its places counts once."""
    logits = np.zeros(10, np.float32)
    logits[1], logits[9] = 2.5, 1  # token 1 stands there twice, 9 once
    sampling = Sampling(0, frequency_penalty=1, repeat_last_n=last_n, seed=0)
    assert draw(logits, sampling, pos=19) == 1
    assert draw(logits, replace(sampling, frequency_penalty=1.3), pos=19) == 0


def test_one_seed_and_position_give_one_number() -> None:
    numbers = [uniform(s, p) for s in (0, 1, 2**64 - 1) for p in range(1000)]
    assert len(set(numbers)) == 3000 and all(0 <= n < 1 for n in numbers)
    assert uniform(7, 9) == uniform(7, 9)
    assert abs(np.mean(numbers) - 0.5) < 0.02


@pytest.mark.parametrize("name", NAMES)
def test_out_of_range_is_refused_by_name(name: str) -> None:
    one = options_of(Sampling)[name]
    for value in (one.low - 1, one.high * 2 + 1, float("nan")):
        with pytest.raises(RequestError, match=name):
            Sampling(**{name: value})


def test_a_record_has_the_numbers_of_each_stage_in_the_order_of_the_chain() -> None:
    options = Sampling(
        0.1, 2, 0.3, 0.4, 5, 6, 7, -1, 9, samplers=("temperature", "penalties", "top_k", "min_p", "xtc")
    )
    made = record(options)
    stages = ("temperature", "penalties", "top_k", "min_p", "end")  # xtc is off
    assert made["chain"]["stage"][: len(stages)].tolist() == [CODE[name] for name in stages]
    expected = [[0.1, 0, 1, 0], [5, 6, 7, -1], [2, 0, 0, 0], [0.4, 0, 0, 0], [0] * 4]
    assert made["chain"]["numbers"][: len(stages)].tolist() == np.array(expected, np.float32).tolist()
    assert (made["seed"], made["mirostat_mu"]) == (9, 10)


def test_a_record_is_made_once() -> None:
    options = Sampling(seed=1)
    assert record(options) is record(options)
    assert record(replace(options, top_k=3))["chain"]["numbers"][0, 0] == 3


def test_whole_numbers_beyond_those_that_a_float_holds_are_lowered_to_the_largest() -> None:
    made = record(Sampling(top_k=2**24 + 3, samplers=("top_k",)))
    assert made["chain"]["numbers"][0, 0] == 2**24


def test_the_numbers_of_samplers_are_ranged_options_and_fit_a_record() -> None:
    stages, numbers = SAMPLING["chain"].shape[0], SAMPLING["chain"].base["numbers"].shape[0]
    assert len(SAMPLERS) <= stages
    for name, one in SAMPLERS.items():
        assert set(one.numbers) <= set(NAMES) and len(one.numbers) <= numbers, name


def test_the_kernels_number_the_stages_as_the_definition_does() -> None:
    listed = re.search(r"#define SAMPLING_STAGES\(X\)((?:.*\\\n)*.*)", HEADER.read_text())
    assert listed is not None
    assert ("end", *re.findall(r"X\((\w+)\)", listed[1])) == STAGES


def test_a_graph_knows_the_size_of_a_record() -> None:
    """It is made without the compiled library."""
    assert SAMPLING.itemsize == SAMPLING_BYTES
