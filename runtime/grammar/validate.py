"""Validates a JSON value against a schema that `read_schema` accepted, at a bounded cost.

Invariant: a verdict takes at most MAX_STEPS steps and MAX_MEMO memoized verdicts, and no Python recursion,
for any schema and value. If it would take more, it raises RequestError; nothing is ever judged in part.

A `$ref` target is judged once per place of the value (memoized by schema and value), so doubling references,
`a_i = allOf [a_(i+1), a_(i+1)]`, take linear time. Patterns and formats are matched by llguidance in linear
time. Messages quote at most QUOTED characters of the value.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from satchel.errors import RequestError
from satchel.runtime.grammar.matching import is_sentence, matcher_of

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_STEPS = 1_000_000  # keywords, members and characters per verdict: about three seconds
MAX_MEMO = 100_000  # memoized verdicts, about 20 MB; a full memo is cleared
MAX_DIGITS = 20_000  # digits of a number whose divisor is checked
MATCH_STEPS = 16  # fixed steps of a match, besides one per character
DIGIT_STEP = 16  # digits of a division that count as one step
QUOTED = 60  # characters of a value in a message

Number: TypeAlias = int | Decimal


@dataclass(frozen=True, slots=True)
class Failure:
    """A violation of the schema."""

    message: str
    # Keys and indexes from the root value to the invalid part, as a linked list.
    path: tuple[Any, Any] | None = None

    def under(self, key: str | int) -> Failure:
        return Failure(self.message, (key, self.path))

    def __str__(self) -> str:
        parts, at = [], self.path
        while at is not None:
            parts.append(f"/{at[0]!s:.{QUOTED}}")
            at = at[1]
        place = "".join(parts)
        return f"at #{place if len(place) <= 200 else f'{place[:100]}...{place[-97:]}'}: {self.message[:200]}"


Verdict: TypeAlias = Failure | None


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceTarget:
    """A schema that references lead to. Only these can judge one value more than once."""

    schema: Any


# Generator that yields the (schema or target, value) pairs whose verdicts it needs, and returns its own
# verdict.
Steps: TypeAlias = Generator[tuple[Any, Any], Verdict, Verdict]


class Validator:
    """A schema ready to judge values; thread-safe. schema: accepted by `read_schema`, with Python's numbers.
    Values have numbers of `parse_exact`.
    """

    def __init__(self, schema: Any) -> None:
        self.root = json.loads(json.dumps(schema), parse_float=Decimal)
        self._targets: dict[str, ReferenceTarget] = {}
        self._scalars: dict[int, frozenset[tuple[str, Any]]] = {}  # by the id of an enum's list
        self._matchers: dict[tuple[str, str], LLMatcher] = {}

    def error(self, value: Any) -> str:
        """The first error of a value, with its JSON pointer; "" if it is valid. Raises RequestError if the
        verdict would take more than MAX_STEPS steps.
        """
        failure = _Run(self).verdict(value)
        return "" if failure is None else str(failure)

    def target(self, reference: str) -> ReferenceTarget:
        """The schema at a reference such as #/$defs/a."""
        if reference not in self._targets:
            found = self.root
            for part in unquote(reference).split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                found = found[int(key)] if isinstance(found, list) else found[key]
            self._targets.setdefault(reference, ReferenceTarget(found))
        return self._targets[reference]

    def scalars(self, values: list[Any]) -> frozenset[tuple[str, Any]]:
        """An enum's values that are neither list nor object, with their kinds."""
        if id(values) not in self._scalars:
            found = ((kind_of(v), v) for v in values if not isinstance(v, list | dict))
            self._scalars[id(values)] = frozenset(found)
        return self._scalars[id(values)]

    def matches(self, key: str, rule: str, text: str) -> bool:
        """Whether a text matches a pattern or a format. key: which of the two."""
        matcher = self._matchers.get((key, rule))
        if matcher is None:
            from llguidance import LLMatcher

            grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", key: rule}))
            matcher = self._matchers[key, rule] = matcher_of(grammar)
        return is_sentence(matcher.deep_copy(), json.dumps(text, ensure_ascii=False))


