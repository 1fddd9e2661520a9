"""JSON schemas read before they are compiled: every keyword is known and of the right kind, or refused by its
JSON pointer. Nothing is ignored but annotations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from satchel.errors import RequestError
from satchel.runtime.grammar.ambiguity import is_catastrophic
from satchel.runtime.grammar.regex import parse

MAX_SCHEMAS = 5_000  # schemas in a schema
MAX_DEPTH = 60  # of schemas in each other
MAX_NAMED = 1_000  # properties of an object; time to compile grows with their square
EXACT = 2**53  # up to it each whole number is a float64
MAX_SEVERAL = 500  # schemas of anyOf and its like
MAX_POINTER = 4_000  # characters
MAX_COUNT = 1 << 16  # of minItems and its like: more tokens than an answer has
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
ANNOTATIONS = {
    "title", "description", "default", "examples", "example", "$comment", "$schema", "deprecated", "readOnly",
    "writeOnly", "discriminator",
}  # fmt: skip
HINTS = {
    "not": "say what is allowed instead",
    "if": "use anyOf with the cases written out",
    "then": "use anyOf with the cases written out",
    "else": "use anyOf with the cases written out",
    "uniqueItems": "use enum with the combinations, or check the answer",
    "contains": "use prefixItems",
    "dependentRequired": "use anyOf with the cases written out",
    "dependentSchemas": "use anyOf with the cases written out",
    "propertyNames": "use patternProperties with additionalProperties false",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "additionalItems": "use prefixItems and items",
    "nullable": 'use "type": [..., "null"]',
    "x-guidance": "leave it out",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
Schema: TypeAlias = Mapping[str, Any] | bool
Rule: TypeAlias = Callable[["SchemaReader", Any, str, int], None]


@dataclass
class SchemaReader:
    """Walks a schema. `found` holds every schema in it by JSON pointer, outer ones first."""

    what: str
    found: dict[str, Schema] = field(default_factory=dict)

    def fail(self, pointer: str, message: str) -> RequestError:
        return RequestError(f"{self.what} at {shown(pointer)}: {message}")

    def schema(self, value: Any, pointer: str, depth: int) -> None:
        if not isinstance(value, Mapping | bool):
            raise self.fail(pointer, f"expected a schema (an object or a bool), got {describe(value)}")
        if depth > MAX_DEPTH:
            raise self.fail(pointer, f"schemas nested deeper than {MAX_DEPTH}: use $ref")
        if len(pointer) > MAX_POINTER:
            raise self.fail(pointer, f"its pointer has over {MAX_POINTER:,} characters: use shorter names")
        if len(self.found) >= MAX_SCHEMAS:
            raise self.fail(pointer, f"over {MAX_SCHEMAS:,} schemas in one: make it smaller")
        self.found[pointer] = value
        if not isinstance(value, bool):
            for key, inner in value.items():
                self.keyword(key, inner, pointer, depth)
            _check_counts(self, value, pointer)

    def keyword(self, key: Any, value: Any, pointer: str, depth: int) -> None:
        if key in ANNOTATIONS or (key == "uniqueItems" and value is False):
            return
        if key == "$id" and pointer == "#":
            return
        rule = RULES.get(key) if isinstance(key, str) else None
        if rule is None:
            hint = (
                HINTS.get(key, "leave it out, or check the spelling") if isinstance(key, str) else "use text"
            )
            raise self.fail(step(pointer, key), f"the keyword {key!r:.60} is not supported: {hint}")
        rule(self, value, step(pointer, key), depth)

    def whole(self, value: Any, pointer: str, low: int = 0, high: int = MAX_COUNT) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        if not number or not low <= value <= high:
            raise self.fail(pointer, f"expected a whole number from {low} to {high:,}, got {describe(value)}")


def read_schema(value: Any, what: str = "the JSON schema") -> dict[str, Schema]:
    """Every schema in a schema by its JSON pointer. RequestError for what is not supported in full."""
    reader = SchemaReader(what)
    reader.schema(value, "#", 0)
    return reader.found


def step(pointer: str, key: object) -> str:
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def shown(pointer: str) -> str:
    return pointer if len(pointer) <= 120 else f"{pointer[:80]}...{pointer[-37:]}"


def describe(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list | Mapping):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    return f"{value!r:.60}"


def _type(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    names = value if isinstance(value, list) else [value]
    wrong = next((name for name in names if name not in TYPES), None) if names else "an empty list"
    if wrong is not None or not names or any(name is None for name in names):
        raise reader.fail(pointer, f"expected one of {', '.join(TYPES)}, got {describe(wrong)}")
    if len(set(names)) < len(names):
        raise reader.fail(pointer, "a type stands twice")


def _enum(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    if not isinstance(value, list) or not value:
        raise reader.fail(pointer, f"expected a list with a value in it, got {describe(value)}")
    _const(reader, value, pointer, depth)


def _const(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    """Any value whose whole numbers a mask can hold: llguidance rounds larger ones, and -2^63 ends the
    process.
    """
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, int) and abs(one) > EXACT:
            raise reader.fail(pointer, f"expected whole numbers up to 2^53, got {describe(one)}")
        if isinstance(one, list | Mapping):
            left += one.values() if isinstance(one, Mapping) else one


def _one(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    if isinstance(value, list):
        raise reader.fail(pointer, "expected a schema, got a list: use prefixItems")
    reader.schema(value, pointer, depth + 1)


def _several(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    if not isinstance(value, list) or not value:
        raise reader.fail(pointer, f"expected a list of schemas, got {describe(value)}")
    if len(value) > MAX_SEVERAL:
        raise reader.fail(pointer, f"expected at most {MAX_SEVERAL} schemas, got {len(value):,}")
    for i, inner in enumerate(value):
        reader.schema(inner, step(pointer, i), depth + 1)


def _named(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    if not isinstance(value, Mapping):
        raise reader.fail(pointer, f"expected an object of schemas, got {describe(value)}")
    if len(value) > MAX_NAMED:
        raise reader.fail(pointer, f"expected at most {MAX_NAMED:,} names, got {len(value):,}")
    for name, inner in value.items():
        if not isinstance(name, str):
            raise reader.fail(pointer, f"expected names as text, got {describe(name)}")
        reader.schema(inner, step(pointer, name), depth + 1)


def _by_pattern(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    _named(reader, value, pointer, depth)
    for name in value:
        _pattern(reader, name, step(pointer, name), depth)


def _required(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise reader.fail(pointer, f"expected a list of names, got {describe(value)}")
    if len(set(value)) < len(value):
        raise reader.fail(pointer, "a name stands twice")


def _count(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    reader.whole(value, pointer)


def _number(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    finite = not isinstance(value, float) or math.isfinite(value)  # an int may be too large for that
    if isinstance(value, bool) or not isinstance(value, int | float) or not finite:
        raise reader.fail(pointer, f"expected a number, got {describe(value)}")
    if abs(value) > EXACT:
        raise reader.fail(pointer, f"expected a number up to 2^53, got {describe(value)}")


def _multiple(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    _number(reader, value, pointer, depth)
    if value <= 0:
        raise reader.fail(pointer, f"expected a number over 0, got {describe(value)}")


def _pattern(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    if not isinstance(value, str):
        raise reader.fail(pointer, f"expected a regular expression, got {describe(value)}")
    tree = parse(value, f"{reader.what} at {pointer}: pattern")
    if is_catastrophic(tree):
        raise reader.fail(
            pointer, "the pattern matches some texts in exponentially many ways: rewrite its repetitions"
        )


def _format(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    if value not in FORMATS:
        raise reader.fail(pointer, f"expected one of {', '.join(FORMATS)}, got {describe(value)}")


def _reference(reader: SchemaReader, value: Any, pointer: str, depth: int) -> None:
    if not isinstance(value, str) or not value.startswith("#"):
        raise reader.fail(
            pointer,
            f"expected a reference into this schema (#/...), got {describe(value)}: nothing is fetched",
        )


def _check_counts(reader: SchemaReader, value: Mapping[str, Any], pointer: str) -> None:
    """Pairs that contradict each other, and what a mask alone can't promise."""
    for low, high in (
        ("minItems", "maxItems"),
        ("minLength", "maxLength"),
        ("minProperties", "maxProperties"),
    ):
        if low in value and high in value and value[low] > value[high]:
            raise reader.fail(step(pointer, low), f"{low} {value[low]} is over {high} {value[high]}")
    least = value.get("minProperties", 0)
    # A key of the answer's own may come twice, and counts once when the answer is read.
    if least > len(value.get("required", ())) and not _is_closed(value):
        raise reader.fail(
            step(pointer, "minProperties"),
            "more keys than `required` names: name them there, or set additionalProperties false",
        )


