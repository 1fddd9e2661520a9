"""Rendered prompts against those of the transformers library (expected.json, made by
tests/data/template/make_expected.py).
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from satchel.errors import RequestError
from satchel.formats.template import ChatTemplate

DATA = Path(__file__).parents[2] / "data" / "template"
SHARED = Path(__file__).parents[4] / "shared" / "templates"
CONVERSATIONS: dict[str, Any] = json.loads((DATA / "conversations.json").read_text("utf-8"))
EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text("utf-8"))
TOOLS = json.loads((DATA / "tools.json").read_text("utf-8"))

SYSTEM = ["system", "system_turns"]
CALLS = ["tool_call", "tool_calls"]
TOOL_USE = ["tools", *CALLS]
# Where the template would refuse or leave out part of the conversation, it is brought into another form
# instead, and
# every text in it must be found in what comes out.
ADAPTED = {
    "alternating.jinja": [*SYSTEM, *TOOL_USE],
    "chatml.jinja": TOOL_USE,
    "features.jinja": TOOL_USE,
    "parts.jinja": list(CONVERSATIONS),
    "HuggingFaceTB-SmolLM3-3B.jinja": TOOL_USE,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja": TOOL_USE,
    "deepseek-ai-DeepSeek-V3.1.jinja": TOOL_USE,
    "google-gemma-2-2b-it.jinja": [*SYSTEM, *TOOL_USE],
    "llama-cpp-deepseek-r1.jinja": TOOL_USE,  # prints a lazy list as JSON, which transformers can't
    "microsoft-Phi-3.5-mini-instruct.jinja": TOOL_USE,
}
# features.jinja renders only the first line of the first messages.
PARTIAL = {"features.jinja"}


def load(name: str) -> ChatTemplate:
    path = DATA / name if (DATA / name).exists() else SHARED / name
    if not path.exists():
        pytest.skip(f"../shared/templates/{name} is absent")
    source = path.read_text("utf-8")
    return ChatTemplate(
        source, bos_token="<BOS>", eos_token="<EOS>", now=lambda: datetime(2025, 3, 9, 12, 30)
    )


def render(template: ChatTemplate, conversation: dict[str, Any]) -> str:
    return template.render(
        conversation["messages"],
        tools=TOOLS if conversation.get("tools") else None,
        add_generation_prompt=conversation.get("add_generation_prompt", True),
        variables=conversation.get("variables"),
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_same_text_as_transformers(name: str) -> None:
    template = load(name)
    compared = 0
    for title, expected in EXPECTED[name].items():
        if title in ADAPTED.get(name, ()):
            continue
        conversation = CONVERSATIONS[title]
        if isinstance(expected, str):
            assert render(template, conversation) == expected, title
        else:
            with pytest.raises(RequestError, match=r"tokenizer\.chat_template line \d+: ") as caught:
                render(template, conversation)
            assert expected["error"] in str(caught.value), title
        compared += 1
    assert compared + len(ADAPTED.get(name, ())) == len(CONVERSATIONS)


def spoken_texts(conversation: dict[str, Any]) -> list[str]:
    """What a prompt must hold of a conversation, in this order: names of tools, texts, calls, results."""
    texts = []
    for message in conversation["messages"]:
        # A template may drop thoughts, the text beside a call and outer spaces.
        if message.get("tool_calls"):
            texts += [call["function"]["name"] for call in message["tool_calls"]]
        else:
            texts.append(message["content"].split("</think>")[-1].strip().replace("/no_think", ""))
    return [json.dumps(text, ensure_ascii=False)[1:-1] if text.startswith("{") else text for text in texts]


@pytest.mark.parametrize(("name", "title"), [(n, t) for n, titles in ADAPTED.items() for t in titles])
def test_nothing_is_lost_where_the_form_changes(name: str, title: str) -> None:
    conversation = CONVERSATIONS[title]
    prompt = render(load(name), conversation)
    if conversation.get("tools") and name not in PARTIAL:
        assert '"weather"' in prompt and '"time"' in prompt
    place = 0
    for text in [] if name in PARTIAL else spoken_texts(conversation):
        places = [prompt.find(form, place) for form in (text, text.replace('\\"', '"'))]
        found = min((p for p in places if p >= 0), default=-1)
        assert found >= 0, f"{text!r} is missing after character {place} of {prompt!r}"
        place = found


@pytest.mark.parametrize("name", EXPECTED)
def test_every_template_takes_every_form_of_a_call(name: str) -> None:
    template = load(name)
    tools = TOOLS if "tool_use" in name else None
    prompts = set()
    for content in (None, ""):
        for arguments in ({"city": "Bern"}, '{"city": "Bern"}'):
            call = {"id": "call00001", "function": {"name": "weather", "arguments": arguments}}
            messages = [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": content, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call00001", "content": "drizzle"},
            ]
            prompts.add(template.render(messages, tools=tools))
    assert len(prompts) == 1, "the same call in another form gave another prompt"
    if name not in PARTIAL:
        (prompt,) = prompts
        assert prompt.find("weather") < prompt.find("Bern") < prompt.find("drizzle")
