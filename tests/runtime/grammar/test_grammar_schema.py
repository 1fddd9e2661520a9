"""Schemas: everything that can't be enforced is refused by its JSON pointer, in bounded time (H07)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import toy_vocab
from grammar_cases import SCHEMAS

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.grammar import AnyJson, JsonSchema, Lark, ToolCallGrammar, ToolSchema, compile_grammar
from satchel.runtime.grammar.schema import HINTS


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(toy_vocab.byte_level())


def deep(key: str, count: int) -> Any:
    schema: Any = {}
    for _ in range(count):
        schema = {key: [schema]}
    return schema


ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
REFUSED: list[tuple[str, Any, str]] = [
    ("H07 ref cycle", {"$ref": "#"}, "at #:"),
    (
        "H07 ref cycle of two",
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "at #/$defs/a",
    ),
    ("H07 cycle through anyOf", {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "itself"),
    ("H07 cycle without base", ENDLESS, "at #"),
    ("H07 cycle of items", {"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "endless"),
    ("H07 ref to http", {"items": {"$ref": "http://example.com/x"}}, "#/items/$ref"),
    ("H07 ref to nothing", {"$ref": "#/$defs/no"}, "#/$ref"),
    ("H07 ref into a value", {"const": {"a": {}}, "items": {"$ref": "#/const/a"}}, "#/items/$ref"),
    ("H07 catastrophic pattern", {"properties": {"x": {"pattern": "(a+)+$"}}}, "#/properties/x/pattern"),
    ("H07 catastrophic key pattern", {"patternProperties": {"(a*)*b": {}}}, "#/patternProperties/(a*)*b"),
    ("H07 pattern null", {"pattern": None}, "#/pattern"),
    ("H07 look-ahead", {"pattern": "(?=a)b"}, "#/pattern"),
    ("H07 minItems", {"minItems": 10**9}, "#/minItems"),
    ("H07 minItems negative", {"minItems": -1}, "#/minItems"),
    ("H07 minItems true", {"minItems": True}, "#/minItems"),
    ("H07 100,000 properties", {"properties": {f"p{i}": {} for i in range(10**5)}}, "#/properties"),
    ("H07 deep anyOf", deep("anyOf", 400), "#/anyOf/0/anyOf/0"),
    # CPython's parser refuses so many levels up to 3.13, and reads them from 3.14 on.
    ("H07 deep anyOf as text", '{"anyOf":[' * 10**4 + "{}" + "]}" * 10**4, "deep"),
    ("H07 unknown type", {"type": "nope"}, "#/type"),
    ("no type at all", {"type": []}, "#/type"),
    ("unhashable type", {"type": [{}]}, "#/type"),
    ("unknown format", {"format": "nope"}, "#/format"),
    ("misspelt keyword", {"properties": {"a": {"minlength": 3}}}, "#/properties/a/minlength"),
    ("settings of the library", {"x-guidance": {"lenient": True}, "not": {}}, "#/x-guidance"),
    ("pointer escapes", {"properties": {"a/b~": {"not": {}}}}, "#/properties/a~1b~0/not"),
    ("items as a list", {"items": [{}]}, "prefixItems"),
    (
        "not disjoint",
        {"properties": {"x": {"oneOf": [{"minimum": 1}, {"type": "integer"}]}}},
        "#/properties/x",
    ),
    (
        "minimum over maximum",
        {"items": {"minimum": 3, "maximum": 2, "type": "integer"}, "minItems": 1, "type": "array"},
        "#/items",
    ),
    ("minLength over maxLength", {"minLength": 3, "maxLength": 2}, "#/minLength"),
    ("infinite number", {"minimum": float("1e400")}, "JSON"),
    ("no value", False, "at #"),
    ("empty enum", {"enum": []}, "#/enum"),
    ("empty anyOf", {"anyOf": []}, "#/anyOf"),
    ("required twice", {"required": ["a", "a"]}, "#/required"),
    ("keys that may stand twice", {"type": "object", "minProperties": 2}, "#/minProperties"),
    ("an id inside", {"items": {"$id": "x"}}, "#/items/$id"),
    ("no schema", {"items": 3}, "#/items"),
    ("not JSON", "{", "line 1"),
    ("a key twice", '{"type": "null", "type": "string"}', "twice"),
    ("NaN", '{"minimum": NaN}', "NaN"),
    ("a list", "[]", "at #"),
    ("half a surrogate pair", {"const": "\ud800"}, "surrogate"),
]


@pytest.mark.parametrize(("schema", "place"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused_with_its_place(tokenizer: Tokenizer, schema: Any, place: str) -> None:
    with pytest.raises(RequestError) as error:
        compile_grammar(tokenizer, JsonSchema(schema))
    assert place in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("keyword", sorted(HINTS))
def test_each_known_but_unsupported_keyword_is_refused_with_a_hint(
    tokenizer: Tokenizer, keyword: str
) -> None:
    value = True if keyword in ("uniqueItems", "nullable") else {}
    with pytest.raises(RequestError, match=r"is not supported: \w+") as error:
        compile_grammar(tokenizer, JsonSchema({"items": {keyword: value}}))
    assert f"#/items/{keyword}:" in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        {
            "title": "T",
            "description": "d",
            "default": 1,
            "examples": [],
            "$schema": "x",
            "$id": "y",
            "type": "null",
        },
        {"$comment": "c", "deprecated": True, "readOnly": False, "uniqueItems": False, "type": "null"},
        '{"type": "null"}',
        {"enum": list(range(5000))},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(300)}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "object", "additionalProperties": {"$ref": "#"}},
    ],
)
def test_accepted(tokenizer: Tokenizer, schema: Any) -> None:
    assert compile_grammar(tokenizer, JsonSchema(schema)).constraint().finished is False


WRONG: list[tuple[str, str]] = [
    ("object", "[]"),
    ("object", '{"a": 1'),
    ("object", '{"a": NaN}'),
    ("short string", '"abcdef"'),
    ("pattern", '"ab-12x"'),
    ("pattern inside", '"aab"x'),
    ("integer", "121"),
    ("integer", "1.5"),
    ("number", "0.4999999999999999999999"),
    ("steps", "8"),
    ("tenths", "0.31"),
    ("enum", '"blue"'),
    ("const", '{"kind": "x", "list": [1.5, 2]}'),
    ("pair", '["a"]'),
    ("pair", '["a", 1, 2]'),
    ("person", '{"name": "", "age": 3}'),
    ("person", '{"name": "x", "age": 3, "more": 1}'),
    ("list", '{"value": 1, "next": {"value": 2}}'),
    ("all of", '{"x": 1}'),
    ("by pattern", '{"n_a": true}'),
    ("by pattern", '{"other": 1}'),
    ("values", '{"a": "b"}'),
    ("uuid", '"12"'),
    ("address", '"1.2.3"'),
]


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_a_wrong_text_is_seen_by_the_check(tokenizer: Tokenizer, name: str, text: str) -> None:
    assert compile_grammar(tokenizer, JsonSchema(SCHEMAS[name])).check(text) != ""


RIGHT: list[tuple[str, str]] = [
    ("tenths", "0.3"),
    ("tenths", "1" * 60 + ".7"),
    ("number", "2.2499999999999999999999"),
    ("steps", "70"),
    ("person", '{"name": "é", "age": 150, "tags": []}'),
    ("list", '{"value": 1, "next": {"value": 2, "next": null}}'),
    ("by pattern", '{"n_a": 1, "s_a": true}'),
    ("anything", "[" * 200 + "]" * 200),
    ("open integer", "9" * 5000),
]


@pytest.mark.parametrize(("name", "text"), RIGHT)
def test_a_right_text_passes_the_check(tokenizer: Tokenizer, name: str, text: str) -> None:
    assert compile_grammar(tokenizer, JsonSchema(SCHEMAS[name])).check(text) == ""


def test_an_escape_can_not_smuggle_a_key_in(tokenizer: Tokenizer) -> None:
    grammar = compile_grammar(
        tokenizer, JsonSchema({"properties": {"a": {"type": "integer"}}, "type": "object"})
    )
    assert "not of type" in grammar.check('{"\\u0061": "x"}')
    constraint = grammar.constraint()
    with pytest.raises(RequestError, match="not allowed"):
        for char in '{"\\u0061"':
            constraint.accept(tokenizer.encode(char, bos=False)[0])


def test_json_nested_too_deeply_is_not_called_valid(tokenizer: Tokenizer) -> None:
    text = "[" * 10**5 + "]" * 10**5
    assert "deeply" in compile_grammar(tokenizer, AnyJson(anything=True)).check(text)


def test_a_pattern_is_checked_in_linear_time(tokenizer: Tokenizer) -> None:
    """Four loops over the same letters: a backtracking matcher would take hours."""
    schema = JsonSchema({"type": "string", "pattern": "^[a-z]*[a-y]*[a-x]*[a-w]*0$"})
    assert compile_grammar(tokenizer, schema).check(json.dumps("a" * 20_000)) != ""


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    "text",
    [
        *(
            f'{{"{key}": {HUGE}}}'
            for key in ("minimum", "exclusiveMaximum", "multipleOf", "const", "maxLength")
        ),
        f'{{"enum": [{{"a": -{HUGE}}}]}}',
        '{"const": 1e400}',
        '{"minimum": 1e400}',
    ],
)
def test_a_number_of_a_schema_out_of_range_is_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError, match="the JSON schema"):
        compile_grammar(tokenizer, JsonSchema(text))


@pytest.mark.parametrize(
    "number", ["1e99999999999999999999", "-0.0E-99999999999999999999", "9" * 5000 + "e9" * 2]
)
def test_a_number_of_an_answer_out_of_range_is_no_json(tokenizer: Tokenizer, number: str) -> None:
    grammar = compile_grammar(tokenizer, JsonSchema({"type": "array", "items": {"type": "number"}}))
    assert "not JSON" in grammar.check(f"[1, {number}]")


@pytest.mark.parametrize("number", [-(1 << 63), 1 << 63, (1 << 53) + 1, -(1 << 53) - 1])
@pytest.mark.parametrize(
    "schema", ['{{"const": {}}}', '{{"enum": ["x", {}]}}', '{{"const": {{"a": [[{}]]}}}}']
)
def test_a_constant_that_no_mask_can_hold_is_refused(tokenizer: Tokenizer, schema: str, number: int) -> None:
    """-2^63 ended the process: it may not come as far as the compiler, in any spec that has schemas."""
    text = schema.format(number)
    for spec in (
        JsonSchema(text),
        Lark(f"start: %json {text}"),
        ToolCallGrammar([ToolSchema("f", {"type": "object", "properties": {"a": json.loads(text)}})]),
    ):
        with pytest.raises(RequestError, match=r"whole numbers up to 2\^53"):
            compile_grammar(tokenizer, spec)


def test_the_largest_constants_are_what_they_are(tokenizer: Tokenizer) -> None:
    for number in (1 << 53, -(1 << 53)):
        assert compile_grammar(tokenizer, JsonSchema({"const": number})).check(str(number)) == ""
