"""Structured output of the bundled model: answers satisfy schemas and other grammars; truncated ones have
notes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grammar_cases import SCHEMAS

from satchel.errors import RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.grammar import (
    AnyJson,
    Choice,
    Gbnf,
    Grammar,
    JsonSchema,
    Regex,
    ToolCallGrammar,
    ToolSchema,
    compile_grammar,
)
from satchel.runtime.grammar.verdict import judge
from satchel.runtime.sampling import GREEDY, Sampling

pytestmark = pytest.mark.model
ASK = [{"role": "user", "content": "Describe a person, in JSON."}]


@pytest.fixture(scope="module", params=("thread", "process"))
def model(bundled_model: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    with Model.load(bundled_model, context=512, slots=4, worker=request.param) as loaded:
        yield loaded


@pytest.mark.parametrize("name", SCHEMAS)
def test_thirty_schemas_are_satisfied(model: Model, name: str) -> None:
    reply = model.chat(ASK, grammar=JsonSchema(SCHEMAS[name]), sampling=GREEDY, max_tokens=120)
    text = reply.read()
    grammar = compile_grammar(model.tokenizer, JsonSchema(SCHEMAS[name]))
    if reply.stats.finish == "stop":
        json.loads(text)
        assert grammar.check(text) == "" and reply.stats.reason == ""
    else:
        assert reply.stats.finish == "length"
        assert (grammar.check(text) != "") == ("complete" in reply.stats.reason)


def test_an_answer_that_is_cut_says_so(model: Model) -> None:
    reply = model.chat(ASK, grammar=JsonSchema(SCHEMAS["person"]), sampling=GREEDY, max_tokens=3)
    reply.read()
    assert reply.stats.finish == "length" and "complete" in reply.stats.reason


def test_a_stop_string_inside_says_so(model: Model) -> None:
    reply = model.chat(ASK, grammar=JsonSchema(SCHEMAS["person"]), sampling=GREEDY, stop=[":"])
    assert ":" not in reply.read() and "stop string ':'" in reply.stats.reason


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        (Choice(["yes", "no"]), ("yes", "no")),
        (Regex("(?:ab){2}"), ("abab",)),
        (Regex(" x"), (" x",)),
        (Gbnf('root ::= "<" root ">" | "x"'), None),
    ],
)
def test_other_grammars(model: Model, spec: Any, texts: tuple[str, ...] | None) -> None:
    for seed in range(3):
        reply = model.chat(ASK, grammar=spec, sampling=Sampling(temperature=2.0, seed=seed), max_tokens=40)
        text = reply.read()
        if texts is not None:
            assert text in texts
        if reply.stats.finish == "stop":
            assert compile_grammar(model.tokenizer, spec).check(text) == ""


def test_a_tool_is_called(model: Model) -> None:
    switch = {"properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
    tool = ToolSchema("set", switch)
    text = model.chat(ASK, grammar=ToolCallGrammar([tool]), sampling=GREEDY, max_tokens=60).read()
    found = json.loads(text)
    assert found["name"] == "set" and found["arguments"]["on"] in (True, False)


def test_held_and_free_answers_run_together(model: Model) -> None:
    """A batch changes no answer, and the unconstrained one is as it is alone."""

    def ask(spec: Any) -> Any:
        return model.chat(ASK, grammar=spec, sampling=GREEDY, max_tokens=24)

    specs = [None, JsonSchema(SCHEMAS["person"]), Choice(["yes", "no"]), AnyJson()]
    alone = [ask(spec).read() for spec in specs]
    replies = [ask(spec) for spec in specs]
    for reply in replies:
        reply.start()
    assert [reply.read() for reply in replies] == alone


def test_a_wrong_spec_is_refused_before_anything_runs(model: Model) -> None:
    with pytest.raises(RequestError, match="#/not"):
        model.generate("x", grammar=JsonSchema({"not": {}}))


def test_an_answer_that_ended_without_being_valid_is_an_error(model: Model) -> None:
    grammar: Grammar = compile_grammar(model.tokenizer, JsonSchema(SCHEMAS["integer"]))
    with pytest.raises(RequestError, match="does not satisfy its grammar"):
        judge(grammar, "130", "stop")
    assert judge(grammar, "120", "stop") == "" and judge(grammar, "1.", "cancelled") == ""