class _Run:
    """State of one verdict: steps spent, and the memo."""

    def __init__(self, validator: Validator) -> None:
        self.validator, self._left = validator, MAX_STEPS
        self._memo: dict[tuple[int, int], Verdict] = {}

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise RequestError(
                f"the value can't be checked against its JSON schema within {MAX_STEPS:,} steps: make the "
                "schema simpler, or the answer shorter"
            )

    def verdict(self, value: Any) -> Verdict:
        """Runs the generators on an explicit stack: depth costs memory, not Python stack."""
        stack: list[tuple[Steps, tuple[int, int] | None]] = [(self._node(self.validator.root, value), None)]
        answer: Verdict = None
        while stack:
            steps, key = stack[-1]
            try:
                schema, place = steps.send(answer)
            except StopIteration as end:
                stack.pop()
                answer = end.value
                if key is not None:
                    self._remember(key, answer)
                continue
            answer = None
            if isinstance(schema, ReferenceTarget):
                pair = (id(schema), id(place))
                if pair in self._memo:
                    answer = self._memo[pair]
                    self.spend(1)
                    stack.append((_known(answer), None))
                    answer = None
                    continue
                stack.append((self._node(schema.schema, place), pair))
            else:
                stack.append((self._node(schema, place), None))
        return answer

    def _remember(self, key: tuple[int, int], verdict: Verdict) -> None:
        if len(self._memo) >= MAX_MEMO:
            self._memo.clear()
        self._memo[key] = verdict

    def _node(self, schema: Any, value: Any) -> Steps:
        """The first error of a value: by its own rules, then by its parts', outer ones first."""
        self.spend(1)
        if isinstance(schema, bool):
            return None if schema else Failure("no value is allowed here")
        self.spend(len(schema))
        for key, check in CHECKS.items():
            if key in schema and (wrong := check(self, schema[key], value)):
                return Failure(wrong)
        found = yield from self._in_place(schema, value)
        if found is not None:
            return found
        if isinstance(value, dict):
            return (yield from self._members(schema, value))
        if isinstance(value, list):
            return (yield from self._items(schema, value))
        return None

    def _in_place(self, schema: Mapping[str, Any], value: Any) -> Steps:
        if "$ref" in schema:
            found = yield self.validator.target(schema["$ref"]), value
            if found is not None:
                return found
        for inner in schema.get("allOf", ()):
            if (found := (yield inner, value)) is not None:
                return found
        if "anyOf" in schema:
            for inner in schema["anyOf"]:
                if (yield inner, value) is None:
                    break
            else:
                return Failure(f"{quoted(value)} fits none of anyOf")
        if "oneOf" in schema:
            fitting = 0
            for inner in schema["oneOf"]:
                fitting += (yield inner, value) is None
            if fitting != 1:
                return Failure(f"{quoted(value)} fits {fitting} of oneOf, not one")
        return None

    def _members(self, schema: Mapping[str, Any], value: dict[str, Any]) -> Steps:
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        rest = schema.get("additionalProperties", True)
        for key, item in value.items():
            self.spend(1)
            rules = [named[key]] if key in named else []
            rules += [inner for pattern, inner in patterns.items() if self.matches("pattern", pattern, key)]
            if not rules:
                if rest is False:
                    return Failure(f"the key {quoted(key)} is not allowed")
                rules = [rest]
            for inner in rules:
                if inner is not True and (found := (yield inner, item)) is not None:
                    return found.under(key)
        return None

    def _items(self, schema: Mapping[str, Any], value: list[Any]) -> Steps:
        first, rest = schema.get("prefixItems", ()), schema.get("items", True)
        for i, item in enumerate(value):
            inner = first[i] if i < len(first) else rest
            if inner is not True and (found := (yield inner, item)) is not None:
                return found.under(i)
        return None

    def matches(self, key: str, rule: str, text: str) -> bool:
        self.spend(MATCH_STEPS + len(text))
        return self.validator.matches(key, rule, text)

    def same(self, a: Any, b: Any) -> bool:
        """JSON equality: 1 equals 1.0; a bool equals no number."""
        waiting = [(a, b)]
        while waiting:
            a, b = waiting.pop()
            self.spend(1)
            if kind_of(a) != kind_of(b):
                return False
            if isinstance(a, list):
                if len(a) != len(b):
                    return False
                waiting += zip(a, b, strict=True)
            elif isinstance(a, dict):
                if a.keys() != b.keys():
                    return False
                waiting += ((item, b[key]) for key, item in a.items())
            elif a != b:
                return False
        return True


