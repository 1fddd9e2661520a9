"""JSON made wrong by its values: what is left is JSON, so that mutations reach what reads the values."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

# Beyond every range and type, or senseless; and what schemas and requests mean something by.
EXTREMES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e308, -1e308, 5e-324, 1 << 31, 1 << 63, -(1 << 63), 10**400,
    "", "a", "\0", "\U0001f600", "<|im_end|>", "a" * 300, "{{ 7 }}", "^(a+)+$", "[", "\\", "#", "#/$defs/a",
    [], {}, [None], [[]], [""], [0] * 50, {"": 0}, {"a": {}}, {"type": "string"}, {"type": "object"},
)  # fmt: skip
NAMES = (
    "", "a", "$ref", "$defs", "type", "anyOf", "allOf", "oneOf", "not", "if", "items", "prefixItems", "enum",
    "const", "pattern", "format", "required", "properties", "additionalProperties", "patternProperties",
    "minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
    "content", "role", "tool_calls", "tools", "stream", "n", "best_of", "echo", "logprobs", "top_logprobs",
    "seed", "response_format", "grammar", "json_schema", "stop", "logit_bias", "max_tokens", "n_predict",
    "priority", "chat_template_kwargs", "reasoning_effort", "cache_prompt", "id_slot", "lora", "samplers",
    "user",
)  # fmt: skip
Place = tuple[Any, Any]  # a list or an object, and the index or the name of one of its values


def places(value: Any) -> list[Place]:
    """All places below a value."""
    found: list[Place] = []
    left = [value]
    while left:
        one = left.pop()
        for key in one if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ():
            found.append((one, key))
            left.append(one[key])
    return found


def put(value: Any, rand: random.Random, other: Any) -> None:
    holder, key = rand.choice(places(value))
    holder[key] = copy.deepcopy(rand.choice(EXTREMES))


def graft(value: Any, rand: random.Random, other: Any) -> None:
    """A value of the same or another input takes the place of one."""
    holder, key = rand.choice(places(value))
    source, at = rand.choice(places(rand.choice([value, other])) or [([0], 0)])
    holder[key] = copy.deepcopy(source[at])


def add(value: Any, rand: random.Random, other: Any) -> None:
    objects = [value, *(h[k] for h, k in places(value))]
    holder = rand.choice([one for one in objects if isinstance(one, dict)] or [{}])
    source, at = rand.choice(places(rand.choice([value, other])) or [([0], 0)])
    holder[rand.choice(NAMES)] = copy.deepcopy(rand.choice([*EXTREMES, source[at], source[at]]))


def drop(value: Any, rand: random.Random, other: Any) -> None:
    holder, key = rand.choice(places(value))
    del holder[key]


def repeat(value: Any, rand: random.Random, other: Any) -> None:
    """A list's value several times over."""
    lists = [one for one in (h[k] for h, k in places(value)) if isinstance(one, list) and one]
    if lists:
        found = rand.choice(lists)
        found += copy.deepcopy(found[:1]) * rand.choice([1, 2, 30])


def wrap(value: Any, rand: random.Random, other: Any) -> None:
    holder, key = rand.choice(places(value))
    for _ in range(rand.choice([1, 1, 3, 60])):
        holder[key] = [holder[key]] if rand.random() < 0.5 else {rand.choice(NAMES): holder[key]}


CHANGES: tuple[Callable[[Any, random.Random, Any], None], ...] = (
    put,
    put,
    graft,
    add,
    add,
    drop,
    repeat,
    wrap,
)


def mutate_json(whole: bytes, rand: random.Random, others: Sequence[bytes], at: int = 0) -> bytes:
    """A mutated copy of an input whose JSON text begins at byte `at`; the same where it has none."""
    try:
        value, other = json.loads(whole[at:]), json.loads(rand.choice(others)[at:])
    except (ValueError, RecursionError):
        return whole
    for _ in range(rand.choice([1, 1, 1, 2, 3, 5])):
        if places(value):
            rand.choice(CHANGES)(value, rand, other)
    head = rand.choice(others)[:at] if rand.random() < 0.1 else whole[:at]
    try:
        return head + json.dumps(value).encode()
    except (ValueError, RecursionError):
        return whole
