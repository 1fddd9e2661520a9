"""Grammars as rules over characters: GBNF, and the plain part of JSON schemas.

The rules allow the same texts as runtime/grammar does by llguidance; a test compares what may follow, byte by
byte. What the rules cannot say is refused with its place, as there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from satchel.errors import RequestError
from satchel.runtime.grammar import tree
from satchel.runtime.grammar.gbnf import gbnf_rules
from satchel.runtime.grammar.references import checked_schema
from satchel.runtime.grammar.regex import LAST, Alt, Cat, Chars, Ranges, Repeat, inverted, parse
from satchel.runtime.grammar.schema import ANNOTATIONS, step
from satchel.runtime.grammar.tree import Ref


@dataclass(frozen=True, slots=True)
class ObjectMembers:
    """Members of an object in this order, with commas between them and white space behind each. items: (pair,
    whether it is required). other: any number of these behind them; None: none.
    """

    items: tuple[tuple[Any, bool], ...]
    other: Any = None


# Chars, Cat, Alt, Repeat, Ref or ObjectMembers by name; `root`, or the first one, is the whole text's.
Rules: TypeAlias = dict[str, Any]


def cat(parts: tuple[Any, ...]) -> Any:
    """Parts one after another. They may hold Ref and ObjectMembers, which regular expressions do not have."""
    return Cat(parts)


def alt(parts: tuple[Any, ...]) -> Any:
    """One of the parts."""
    return Alt(parts)


EMPTY = cat(())
INDENT = 24  # most spaces and tabs behind a line end
# Keywords that a schema of these types may have beside `type`; others are refused.
KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
}
APART = {"$defs", "definitions", "$schema", "$id"}


def rules_of(text: str) -> Rules:
    """The rules of a file: a JSON schema, or GBNF. RequestError with the place of what is not supported."""
    if text.lstrip()[:1] == "{":
        return SchemaRules(text).rules
    return {name: _node(part) for name, part in gbnf_rules(text).items()}


# --- GBNF


def _node(part: tree.Part) -> Any:
    if isinstance(part, tree.Terminal):
        # "." stands for a line end, too, which the reader of expressions does not see.
        return Chars(((0, LAST),)) if part.source == "(?s:.)" else parse(part.source)
    if isinstance(part, tree.Times):
        return Repeat(_node(part.part), part.low, part.high)
    if isinstance(part, tree.Ref):
        return part
    inner = tuple(map(_node, part.parts))
    return cat(inner) if isinstance(part, tree.Seq) else alt(inner)


# --- JSON


def text_of(chars: str) -> Any:
    return cat(tuple(Chars(((ord(c), ord(c)),)) for c in chars))


def optional(node: Any) -> Any:
    return Repeat(node, 0, 1)


SPECIAL: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F))
DIGIT = Chars(((0x30, 0x39),))
WHOLE = cat(
    (optional(text_of("-")), alt((text_of("0"), cat((Chars(((0x31, 0x39),)), Repeat(DIGIT, 0, None))))))
)
NUMBER = cat(
    (
        WHOLE,
        optional(cat((text_of("."), Repeat(DIGIT, 1, None)))),
        optional(
            cat((Chars(((0x45, 0x45), (0x65, 0x65))), optional(alt((text_of("+"), text_of("-")))),
                 Repeat(DIGIT, 1, None)))
        ),
    )
)  # fmt: skip
ESCAPED = '"\\bfnrt'
CHARACTER = alt((Chars(inverted(SPECIAL)), cat((text_of("\\"), alt(tuple(text_of(c) for c in ESCAPED))))))
SPACES = optional(alt((text_of(" "), cat((text_of("\n"), Repeat(Chars(((9, 9), (32, 32))), 0, INDENT))))))
WS = Ref("spaces")
BASE: Rules = {
    "spaces": SPACES,
    "string": cat((text_of('"'), Repeat(CHARACTER, 0, None), text_of('"'))),
    "integer": WHOLE,
    "number": NUMBER,
    "boolean": alt((text_of("true"), text_of("false"))),
    "null": text_of("null"),
}


def listed(first: Any, low: int = 0, high: int | None = None) -> Any:
    """Items between commas, with the white space behind each."""
    one, more = (
        cat((first, WS)),
        Repeat(cat((text_of(","), WS, first, WS)), max(low - 1, 0), None if high is None else high - 1),
    )
    whole = cat((one, more))
    return EMPTY if high == 0 else whole if low else optional(whole)


def pair(key: Any, value: Any) -> Any:
    return cat((key, WS, text_of(":"), WS, value))


@dataclass
class SchemaRules:
    """The rules of a schema's text. A schema that others name is a rule; others stand where they are."""

    text: str
    rules: Rules = field(default_factory=dict[str, Any])
    whole: Any = None

    def __post_init__(self) -> None:
        self.whole, _ = checked_schema(self.text, "the JSON schema")
        self.rules["root"] = EMPTY  # the first one
        self.rules["root"] = self.schema(self.whole, "#")

    def fail(self, pointer: str, message: str) -> RequestError:
        return RequestError(f"the JSON schema at {pointer}: {message}")

    def named(self, name: str) -> Ref:
        """A rule of JSON."""
        if name in ("value", "object", "array") and name not in self.rules:
            self.rules[name] = EMPTY
            any_value = alt(
                tuple(self.named(t) for t in ("object", "array", "string", "number", "boolean", "null"))
            )
            self.rules[name] = {
                "value": any_value,
                "object": cat(
                    (
                        text_of("{"),
                        WS,
                        ObjectMembers((), pair(self.named("string"), Ref("value"))),
                        text_of("}"),
                    )
                ),
                "array": cat((text_of("["), WS, listed(Ref("value")), text_of("]"))),
            }[name]
            self.named("value")
            self.rules["spaces"] = SPACES
        elif name in BASE:
            self.rules[name] = BASE[name]
        return Ref(name)

    def schema(self, value: Any, pointer: str) -> Any:
        if value is True:
            return self.named("value")
        if value is False:
            raise self.fail(pointer, "nothing satisfies `false`: leave it out")
        kept = {
            k: v
            for k, v in value.items()
            if k not in ANNOTATIONS and k not in APART and (k, v) != ("uniqueItems", False)
        }
        if not kept:
            return self.named("value")
        for key, made in (
            ("$ref", self.reference),
            ("anyOf", self.any_of),
            ("enum", self.enum),
            ("const", self.const),
        ):
            if key in kept:
                if set(kept) - {key, "type"} or (key in ("$ref", "anyOf") and len(kept) > 1):
                    raise self.fail(
                        pointer, f"expected {key} alone, without {', '.join(sorted(set(kept) - {key}))}"
                    )
                return made(kept[key], pointer, kept.get("type"))
        types = kept.get("type")
        if types is None:
            raise self.fail(pointer, 'it needs a "type"')
        types = types if isinstance(types, list) else [types]
        known = {"type"}.union(*(KEYWORDS.get(t, set()) for t in types))
        for key in kept:
            if key not in known:
                raise self.fail(
                    step(pointer, key), "a compiled grammar does not have this keyword: leave it out"
                )
        return alt(tuple(self.typed(t, kept, pointer) for t in types))

    def typed(self, name: str, value: Mapping[str, Any], pointer: str) -> Any:
        if name == "object":
            return self.object(value, pointer)
        if name == "array":
            return self.array(value, pointer)
        low, high = value.get("minLength"), value.get("maxLength")
        if name != "string" or (low is None and high is None):
            return self.named(name)
        most = None if high is None else int(high)
        return cat((text_of('"'), Repeat(CHARACTER, int(low or 0), most), text_of('"')))

    def reference(self, value: str, pointer: str, types: Any) -> Any:
        if value not in self.rules:
            self.rules[value] = EMPTY
            self.rules[value] = self.schema(self.find(value, pointer), value)
        return Ref(value)

    def find(self, reference: str, pointer: str) -> Any:
        at = self.whole
        for part in reference.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                at = at[int(key)] if isinstance(at, list) else at[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise self.fail(
                    step(pointer, "$ref"), f"{reference!r} names nothing in this schema"
                ) from None
        return at

    def any_of(self, value: Sequence[Any], pointer: str, types: Any) -> Any:
        at = step(pointer, "anyOf")
        return alt(tuple(self.schema(inner, step(at, i)) for i, inner in enumerate(value)))

    def const(self, value: Any, pointer: str, types: Any) -> Any:
        return self.enum([value], pointer, types)

    def enum(self, value: Sequence[Any], pointer: str, types: Any) -> Any:
        kinds = None if types is None else set(types if isinstance(types, list) else [types])
        fitting = [one for one in value if kinds is None or _kinds(one) & kinds]
        if not fitting:
            raise self.fail(pointer, "no value is of its type")
        return alt(tuple(self.written(one, pointer) for one in fitting))

    def written(self, value: Any, pointer: str) -> Any:
        """A value as JSON, with the white space that may be in it."""
        if isinstance(value, str):
            return quoted(value)
        if isinstance(value, list):
            self.named("spaces")
            return cat(
                (text_of("["), WS, *self._between([self.written(v, pointer) for v in value]), text_of("]"))
            )
        if isinstance(value, Mapping):
            self.named("spaces")
            pairs = [pair(quoted(k), self.written(v, pointer)) for k, v in value.items()]
            return cat((text_of("{"), WS, *self._between(pairs), text_of("}")))
        if isinstance(value, float) and (value != int(value) or abs(value) > 2**53):
            text = json.dumps(value)
            if "e" in text:
                raise self.fail(
                    pointer, f"a compiled grammar does not have the number {text}: write it as text"
                )
            return text_of(text)
        return text_of(json.dumps(int(value) if isinstance(value, float) else value))

    def _between(self, parts: Sequence[Any]) -> Iterator[Any]:
        for i, part in enumerate(parts):
            yield from (*((text_of(","), WS) if i else ()), part, WS)

    def array(self, value: Mapping[str, Any], pointer: str) -> Any:
        low, high = int(value.get("minItems", 0)), value.get("maxItems")
        self.named("spaces")
        items = value.get("items", True)
        first = [
            self.schema(v, step(step(pointer, "prefixItems"), i))
            for i, v in enumerate(value.get("prefixItems", ()))
        ]
        if first and (low or high is not None):
            raise self.fail(pointer, "a compiled grammar has no counts beside prefixItems")
        if not first:
            inner = (
                EMPTY
                if items is False
                else listed(
                    self.schema(items, step(pointer, "items")), low, None if high is None else int(high)
                )
            )
            if items is False and low:
                raise self.fail(pointer, "no array has so many items")
            return cat((text_of("["), WS, inner, text_of("]")))
        comma = cat((text_of(","), WS))
        rest: Any = EMPTY
        if items is not False:
            rest = Repeat(cat((comma, self.schema(items, step(pointer, "items")), WS)), 0, None)
        for i in range(len(first) - 1, 0, -1):
            rest = optional(cat((comma, first[i], WS, rest)))
        return cat((text_of("["), WS, optional(cat((first[0], WS, rest))), text_of("]")))

    def object(self, value: Mapping[str, Any], pointer: str) -> Any:
        """Properties come in the order of the schema, then required ones that it does not describe, then
        others.
        """
        self.named("spaces")
        described = value.get("properties", {})
        required = list(value.get("required", ()))
        names = [*described, *(name for name in required if name not in described)]
        others = value.get("additionalProperties", True)
        pairs = []
        for name in names:
            at = step(step(pointer, "properties"), name)
            inner = self._shared(self.schema(described.get(name, others), at), at)
            pairs.append((pair(quoted(name), inner), name in required))
        other = None
        if others is not False:
            at = step(pointer, "additionalProperties")
            key = self.named("string") if not names else other_than(names)
            other = pair(key, self._shared(self.schema(others, at), at))
        return cat((text_of("{"), WS, ObjectMembers(tuple(pairs), other), text_of("}")))

    def _shared(self, node: Any, pointer: str) -> Any:
        """A rule of a value, because the automaton has it where it comes first and where it comes later."""
        if isinstance(node, Ref):
            return node
        self.rules[pointer] = node
        return Ref(pointer)


def _kinds(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int) or (isinstance(value, float) and value == int(value)):
        return {"integer", "number"}
    return {float: {"number"}, str: {"string"}, list: {"array"}, dict: {"object"}, type(None): {"null"}}[
        type(value)
    ]


def quoted(text: str) -> Any:
    """A string as JSON; characters are escaped that must be, and no others."""
    return cat((text_of('"'), *map(text_of, units(text)), text_of('"')))


def units(text: str) -> list[str]:
    """The characters of a string as JSON has them."""
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return [short.get(c, c) for c in text]


def other_than(names: Sequence[str]) -> Any:
    """A JSON string that is none of these."""
    return cat((text_of('"'), _rest([units(name) for name in names])))


def _rest(words: Sequence[Sequence[str]]) -> Any:
    """What may follow to the closing quote so that none of these words is spelled."""
    heads: dict[str, list[Sequence[str]]] = {}
    for word in words:
        if word:
            heads.setdefault(word[0], []).append(word[1:])
    plain = sorted(ord(u) for u in heads if len(u) == 1)
    free = inverted((*SPECIAL, *((p, p) for p in plain)))
    escapes = [text_of(c) for c in ESCAPED if "\\" + c not in heads]
    single = [Chars(free), *([cat((text_of("\\"), alt(tuple(escapes))))] if escapes else [])]
    cases: list[Any] = [cat((alt(tuple(single)), Repeat(CHARACTER, 0, None), text_of('"')))]
    cases += [] if any(not word for word in words) else [text_of('"')]
    cases += [cat((text_of(unit), _rest(rest))) for unit, rest in heads.items()]
    return alt(tuple(cases))


__all__ = ["ObjectMembers", "Rules", "rules_of"]
