"""response_format: answers in JSON, and by a JSON schema."""

from __future__ import annotations

from typing import Any

from satchel.cli.conformance.expect import expect, fits, parsed, same
from satchel.cli.conformance.target import ConformanceTarget, joined, raised

PATH = "/v1/chat/completions"
AGE = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LETTERS = "naïve – 日本語 🎒"


def _response_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def schema(target: ConformanceTarget) -> None:
    """An answer by json_schema satisfies the schema."""
    asked = target.chat(response_format=_response_format(AGE), max_tokens=100)
    found = target.post(PATH, asked)["choices"][0]
    same("finish_reason", found["finish_reason"], "stop")
    value = parsed(found["message"]["content"], "the answer")
    fits(value, {"name": str, "age": int}, "the answer")
    same("its keys", sorted(value), ["age", "name"])


def json_object(target: ConformanceTarget) -> None:
    """An answer by json_object is a JSON object."""
    words = [{"role": "user", "content": "Give a JSON object with one short field."}]
    asked = target.chat(messages=words, response_format={"type": "json_object"}, max_tokens=200)
    found = target.post(PATH, asked)["choices"][0]
    # A small model may never close the object; it must be a valid prefix.
    if found["finish_reason"] == "length":
        expect(found["message"]["content"].lstrip().startswith("{"), "it does not begin with {")
    else:
        fits(parsed(found["message"]["content"], "the answer"), dict, "the answer")


def text(target: ConformanceTarget) -> None:
    """response_format text changes nothing."""
    found = target.post(PATH, target.chat(response_format={"type": "text"}))
    same("content", found["choices"][0]["message"]["content"], target.words)


def unknown_schema(target: ConformanceTarget) -> None:
    """A schema that can't be enforced is 400, not an answer that ignores it."""
    target.refused(PATH, target.chat(response_format=_response_format({"type": "nonsense"})))


def letters(target: ConformanceTarget) -> None:
    """No character is split between the chunks of a stream, however many bytes it has."""
    only = {"type": "object", "properties": {"a": {"enum": [LETTERS]}}, "required": ["a"]}
    asked = target.chat(
        response_format=_response_format(only | {"additionalProperties": False}), max_tokens=100
    )
    chunks = target.chunks(PATH, asked)
    expect("\ufffd" not in joined(chunks), "a chunk has half a character")
    same("the answer", parsed(joined(chunks), "the answer"), {"a": LETTERS})


def client_parse(target: ConformanceTarget) -> None:
    """openai: chat.completions.parse() gives an object of a pydantic model."""
    found = target.openai.chat.completions.parse(**target.chat(response_format=_model(), max_tokens=100))
    fits(found.choices[0].message.parsed.count, int, "parsed.count")


def client_parse_cut(target: ConformanceTarget) -> None:
    """openai: parse() of an answer that was cut raises LengthFinishReasonError."""
    asked = target.chat(response_format=_model(), max_tokens=1)
    cut = target.official("openai").LengthFinishReasonError
    raised(cut, lambda: target.openai.chat.completions.parse(**asked), "parse()")


def _model() -> Any:
    """A pydantic model; the openai package brings pydantic along."""
    import pydantic

    return pydantic.create_model("Counted", count=(int, ...), sure=(bool, ...))