def _is_closed(value: Mapping[str, Any]) -> bool:
    return value.get("additionalProperties") is False and not value.get("patternProperties")


RULES: Mapping[str, Rule] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "$ref": _reference,
    **dict.fromkeys(("$defs", "definitions", "properties"), _named),
    "patternProperties": _by_pattern,
    **dict.fromkeys(("additionalProperties", "items"), _one),
    **dict.fromkeys(("anyOf", "allOf", "oneOf", "prefixItems"), _several),
    "required": _required,
    **dict.fromkeys(
        ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), _count
    ),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    "multipleOf": _multiple,
    "pattern": _pattern,
    "format": _format,
}


def bare(value: Any) -> Any:
    """A checked schema without what says nothing of values: annotations, and uniqueItems false."""
    if isinstance(value, bool):
        return value
    kept = {}
    for key, inner in value.items():
        rule = RULES.get(key)
        if rule is _one:
            kept[key] = bare(inner)
        elif rule is _several:
            kept[key] = [bare(item) for item in inner]
        elif rule in (_named, _by_pattern):
            kept[key] = {name: bare(item) for name, item in inner.items()}
        elif rule is not None:
            kept[key] = inner
    return kept


def children(value: Mapping[str, Any], keys: tuple[str, ...], pointer: str) -> Iterator[tuple[str, Schema]]:
    """(pointer, schema) of the schemas under these keywords."""
    for key in keys:
        inner = value.get(key)
        at = step(pointer, key)
        if isinstance(inner, list):
            yield from ((step(at, i), item) for i, item in enumerate(inner))
        elif inner is not None:
            yield at, inner