def _known(verdict: Verdict) -> Steps:
    """A memoized verdict."""
    yield from ()
    return verdict


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float | Decimal):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def quoted(value: Any) -> str:
    """A value in a message, truncated."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    if isinstance(value, str):
        return repr(value if len(value) <= QUOTED else value[: QUOTED - 3] + "...")
    return {None: "null", True: "true", False: "false"}.get(value) or f"{value!s:.{QUOTED}}"


def _type(run: _Run, wanted: Any, value: Any) -> str:
    names = wanted if isinstance(wanted, list) else [wanted]
    kind = kind_of(value)
    if kind in names or (kind == "number" and "integer" in names and _is_whole(value)):
        return ""
    return f"{quoted(value)} is not of type {' or '.join(map(str, names))}"


def _is_whole(value: Number) -> bool:
    return isinstance(value, int) or value == value.to_integral_value()


def _enum(run: _Run, options: list[Any], value: Any) -> str:
    if isinstance(value, list | dict):
        fits = any(run.same(option, value) for option in options if isinstance(option, list | dict))
    else:
        fits = (kind_of(value), value) in run.validator.scalars(options)
    return "" if fits else f"{quoted(value)} is none of the {len(options):,} values of enum"


def _const(run: _Run, wanted: Any, value: Any) -> str:
    return "" if run.same(wanted, value) else f"{quoted(value)} is not {quoted(wanted)}"


def _required(run: _Run, names: list[str], value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    run.spend(len(names))
    missing = next((name for name in names if name not in value), None)
    return "" if missing is None else f"the key {quoted(missing)} is missing"


def _pattern(run: _Run, pattern: str, value: Any) -> str:
    fits = not isinstance(value, str) or run.matches("pattern", pattern, value)
    return "" if fits else f"{quoted(value)} does not match {quoted(pattern)}"


def _format(run: _Run, name: str, value: Any) -> str:
    fits = not isinstance(value, str) or run.matches("format", name, value)
    return "" if fits else f"{quoted(value)} is no {name}"


def _multiple(run: _Run, step: Number, value: Any) -> str:
    if kind_of(value) != "number":
        return ""
    exact = Decimal(value)
    digits = min(len(exact.as_tuple().digits) + abs(exact.adjusted()), MAX_DIGITS)
    run.spend(digits // DIGIT_STEP)
    try:
        with localcontext() as context:
            context.prec = digits + 50
            wrong = exact % Decimal(str(step)) != 0
    except ArithmeticError:  # more digits than the check's precision
        wrong = True
    return f"{quoted(value)} is not a multiple of {step}" if wrong else ""


def _count(kind: type[list[Any] | dict[str, Any] | str], what: str, most: bool) -> Check:
    def check(run: _Run, limit: Number, value: Any) -> str:
        if not isinstance(value, kind) or (len(value) <= limit if most else len(value) >= limit):
            return ""
        return f"{quoted(value)} has {len(value):,} {what}, {limit} is the {'most' if most else 'least'}"

    return check


def _bound(fits: Callable[[Any, Any], bool], words: str) -> Check:
    def check(run: _Run, limit: Number, value: Any) -> str:
        if kind_of(value) != "number" or fits(value, limit):
            return ""
        return f"{quoted(value)} is not {words} {limit}"

    return check


# By keyword: the error of the value itself, or "". Keywords are checked in this order.
Check: TypeAlias = Callable[[_Run, Any, Any], str]
CHECKS: Mapping[str, Check] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "minItems": _count(list, "items", most=False),
    "maxItems": _count(list, "items", most=True),
    "minProperties": _count(dict, "keys", most=False),
    "maxProperties": _count(dict, "keys", most=True),
    "minLength": _count(str, "characters", most=False),
    "maxLength": _count(str, "characters", most=True),
    "minimum": _bound(operator.ge, "at least"),
    "maximum": _bound(operator.le, "at most"),
    "exclusiveMinimum": _bound(operator.gt, "over"),
    "exclusiveMaximum": _bound(operator.lt, "under"),
    "multipleOf": _multiple,
    "pattern": _pattern,
    "format": _format,
}
