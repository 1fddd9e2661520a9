"""A request option is declared once: flags, body fields, range checks and docs are derived from its
declaration.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pydantic")

from pydantic import ValidationError

from satchel.cli.groups import Group as FlagGroup
from satchel.cli.groups import Taking
from satchel.cli.options import TextOptions
from satchel.cli.sampling import SamplingOptions
from satchel.cli.usage import UsageError
from satchel.errors import RequestError
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.option import Option, check_options, documented, option_field, options_of
from satchel.runtime.sampling import NAMES, Sampling
from satchel.runtime.sampling.logprobs import TOP
from satchel.server.fields import body_fields, body_values
from satchel.server.ollama.options import OllamaOptions
from satchel.server.openai.chat import ChatBody

DEFINITIONS = (Sampling, GenerateOptions)
MESSAGES = [{"role": "user", "content": "Hi"}]


@documented
@dataclass(frozen=True)
class Made:
    """Made-up options."""

    plain: int = 3
    ratio: float = option_field(0.5, "A ratio.", "--ratio", low=0, high=1, body=True)
    count: int | None = option_field(None, "A count.", "--count", low=0, body=("n", "count"), also={-1: None})
    mode: str = option_field("a", "A mode.", choices=("a", "b"), body=True)
    share: float = option_field(1.0, "A share.", above=0)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True)
class Group:
    own: bool = False
    made: Made = field(default_factory=Made)


FLAGS = FlagGroup("g", Group, Taking())


def test_a_group_has_a_parameter_for_each_flag() -> None:
    parameters = {p.name: p for p in FLAGS.parameters()}
    assert list(parameters) == ["g_own", "g_ratio", "g_count"]
    assert FLAGS.made({p.name: p.default for p in FLAGS.parameters()}) == Group()
    kind, stated = get_args(parameters["g_ratio"].annotation)
    assert (kind, stated.default, stated.help) == (float, "--ratio", "A ratio.")
    assert stated.envvar == "LLAMA_ARG_RATIO"


def test_a_flag_out_of_range_is_wrong_use() -> None:
    given = {p.name: p.default for p in FLAGS.parameters()} | {"g_count": -2}
    with pytest.raises(UsageError, match="--count: count is -2: expected 0 or more; leave it out"):
        FLAGS.made(given)


def test_a_body_has_the_names_the_range_and_the_choices() -> None:
    body = body_fields(Made)
    assert body_values(body.model_validate({}), Made) == {}
    assert body_values(body.model_validate({"count": -1, "ratio": 1}), Made) == {"count": None, "ratio": 1}
    assert body_values(body.model_validate({"n": 7, "mode": "b"}), Made) == {"count": 7, "mode": "b"}
    for wrong in ({"ratio": 1.5}, {"n": -2}, {"mode": "c"}, {"n": True}, {"ratio": "1"}):
        with pytest.raises(ValidationError):
            body.model_validate(wrong)
    assert body.model_json_schema()["properties"]["ratio"]["description"] == "A ratio."


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ratio", 1.5, "ratio is 1.5: expected 0 to 1"),
        ("ratio", math.nan, "ratio is nan: expected 0 to 1"),
        ("ratio", "1", "ratio is '1': expected 0 to 1"),
        ("ratio", None, "ratio is None: expected 0 to 1"),
        ("count", -1, "count is -1: expected 0 or more"),
        ("mode", "c", "mode is 'c': expected one of a, b"),
        ("share", 0, "share is 0: expected more than 0"),
        ("share", math.inf, "share is inf: expected more than 0"),
    ],
)
def test_a_value_out_of_range_has_one_text(name: str, value: Any, text: str) -> None:
    with pytest.raises(RequestError) as error:
        Made(**{name: value})
    assert str(error.value) == f"{text}; leave it out for the default"


def test_logprobs_are_limited_for_all() -> None:
    ChatBody.model_validate({"messages": MESSAGES, "logprobs": True, "top_logprobs": TOP})
    assert GenerateOptions(logprobs=TOP).logprobs == TOP
    with pytest.raises(ValidationError):
        ChatBody.model_validate({"messages": MESSAGES, "logprobs": True, "top_logprobs": TOP + 1})
    with pytest.raises(RequestError, match="logprobs is 21: expected -1 to 20"):
        GenerateOptions(logprobs=TOP + 1)


def test_a_number_of_numpy_is_a_number() -> None:
    assert Made(ratio=np.float32(0.5), count=np.int64(3)).count == 3  # type: ignore[arg-type]


def test_the_docstring_has_a_line_for_each_option() -> None:
    assert Made.__doc__ is not None and Made.__doc__.splitlines()[2:4] == [
        "    ratio: A ratio.",
        "    count: A count.",
    ]


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_every_field_is_an_option_that_its_users_can_derive(definition: type) -> None:
    assert list(options_of(definition)) == [f.name for f in fields(definition) if f.init]
    for name, one in options_of(definition).items():
        assert one.doc.endswith(".") and one.default is not MISSING, name
        if one.flags or one.body:
            assert one.kind in (bool, int, float, str), name
        if one.flags:
            assert one.default is not None or None in one.also.values(), name
        one.check(one.default)


def numbers() -> list[Option]:
    return [options_of(Sampling)[name] for name in NAMES]


def test_each_sampling_option_reaches_the_command_line_and_every_api() -> None:
    for one in numbers():
        value = one.low if one.default != one.low else one.high
        if one.kind is int:
            value = int(value)
        if one.flags:
            group = SamplingOptions({one.name: value})
            assert getattr(group.sampling(Sampling()), one.name) == value, one.name
        for key in one.body:
            chat = ChatBody.model_validate({"messages": MESSAGES, key: value})
            ollama = OllamaOptions.model_validate({key: value})
            for body in (chat, ollama):
                assert body.sampling_values()[one.name] == value, key
                assert not body.unknown


@given(st.sampled_from(numbers()), st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_body_takes_what_the_library_takes(one: Option, value: float) -> None:
    if one.kind is int:
        value = int(value)
    if value in one.also or not one.body:
        return
    try:
        Sampling(**{one.name: value})
        taken = True
    except RequestError:
        taken = False
    try:
        OllamaOptions.model_validate({one.body[0]: value})
    except ValidationError:
        assert not taken
    else:
        assert taken


def test_options_of_a_request_reach_the_library() -> None:
    group = FlagGroup("g", TextOptions, Taking())
    flags = {"g_ignore_eos": True, "g_max_tokens": -2, "g_reverse": ["a\\n"]}
    given = group.made({p.name: p.default for p in group.parameters()} | flags).generate_kwargs()
    assert (given["max_tokens"], given["ignore_eos"], given["stop"]) == (-1, True, ("a\n",))
    body = ChatBody.model_validate(
        {
            "messages": MESSAGES,
            "ignore_eos": True,
            "on_overflow": "shift",
            "speculative.n_max": 0,
            "include_stop_str_in_output": True,
        }
    )
    kwargs = body.generate_kwargs()
    assert (kwargs["ignore_eos"], kwargs["on_overflow"], kwargs["draft"]) == (True, "shift", 0)
    assert kwargs["include_stop_str_in_output"]
    GenerateOptions.of(**kwargs).checked()
