"""JSON schemas as programs send them, and a writer that draws tokens from random logits through a
constraint.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.grammar import Grammar

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "vip"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "anything": {},
    "true": True,
    "object": {"type": "object"},
    "empty object": {"type": "object", "additionalProperties": False},
    "string": {"type": "string"},
    "short string": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-z]{2}-[0-9]{3}$"},
    "pattern inside": {"type": "string", "pattern": "ab", "maxLength": 12},
    "integer": {"type": "integer", "minimum": -5, "maximum": 120},
    "open integer": {"type": "integer", "exclusiveMinimum": 3},
    "number": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2.25},
    "steps": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 70},
    "tenths": {"type": "number", "multipleOf": 0.1},
    "null or bool": {"type": ["null", "boolean"]},
    "enum": {"enum": ["red", "green", 3, None, {"a": [1]}, 'é\n"']},
    "const": {"const": {"kind": "x", "list": [1.5, -2]}},
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 4},
    "pair": {
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "integer"}],
        "items": False,
        "minItems": 2,
    },
    "person": PERSON,
    "people": {"type": "array", "items": PERSON, "maxItems": 2},
    "list": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "one of": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]},
    "tagged": {
        "anyOf": [
            {"type": "object", "properties": {"t": {"const": t}, t: {"type": k}}, "required": ["t", t]}
            for t, k in (("a", "integer"), ("b", "boolean"))
        ]
    },
    "all of": {
        "type": "object",
        "allOf": [
            {"properties": {"x": {"type": "integer"}}, "required": ["x"]},
            {"properties": {"y": {"type": "boolean"}}, "required": ["y"]},
        ],
    },
    "by pattern": {
        "type": "object",
        "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "values": {"type": "object", "additionalProperties": {"type": "integer"}},
    "any size": {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "minProperties": 1},
    "uuid": {"type": "string", "format": "uuid"},
    "moment": {
        "type": "object",
        "properties": {"at": {"type": "string", "format": "date-time"}},
        "required": ["at"],
    },
    "address": {"type": "string", "format": "ipv4"},
    "untyped": {"minLength": 3, "maxLength": 4, "minimum": 2, "maxItems": 1},
    "nested": {
        "type": "object",
        "properties": {
            "a": {"type": "object", "properties": {"b": {"type": "array", "items": {"$ref": "#"}}}}
        },
        "required": ["a"],
        "additionalProperties": False,
    },
}


def unpack(bitmask: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The token bitmask as `count` flags."""
    return np.unpackbits(bitmask.view(np.uint8), bitorder="little")[:count].astype(bool)


def write(
    tokenizer: Tokenizer, grammar: Grammar, rng: np.random.Generator, limit: int, closing: float
) -> tuple[str, bool, bool]:
    """Text of at most `limit` tokens drawn from random logits through the masks, whether the constraint ended
    it, and whether the constraint allowed an end. closing: added to the
    logits of tokens that close a bracket or a text.
    """
    count = tokenizer.vocab_size
    bitmask = np.zeros(-(-count // 32), np.uint32)
    closers = np.zeros(count)
    closers[[i for i in range(count) if tokenizer.token_bytes(i)[:1] in (b'"', b"}", b"]", b",")]] = closing
    closers[list(tokenizer.eog)] = closing
    constraint = grammar.constraint()
    ids: list[int] = []
    while not constraint.finished and len(ids) < limit:
        constraint.fill(bitmask)
        allowed = unpack(bitmask, count)
        token = int(np.argmax(np.where(allowed, rng.gumbel(size=count) + closers, -np.inf)))
        constraint.accept(token)
        ids.append(token)
    text = tokenizer.stream(start=False)
    whole = text.feed([i for i in ids if i not in tokenizer.eog]) + text.flush()
    return whole, constraint.finished, constraint.complete
