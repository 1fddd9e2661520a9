"""The check of a finished answer: jsonschema's verdict, at a bounded cost for any schema and value."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llguidance")
pytest.importorskip("jsonschema")

import jsonschema

from satchel.errors import RequestError
from satchel.runtime.grammar import validate
from satchel.runtime.grammar.check import json_check
from satchel.runtime.grammar.sources import check_spec
from satchel.runtime.grammar.spec import JsonSchema

SCALARS = st.sampled_from([None, True, False, 0, 1, -1, 2, 1.5, 0.1, 1e3, "", "a", "ab", "b1"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
COUNTS = st.integers(0, 3)
NUMBERS = st.sampled_from([-1, 0, 1, 1.5, 2, 0.1])
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), COUNTS),
    **dict.fromkeys(("minProperties", "maxProperties"), COUNTS),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
    "multipleOf": st.sampled_from([1, 0.1, 0.5, 2]),
    "pattern": st.sampled_from(["^a", "b$", "[0-9]", "^(a|ab)$"]),
}


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    whole = {
        **LEAVES,
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("items", "additionalProperties"), inner),
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b", "[ab]"]), inner, max_size=2),
        "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y"]),
    }
    return st.fixed_dictionaries({}, optional=whole).filter(lambda schema: len(schema) < 6)


PLAIN = st.fixed_dictionaries({}, optional=LEAVES).filter(lambda schema: len(schema) < 4) | st.booleans()
SCHEMAS = st.recursive(PLAIN, schemas_of, max_leaves=6)


@given(st.one_of(SCHEMAS), PLAIN, PLAIN, VALUES)
def test_the_verdict_is_that_of_jsonschema(schema: Any, x: Any, y: Any, value: Any) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"x": x, "y": y}}
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    number = json.loads(json.dumps(value), parse_float=Decimal)
    wanted = jsonschema.Draft202012Validator(exact).is_valid(number)
    assert (json_check(schema)(json.dumps(value)) == "") == wanted


def doubling(levels: int, key: str, last: object) -> dict[str, Any]:
    """a0 refers to a1 twice, a1 to a2 twice ...: 2^levels paths to the end."""
    steps = {f"a{i}": {key: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**steps, f"a{levels}": last}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize("key", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("value", ["5", '"x"', '{"a": [1]}'])
def test_references_that_double_take_linear_time(key: str, value: str) -> None:
    json_check(doubling(1000, key, {"type": "integer"}))(value)  # 2^1000 steps without memory


def test_doubling_through_the_items_too() -> None:
    steps = {f"a{i}": {"items": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2}} for i in range(300)}
    schema = {"$defs": {**steps, "a300": {"type": "integer"}}, "$ref": "#/$defs/a0"}
    assert json_check(schema)("[" * 300 + "1" + "]" * 300) == ""
    assert "not of type" in json_check(schema)("[" * 300 + '"x"' + "]" * 300)


def test_a_chain_of_references_needs_no_recursion() -> None:
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(4900)}
    schema = {"$defs": {**chain, "a4900": {"type": "string"}}, "$ref": "#/$defs/a0"}
    assert json_check(schema)('"x"') == ""
    assert "not of type" in json_check(schema)("1")


COSTLY: dict[str, tuple[Any, Any]] = {
    "enum of lists": ({"items": {"enum": [[i] for i in range(2000)]}}, [[1999]] * 2000),
    "schemas times values": ({"items": {"allOf": [{}] * 500}}, [1] * 5000),
    "patterns times keys": (
        {"patternProperties": {f"^a{i}": {} for i in range(500)}},
        {f"a{i}": 1 for i in range(5000)},
    ),
    "a long text": ({"pattern": "^(a|b)*$"}, "ab" * 600_000),
    "required names": (
        {"items": {"required": [f"a{i}" for i in range(2000)]}},
        [{f"a{i}": 1 for i in range(2000)}] * 300,
    ),
    "constants": ({"items": {"const": list(range(2000))}}, [list(range(2000))] * 600),
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_would_cost_more_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "MAX_STEPS", 20_000)
    schema, value = COSTLY[name]
    with pytest.raises(RequestError, match="20,000 steps: make the schema simpler"):
        validate.Validator(schema).error(value)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "MAX_MEMO", 10)
    schema = {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "integer"}}}
    run = validate._Run(validate.Validator(schema))
    assert run.verdict([int(f"9{i:05}") for i in range(1000)]) is None
    assert len(run._memo) <= 10


@pytest.mark.parametrize(
    "text", ["1e99999999999999999999999", "[-1e-99999999999999999999999]", "1" * 5000, "NaN", "[" * 100_000]
)
def test_numbers_and_depths_beyond_all_bounds_are_a_verdict(text: str) -> None:
    assert isinstance(json_check({"multipleOf": 0.1})(text), str)


@pytest.mark.parametrize("number", ["1e999999999", "-7e-999999999", "1" * 4000, "0." + "1" * 19_000])
def test_huge_numbers_cost_little(number: str) -> None:
    check = json_check({"type": "number", "multipleOf": 0.1, "minimum": -5, "enum": [1, 2.5]})
    assert check(number).startswith("at #: ")


def test_a_message_quotes_little_of_a_large_value() -> None:
    for value in ([["x" * 1000] * 1000], "x" * 1_000_000, {"x" * 1_000_000: 1}):
        closed = {"additionalProperties": False, "items": {"type": "null"}}
        assert len(validate.Validator({"type": "integer"}).error(value)) < 300
        assert len(validate.Validator(closed).error(value)) < 500
    assert len(json_check({"additionalProperties": {"type": "null"}})(json.dumps({"x" * 100_000: 1}))) < 500


def refs(*names: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": f"#/$defs/{name}"} for name in names]}


LAST = {"type": "string", "enum": ["yes"]}


def rising(make: Any, names: str = "a") -> dict[str, Any]:
    """a0 is made of a1, which is made of a2 ..., the 60th of LAST."""
    steps = {f"{name}{i}": make(i + 1) for name in names for i in range(60)}
    return {"$defs": {**steps, **{f"{name}60": LAST for name in names}}, "$ref": "#/$defs/a0"}


def entangled(i: int) -> dict[str, Any]:
    return {f"p{j}": {"$ref": f"#/$defs/d{(i * i + 31 * j) % 200}"} for j in range(20)}


MERGED: dict[str, dict[str, Any]] = {
    "twice": doubling(60, "allOf", LAST),
    "by two names": rising(lambda i: refs(f"a{i}", f"b{i}"), "ab"),
    "through properties": rising(lambda i: {"properties": {"x": refs(f"a{i}", f"a{i}")}}),
    "through items": rising(lambda i: {"items": refs(f"a{i}", f"a{i}")}),
    "in a circle": {"$defs": {"a": {"properties": {"p": refs("a", "a")}}}, "$ref": "#/$defs/a"},
    "entangled": {
        "$defs": {f"d{i}": {"properties": entangled(i)} for i in range(200)},
        **refs("d0", "d1", "d2", "d3", "d4"),
    },
}


@pytest.mark.parametrize("name", MERGED)
def test_a01_schemas_that_would_be_merged_without_end_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="apply to one value by allOf"):
        check_spec(JsonSchema(MERGED[name]))


def test_usual_schemas_are_merged() -> None:
    base = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(50)}}
    wide = {"anyOf": [{"anyOf": [{"const": f"{i} {j}"} for j in range(40)]} for i in range(40)]}
    own = {"properties": {"x": wide, "y": {"$ref": "#/$defs/base"}}}
    check_spec(JsonSchema({"$defs": {"base": base}, "allOf": [{"$ref": "#/$defs/base"}, own]}))
