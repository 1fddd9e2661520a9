"""A forced tool call is generated in the model's own format, and returned as a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from call_templates import BEGINS, OWN, template_of
from tiny_file import write_model

pytest.importorskip("fastapi")

from satchel.runtime.api.options import Options
from satchel.server.settings import ServerSettings

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 3},
        "on": {"type": "boolean"},
        "deep": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "zip": {"type": "string", "pattern": "^[0-9]{2}$"},
    },
    "required": ["city", "days", "on", "deep", "zip"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("weather", "other")
]
FAMILIES = [
    *((family, "") for family in OWN),
    *((family, begin) for family in BEGINS for begin in BEGINS[family][1:]),
]


def name_of(family: str, begin: str) -> str:
    return f"{family}{FAMILIES.index((family, begin))}"


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory, serving_of: Any) -> Iterator[str]:
    """A server of tiny random models, each with its own template."""
    folder, paths = tmp_path_factory.mktemp("families"), []
    for family, begin in FAMILIES:
        path = folder / f"{name_of(family, begin)}.gguf"
        write_model(path, tokenizer__chat_template=template_of(family, begin), qwen3__context_length=4096)
        paths.append(path)
    with serving_of(paths, Options(slots=1), ServerSettings(port=0)) as address:
        yield address


@pytest.mark.parametrize(("family", "begin"), FAMILIES)
def test_a_forced_call_comes_in_every_format(families: str, family: str, begin: str) -> None:
    ask = {
        "model": name_of(family, begin),
        "messages": [{"role": "user", "content": "hi"}],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "max_tokens": 1000,
        "seed": 3,
    }
    answer = httpx.post(f"{families}/v1/chat/completions", json=ask, timeout=60)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert "tool_calls" in choice["message"], choice
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "weather"
    given = json.loads(call["function"]["arguments"])
    assert list(given) == list(PARAMETERS["properties"])
    assert given["city"] in ("Oslo", "Rome") and given["days"] in (1, 2, 3) and given["on"] in (True, False)
    assert given["deep"] in ({"a": 1}, {"a": 2}) and len(given["zip"]) == 2 and given["zip"].isdigit()
