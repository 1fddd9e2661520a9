"""llama.cpp's sampling options: order by name and by letter, biases, refusals."""

from __future__ import annotations

import math

import pytest

from satchel.cli.groups import Group, Taking
from satchel.cli.sampling import SamplingOptions, bias_of
from satchel.cli.usage import UsageError
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.record import chain


def test_nothing_given_is_the_library_s_default() -> None:
    assert SamplingOptions().values() == {}
    assert SamplingOptions().sampling(Sampling(top_k=3)) == Sampling(top_k=3)
    assert chain(Sampling()) == ("top_k", "top_p", "min_p", "temperature")


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ({"samplers": "temperature;top-k"}, ("temperature", "top_k")),
        ({"samplers": " min_p ; typ_p "}, ("min_p", "typical")),
        (
            {"sequence": "edskypmxt"},
            ("penalties", "dry", "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temperature"),
        ),
        ({"sequence": "tk"}, ("temperature", "top_k")),
    ],
)
def test_the_order_is_the_user_s(given: dict[str, str], order: tuple[str, ...]) -> None:
    assert SamplingOptions(**given).sampling(Sampling()).samplers == order  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "pair"), [("15043+1", (15043, 1.0)), ("2-inf", (2, -math.inf)), ("7-0.5", (7, -0.5))]
)
def test_a_bias(text: str, pair: tuple[int, float]) -> None:
    assert bias_of(text) == pair
    assert SamplingOptions(bias=[text]).sampling(Sampling()).bias_pairs == (pair,)


@pytest.mark.parametrize(
    "given",
    [
        {"samplers": "top_k;top_k"},
        {"samplers": "best"},
        {"sequence": "kz"},
        {"bias": ["x+1"]},
        {"bias": ["5"]},
        {"bias": ["5+nan"]},
    ],
)
def test_wrong_values_are_wrong_use(given: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        SamplingOptions(**given).values()  # type: ignore[arg-type]


def test_a_flag_of_the_default_s_value_is_given_too() -> None:
    group = Group("g", SamplingOptions, Taking())
    unset = {p.name: p.default for p in group.parameters()}
    assert group.made(dict(unset)).values() == {}
    made = group.made(unset | {"g_temperature": 0.8, "g_seed": -1})
    assert made.sampling(Sampling(temperature=0.1, seed=7, top_k=3)) == Sampling(top_k=3)


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("mirostat", 3, "--mirostat"),
        ("typical_p", 1.5, "--typical"),
        ("dry_allowed_length", -1, "--dry-allowed-length"),  # H05
        ("repeat_last_n", -2, "--repeat-last-n"),  # H05
        ("temperature", math.nan, "--temp"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_flag(name: str, value: float, flag: str) -> None:
    group = Group("g", SamplingOptions, Taking())
    given = {p.name: p.default for p in group.parameters()}
    with pytest.raises(UsageError, match=f"^{flag}: {name} is {value}: expected"):
        group.made(given | {f"g_{name}": value})
