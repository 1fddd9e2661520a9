"""Values of a schema in calls with tags: strings raw, everything else as JSON.

Invariant: formats/chat parses every text that the grammar allows as a value that satisfies the schema. A
schema for which that cannot be enforced is refused, with its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from satchel.errors import RequestError
from satchel.formats.chat.tagged import as_json, branches, kinds_of, resolved
from satchel.runtime.grammar.check import parse_exact
from satchel.runtime.grammar.compile_json import with_settings
from satchel.runtime.grammar.schema import describe
from satchel.runtime.grammar.validate import Validator

Schema: TypeAlias = Mapping[str, Any]
DEFINITIONS = ("$defs", "definitions")
HELD = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const", "allOf",
    "anyOf", "oneOf", "$ref",
)  # fmt: skip
ANY = "/(?s:.*)/"
SCALARS = {
    "null": "/null|None/",
    "boolean": "/true|false|True|False/",
    "integer": "/-?(?:0|[1-9][0-9]*)/",
    "number": r"/-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?/",
}
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_DATE = (
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|[12][0-9]))"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_DAYS = "[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?"
_SPAN = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
_PATH = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_SIX = [f"(?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}"] + [
    (f"{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{{n - 1}}}" if n else "")
    + "::"
    + (f"(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,{6 - n}}})?" if n < 7 else "")
    for n in range(8)
]
FORMATS = {
    "date-time": f"{_DATE}T{_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": f"P(?:[0-9]+W|(?:{_DAYS})(?:{_SPAN})?|{_SPAN})",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "ipv6": "|".join(_SIX),
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:(?://[A-Za-z0-9._~-]+(?::[0-9]{1,5})?(?:/" + _PATH + "*)*|" + _PATH
    + r"+(?:/" + _PATH + r"*)*)(?:\?(?:" + _PATH + "|[/?])*)?(?:#(?:" + _PATH + "|[/?])*)?",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """Grammar of a value between tags; "" for none."""

    text: str = ""  # the raw text, as part of a Lark terminal
    json: str = ""  # schema of values written as JSON


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """Writes values between tags."""

    root: Schema  # the schema that references lead into
    close: str  # the closing tag, which no text may contain
    exact: bool  # a line end beside the text is part of it
    typed: bool  # the tag states whether the value is a string
    where: str  # whose values they are, for errors

    def value(self, schema: Any) -> Value:
        """Grammar of a schema's values. Raises RequestError, with the place, for a schema that cannot be
        enforced on values written so.
        """
        given, schema = schema, resolved(schema, self.root)
        if schema is True or schema == {}:
            return Value(self._text([]), self._json({}) if self.typed else "")
        if not isinstance(schema, Mapping):
            raise self._fail("no value is allowed")
        kinds = kinds_of(schema, self.root)
        if len(given) > 1 and "$ref" in given:
            if "string" in kinds:
                raise self._fail("text under $ref beside other rules: write them into one schema")
            return Value(json=self._json(given))
        if "enum" in schema or "const" in schema:
            return self._one_of(schema, kinds)
        if kinds == ("boolean",) and not self.typed:
            return Value(SCALARS["boolean"])
        if "string" not in kinds:
            return Value(json=self._json(schema))
        if any(key in schema for key in ("anyOf", "oneOf")) and set(schema) - {
            "anyOf",
            "oneOf",
            *DEFINITIONS,
        }:
            raise self._fail("text under anyOf beside other rules: write them into one schema")
        return self._several(alternatives(schema, self.root))

    def _fail(self, message: str) -> RequestError:
        return RequestError(f"{self.where}: {message}")

    def _shared(self) -> dict[str, Any]:
        return {key: self.root[key] for key in DEFINITIONS if key in self.root}

    def _json(self, schema: Schema) -> str:
        return with_settings(self._shared() | dict(schema))

    def _one_of(self, schema: Schema, kinds: tuple[str, ...]) -> Value:
        """Grammar of the listed values of enum or const."""
        given = schema["enum"] if "enum" in schema else [schema["const"]]
        rules = self._shared() | dict(schema)
        validator = Validator(rules)
        fitting = [value for value in given if not validator.error(parse_exact(json.dumps(value)))]
        if not fitting:
            raise self._fail("no value is allowed")
        if not self.typed:
            return Value(self._listed(fitting, kinds))
        texts = [value for value in fitting if isinstance(value, str)]
        others = [value for value in fitting if not isinstance(value, str)]
        return Value(
            self._listed(texts, ("string",)) if texts else "", self._json({"enum": others}) if others else ""
        )

    def _listed(self, values: list[Any], kinds: tuple[str, ...]) -> str:
        """The values as JSON, checked to be parsed as the same values."""
        texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        for text, value in zip(texts, values, strict=True):
            read = text if self.exact else text.removeprefix("\n").removesuffix("\n")
            found = json.loads(as_json(read, kinds))
            if self.close in text or found != value or type(found) is not type(value):
                raise self._fail(
                    f"{describe(value)} would be read as another value in this family's calls: "
                    "give the value one type, or leave it out"
                )
        return "(" + " | ".join(map(literal, texts)) + ")"

    def _several(self, schemas: list[Schema]) -> Value:
        """Strings, and other types beside them."""
        texts = [self._string(schema) for schema in schemas if schema.get("type") == "string"]
        others = [schema for schema in schemas if schema.get("type") != "string"]
        if self.typed:
            return Value(" | ".join(texts), self._json({"anyOf": others}) if others else "")
        held = [schema for schema in others if schema.get("type") not in ("object", "array")]
        for schema in held:
            if schema.get("type") not in SCALARS or any(key in schema for key in HELD):
                raise self._fail("text, or another type with limits of its own: give the value one type")
        texts += [SCALARS[schema["type"]] for schema in held]
        whole = [schema for schema in others if schema not in held]
        if not whole:
            return Value(" | ".join(texts))
        # Text that begins with a bracket is parsed as JSON.
        apart = " | ".join(f"({text} & ~{BRACKETED})" for text in texts)
        return Value(apart, self._json({"anyOf": whole}))

    def _string(self, schema: Schema) -> str:
        for key in ("allOf", "anyOf", "oneOf", "$ref"):
            if key in schema:
                raise self._fail(f"text under {key} beside other rules: write them into one schema")
        if "enum" in schema or "const" in schema:
            return self._one_of(schema, ("string",)).text
        rules = []
        if "pattern" in schema:
            rules.append(searched(schema["pattern"]))
        if "format" in schema:
            rules.append(slashed(FORMATS[schema["format"]]))
        if "minLength" in schema or "maxLength" in schema:
            most = str(int(schema["maxLength"])) if "maxLength" in schema else ""
            rules.append(f"/(?s:.{{{int(schema.get('minLength', 0))},{most}}})/")
        return self._text(rules)

    def _text(self, rules: list[str]) -> str:
        """Strings without the closing tag. Under further rules, white space counts too."""
        if rules and not self.exact:
            rules = [*rules, r"~/\n(?s:.*)/", r"~/(?s:.*)\n/"]
        tag = re.escape(self.close).replace("/", r"\/")
        return "(" + " & ".join([*(rules or [ANY]), f"~/(?s:.*){tag}(?s:.*)/"]) + ")"


BRACKETED = r"/(?s:[ \t\r\n]*[{\[].*)/"


def alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """Schemas of one type each; a value must satisfy one of them."""
    found: list[Schema] = []
    for one in branches(schema, root):
        kinds = one.get("type")
        found += [{**one, "type": kind} for kind in kinds] if isinstance(kinds, list) else [one]
    return found


def literal(text: str) -> str:
    """A text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def slashed(pattern: str) -> str:
    """A regular expression as a Lark literal."""
    escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern, flags=re.S)
    return "/(?:" + escaped.replace("\n", r"\n") + ")/"


def searched(pattern: str) -> str:
    """Regular expression of the texts in which a schema's pattern is found; ^ and $ at its ends anchor it."""
    head, tail = pattern.startswith("^"), bool(re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern))
    inner = pattern[head : len(pattern) - tail]
    return slashed(f"{'' if head else '(?s:.*)'}(?:{inner}){'' if tail else '(?s:.*)'}")
