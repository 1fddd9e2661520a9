"""Options of sampling as llama.cpp has them: order by name and by letter, biases, what is refused."""

from __future__ import annotations

import math

import pytest

from satchel.cli.sampling import SamplingOptions, bias_of
from satchel.cli.usage import UsageError
from satchel.runtime.sampling import ORDER, Sampling
from satchel.runtime.sampling.record import chain


def test_nothing_given_is_the_library_s_default() -> None:
    assert SamplingOptions().sampling() == Sampling()
    assert chain(Sampling()) == ("top_k", "top_p", "min_p", "temperature")


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ({"samplers": "temperature;top-k"}, ("temperature", "top_k")),
        ({"samplers": " min_p ; typ_p "}, ("min_p", "typical")),
        ({"sequence": "edskypmxt"}, ORDER),
        ({"sequence": "tk"}, ("temperature", "top_k")),
    ],
)
def test_the_order_is_the_user_s(given: dict[str, str], order: tuple[str, ...]) -> None:
    assert SamplingOptions(**given).sampling().samplers == order  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "pair"), [("15043+1", (15043, 1.0)), ("2-inf", (2, -math.inf)), ("7-0.5", (7, -0.5))]
)
def test_a_bias(text: str, pair: tuple[int, float]) -> None:
    assert bias_of(text) == pair
    assert SamplingOptions(bias=[text]).sampling().bias_pairs == (pair,)


@pytest.mark.parametrize(
    "given",
    [
        {"samplers": "top_k;top_k"},
        {"samplers": "best"},
        {"sequence": "kz"},
        {"bias": ["x+1"]},
        {"bias": ["5"]},
        {"bias": ["5+nan"]},
        {"mirostat": 3},
        {"typical_p": 1.5},
        {"dry_allowed_length": -1},  # H05
        {"repeat_last_n": -2},  # H05
        {"temperature": math.nan},
    ],
)
def test_wrong_values_are_wrong_use(given: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        SamplingOptions(**given).sampling()  # type: ignore[arg-type]
