"""Options of requests that leave them out: the load option `defaults`, the file's, the program's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_model import write_chat_model
from tiny_file import write_model

from satchel.errors import RequestError
from satchel.runtime.api.defaults import read_file
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.grammar.spec import Choice
from satchel.runtime.sampling import Sampling


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return write_model(path, general__sampling__temp=0.25, general__sampling__top_k=7)


def loaded(file: Path, **options: Any) -> Model:
    return Model.load(file, context=64, threads=1, **options)


def test_the_file_s_options_hold_where_nothing_else_does(file: Path) -> None:
    with loaded(file) as model:
        reply = model.generate("hi", max_tokens=1)
        assert (reply.sampling.temperature, reply.sampling.top_k) == (0.25, 7)
        assert reply.sampling.top_p == Sampling().top_p
        assert model.generate("hi", max_tokens=1, sampling=Sampling(top_k=3)).sampling.temperature == 0.8


def test_the_load_s_options_go_before_the_file_s(file: Path) -> None:
    chosen = {"temperature": 0.5, "max_tokens": 2, "stop": ("x",), "ignore_eos": True}
    with loaded(file, defaults=chosen) as model:
        reply = model.generate("hi")
        assert (reply.sampling.temperature, reply.sampling.top_k) == (0.5, 7)
        assert (reply.options.max_tokens, reply.options.stop) == (2, ("x",))
        assert model.generate("hi", max_tokens=1, stop=()).options.stop == ()
        assert dict(model.request_defaults.of_file) == {"top_k": 7}


@pytest.mark.parametrize("reasoning", [True, 100, "low"])
def test_reasoning_that_the_template_lacks_is_a_note(file: Path, reasoning: bool | int | str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with loaded(file, defaults={"reasoning": reasoning}) as model:
        for _ in range(2):
            assert model.chat(messages, max_tokens=1).prompt
        assert sum("the default reasoning" in note for note in model.notes) == 1
        with pytest.raises(RequestError, match="reasoning"):
            model.chat(messages, reasoning=reasoning)


def test_reasoning_is_that_of_the_load(tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "m.gguf")
    messages = [{"role": "user", "content": "hi"}]
    with loaded(path, defaults={"reasoning": False}) as model:
        assert model.style.thinks and model.notes == []
        off, on = (
            model.detokenize(model.chat(messages, max_tokens=1, **how).prompt, special=True)
            for how in ({}, {"reasoning": True})
        )
        assert off.endswith("<think>\n\n</think>\n\n") and not on.endswith("</think>\n\n")


def test_a_default_grammar_holds_where_a_request_has_none(file: Path) -> None:
    defaults = {"grammar": Choice(["yes", "no"]), "temperature": 0}
    with Model.load(file, context=512, threads=1, defaults=defaults) as model:
        messages = [{"role": "user", "content": "hi"}]
        assert model.generate("hi").read() in ("yes", "no")
        assert model.chat(messages, on_overflow="shift").read() in ("yes", "no")
        assert model.generate("hi", grammar=Choice(["maybe"])).read() == "maybe"
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        assert model.chat(messages, tools=[tool], max_tokens=1).options.grammar is None


def test_a_worker_process_has_them_too(file: Path) -> None:
    with loaded(file, defaults={"top_k": 1, "max_tokens": 3}, worker="process") as model:
        texts = {model.generate("hi").read() for _ in range(2)}
        assert len(texts) == 1


def test_all_keys_of_a_file_are_read() -> None:
    values: dict[str, Any] = {
        "sequence": "top_k;temperature",
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "xtc_probability": 0.2,
        "xtc_threshold": 0.3,
        "temp": 0.4,
        "penalty_last_n": 32,
        "penalty_repeat": 1.1,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
    }
    found, notes = read_file({f"general.sampling.{key}": value for key, value in values.items()})
    assert notes == [] and len(found) == len(values)
    made = Sampling(**found)
    assert (made.samplers, made.repeat_last_n, made.repeat_penalty) == (("top_k", "temperature"), 32, 1.1)


def test_a_value_of_the_file_without_a_meaning_is_noted(tmp_path: Path) -> None:
    keys = {"general__sampling__temp": -3.0, "general__sampling__sequence": "best"}
    with loaded(write_model(tmp_path / "m.gguf", **keys)) as model:
        assert model.request_defaults.sampling == Sampling()
        assert sum("general.sampling." in note for note in model.notes) == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temprature": 1}, "'temprature' is no option of a request"),
        ({"temperature": -1}, "temperature is -1: expected 0 to 100"),
        ({"on_overflow": "never"}, "on_overflow is 'never'"),
    ],
)
def test_wrong_defaults_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        Options(defaults=values)
