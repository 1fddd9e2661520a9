"""Mutations of JSON and TOML values. The text stays parsable, so mutations reach the code that reads the
values.
"""

from __future__ import annotations

import copy
import json
import random
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import tomli_w
from mutate import mutate

# Values beyond every range and type, and keywords that schemas and requests know.
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
Place = tuple[Any, Any]  # a list or object, and the index or key of one of its values


def places(value: Any) -> list[Place]:
    """All places within a value."""
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
    """Replaces a value with one of the same or another input."""
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
    """Repeats a value of a list several times."""
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


# Splits an input into the text before the values, the values, and the text after them.
Parts = tuple[bytes, bytes, bytes]


def after_one_byte(whole: bytes) -> Parts:
    return whole[:1], whole[1:], b""


def all_of_it(whole: bytes) -> Parts:
    return b"", whole, b""


def last_body(whole: bytes) -> Parts:
    """The text after the last empty line."""
    head, line, text = whole.rpartition(b"\n\n")
    return head + line, text, b""


def first_message(whole: bytes) -> Parts:
    """The JSON of a worker message without its length prefix, and the bytes after it."""
    size = int.from_bytes(whole[:8], "little")
    return whole[8:16], whole[16 : 16 + size], whole[16 + size :]


def mutate_values(target: str, whole: bytes, rand: random.Random, others: Sequence[bytes]) -> bytes:
    """A copy of a target's input with other values; with other bytes where its values can't be parsed."""
    cut, loads, dumps = READERS[target]
    head, text, tail = cut(whole)
    try:
        value, other = loads(text), loads(cut(rand.choice(others))[1])
        for _ in range(rand.choice([1, 1, 1, 2, 3, 5])):
            if places(value):
                rand.choice(CHANGES)(value, rand, other)
        made = dumps(value)
    except (ValueError, TypeError, RecursionError):
        return mutate(whole, rand, others)
    if cut is first_message:
        return len(made).to_bytes(8, "little") + head + made + tail
    return (cut(rand.choice(others))[0] if rand.random() < 0.1 else head) + made + tail


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def toml_value(text: bytes) -> Any:
    return tomllib.loads(text.decode())


def toml_bytes(value: Any) -> bytes:
    return tomli_w.dumps(value).encode()


# Targets whose inputs hold JSON or TOML, with the functions that parse and write it.
READERS: dict[str, tuple[Callable[[bytes], Parts], Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "requests": (after_one_byte, json.loads, json_bytes),
    "schema": (all_of_it, json.loads, json_bytes),
    "registry": (last_body, json.loads, json_bytes),
    "wire": (first_message, json.loads, json_bytes),
    "lock": (all_of_it, toml_value, toml_bytes),
    "config": (all_of_it, toml_value, toml_bytes),
}
