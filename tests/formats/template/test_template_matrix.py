"""Published templates against the transformers library: nightly, and only where
SATCHEL_TEMPLATES names a folder of them and transformers is installed.
"""

import json
import os
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from template_data import DATA, TOOLS, USER, call

from satchel.errors import RequestError
from satchel.formats.template import ChatTemplate

FOLDER = os.environ.get("SATCHEL_TEMPLATES", "")
PATHS = sorted(Path(FOLDER).rglob("*.jinja")) if FOLDER else []
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not PATHS, reason="SATCHEL_TEMPLATES names no folder of templates (*.jinja)"),
]


def turn(arguments: Any, content: Any = "", **more: Any) -> list[dict[str, Any]]:
    result = {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": "rain"}
    said = {"role": "assistant", "content": content, "tool_calls": [call("weather", arguments)], **more}
    return [USER, said, result]


CONVERSATIONS: dict[str, Any] = {
    **json.loads((DATA / "conversations.json").read_text("utf-8")),
    "content is none": {"tools": "TOOLS", "messages": turn({"city": "Zürich"}, None)},
    "call without tools": {"messages": turn({"city": "Zürich"})},
    "thought before a call": {
        "tools": "TOOLS",
        "messages": turn({"city": 'a "b" \\ \n {}', "tags": ["x"]}, reasoning_content="I must look."),
    },
    "no system message": {"tools": "TOOLS", "messages": [USER]},
}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("jinja2")
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("make_expected", DATA / "make_expected.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.chat_template_utils.datetime = module.FixedClock
    return module


def parts(conversation: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The texts that a prompt must contain: anywhere, and, of calls, after the user's first message."""
    found, called = (["weather", "time", "Days ahead"] if conversation.get("tools") else []), list[str]()
    for message in conversation["messages"]:
        for one in message.get("tool_calls", ()):
            called += [one["function"]["name"], *one["function"]["arguments"]]
        if not message.get("tool_calls"):
            found.append(message["content"].split("</think>")[-1].replace("/no_think", "").strip())
        found.append(message.get("reasoning_content", ""))
    return found, called


def whole(text: str, conversation: dict[str, Any]) -> bool:
    """Whether a prompt contains the whole conversation, and no argument in Python's syntax."""
    asked = next(m["content"].strip() for m in conversation["messages"] if m["role"] == "user")
    behind = text.partition(asked)[2]
    if "{'" in behind or "begin|>call0" in behind:  # an id where the name should be
        return False
    found, called = parts(conversation)
    places = [*((text, word) for word in found), *((behind, word) for word in called)]
    return all(any(w in place for w in (word, json.dumps(word)[1:-1])) for place, word in places)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_same_text_as_transformers_or_what_it_left_out(path: Path, reference: ModuleType) -> None:
    source = path.read_text("utf-8")
    template = ChatTemplate(
        source, bos_token="<BOS>", eos_token="<EOS>", now=lambda: datetime(2025, 3, 9, 12, 30)
    )
    for title, conversation in CONVERSATIONS.items():
        expected = reference.render(source, conversation)
        try:
            said = template.render(
                conversation["messages"],
                tools=TOOLS if conversation.get("tools") else None,
                add_generation_prompt=conversation.get("add_generation_prompt", True),
                variables=conversation.get("variables"),
            )
        except RequestError as error:
            assert not isinstance(expected, str), f"{title}: {error}"
            continue
        if isinstance(expected, str) and said != expected:
            assert not whole(expected, conversation), f"{title}: the reference's text was whole"
