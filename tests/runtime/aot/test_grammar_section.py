"""Compiled grammars allow the texts that llguidance allows: byte for byte what may follow, on random walks.
What they do not have is refused by name.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.runtime.aot import grammar_section
from satchel.runtime.aot.grammar_rules import rules_of
from satchel.runtime.aot.grammar_section import Automaton, compile_rules, pack_grammar
from satchel.runtime.grammar.matching import matcher_of
from satchel.runtime.grammar.sources import read_spec
from satchel.runtime.grammar.spec import spec_of

NESTED = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "number"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}
OBJECT = {
    "type": "object",
    "properties": {"ab": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["b"],
}
SCHEMAS: dict[str, Any] = {
    "any": {},
    "object": {"type": "object"},
    "properties": OBJECT,
    "closed": {**OBJECT, "additionalProperties": False},
    "optional": {
        "type": "object",
        "properties": {k: {"type": "null"} for k in "abc"},
        "additionalProperties": False,
    },
    "all required": {
        "type": "object",
        "properties": {"a": {"enum": [1, "x", None]}, "c": {"const": {"k": [1, 2.5]}}},
        "required": ["a", "c"],
    },
    "others": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "required alone": {"type": "object", "required": ["z", "zz"]},
    "names": {
        "type": "object",
        "properties": {"é\n": {"type": "null"}, 'q"': {"type": "null"}, "": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    },
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "no items": {"type": "array", "maxItems": 0},
    "prefix": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    "prefix and more": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "null"}},
    "length": {"type": "string", "minLength": 1, "maxLength": 3},
    "least": {"type": "string", "minLength": 2},
    "types": {"type": ["integer", "null", "array"]},
    "any of": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "null"}}, {"const": "x"}]},
    "nested": NESTED,
    "numbers": {"enum": [1, 12, -3, 0.5, 2.0]},
    "typed enum": {"type": "string", "enum": ["a", "ab", 3]},
}
GBNF = {
    "choice": 'root ::= "yes" | "no" | "yesterday"',
    "recursion": 'root ::= "(" root? ")" | [a-c]+',
    "sum": 'root ::= term ("+" term)*\nterm ::= [0-9]{1,3} | "(" root ")"',
    "unicode": "root ::= [é-ü߿-ࠁ] .{0,2} [^a-z]",
    "empty parts": 'root ::= a* "x"\na ::= "y"? "z"',
    "astral": 'root ::= [\\U00010000-\\U0010FFFF]{2} "\\n"',
}


class Walker:
    """Runs an automaton as cext/embed/grammar.c does. A place: (state, stack of states)."""

    def __init__(self, automaton: Automaton) -> None:
        self.a = automaton
        self.places = self.closed([(automaton.starts[0], ())])

    def closed(self, places: list[tuple[int, tuple[int, ...]]]) -> set[tuple[int, tuple[int, ...]]]:
        found: set[tuple[int, tuple[int, ...]]] = set()
        while places:
            state, stack = place = places.pop()
            if place in found:
                continue
            found.add(place)
            if self.a.finals[state] and stack:
                places.append((stack[-1], stack[:-1]))
            for rule, to in self.a.calls[state]:
                last = self.a.finals[to] and not self.a.ranges[to] and not self.a.calls[to]
                places.append((self.a.starts[rule], stack if last else (*stack, to)))
        return found

    @property
    def complete(self) -> bool:
        return any(self.a.finals[state] and not stack for state, stack in self.places)

    def next(self) -> set[int]:
        edges = (edge for state, _ in self.places for edge in self.a.ranges[state])
        return {byte for low, high, _ in edges for byte in range(low, high + 1)}

    def take(self, byte: int) -> None:
        self.places = self.closed(
            [
                (to, stack)
                for state, stack in self.places
                for low, high, to in self.a.ranges[state]
                if low <= byte <= high
            ]
        )


def compared(text: str, spec: Any, walks: int, seed: int) -> int:
    """Walks at random beside llguidance; gives the number of bytes."""
    rng, automaton, taken = random.Random(seed), compile_rules(rules_of(text)), 0
    source = read_spec(spec_of(spec), None)
    for _ in range(walks):
        ours, theirs, path = Walker(automaton), matcher_of(source.grammar), bytearray()
        for _ in range(60):
            bits = np.unpackbits(np.frombuffer(theirs.compute_bitmask(), np.uint8), bitorder="little")[:256]
            wanted = set(np.flatnonzero(bits).tolist())
            assert (ours.next(), ours.complete) == (wanted, theirs.is_accepting()), bytes(path)
            if not wanted:
                break
            # Of letters that are alike one is enough, so that walks come to what ends a text.
            byte = rng.choice(
                sorted(wanted - set(b"defghijklmnopqrstuvwyz"))
                if rng.random() < 0.7 and len(wanted) > 9
                else sorted(wanted)
            )
            ours.take(byte)
            assert theirs.consume_token(byte)
            path.append(byte)
            taken += 1
    return taken


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_allow_what_llguidance_does(name: str) -> None:
    assert compared(json.dumps(SCHEMAS[name]), SCHEMAS[name], 12, seed=1) > 5


@pytest.mark.parametrize("name", GBNF)
def test_gbnf_allows_what_llguidance_does(name: str) -> None:
    assert compared(GBNF[name], GBNF[name], 12, seed=2) > 20


def test_what_is_not_supported_is_refused() -> None:
    for schema, message in (
        ({"type": "string", "pattern": "a+"}, "#/pattern: a compiled grammar does not have this keyword"),
        ({"type": "integer", "minimum": 3}, "#/minimum: a compiled grammar does not have"),
        ({"properties": {"a": {}}}, '#: it needs a "type"'),
        ({"allOf": [{}]}, '#: it needs a "type"'),
        ({"enum": [1e300]}, "does not have the number 1e+300"),
        ({"type": "array", "prefixItems": [{}], "minItems": 1}, "has no counts beside prefixItems"),
    ):
        with pytest.raises(RequestError, match=message.replace("+", r"\+")):
            pack_grammar(json.dumps(schema))
    with pytest.raises(RequestError, match="begins with itself"):
        pack_grammar('root ::= root "a" | "b"')


def test_too_many_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_section, "MOST_STATES", 100)
    for text in ("root ::= [a-z]{150}", 'root ::= a a\na ::= "x"{30} b\nb ::= "y"{30} c\nc ::= "z"{60}'):
        with pytest.raises(RequestError, match="has over 100 states"):
            pack_grammar(text)
