"""Random conversations: what a request of a chat may hold, and what a template may stumble over."""

from __future__ import annotations

import json
import random
from typing import Any

PIECES = (
    "Hello!", "What is 2 + 2?", "", " ", "\n", "\n\n", "  two  spaces ", "Grüße aus Zürich", "日本語",
    "👩‍👩‍👧 and \u200d", "it's \"quoted\"", "back\\slash", "{'a': 1}", '{"a": [1, 2.5, null]}',
    "tab\there",
    "\u2028line\u2029", "\x00\x01\x7f", "\U000f0001\ue000", "<b>&amp;</b>", "<think>", "</think>", "[INST]",
    "[/INST]", "<|im_start|>",
    "<|im_end|>", "<|eot_id|>", "<s>", "</s>", "<tool_call>", "</tool_call>", "<start_of_turn>",
    "<|channel|>final<|message|>", "｜", "<｜Assistant｜>", "%s", "{}", "{{ x }}", "/no_think",
    "<tool_response>", "é" * 9,
)  # fmt: skip
NAMES = ("weather", "get_time", "a", "sök", "<|im_end|>")
VALUES: tuple[Any, ...] = (
    1, -7, 0, 2.5, 1e-7, 1e22, 123456789012, True, False, None, "x", "Zürich", "", "<|im_end|>", [],
    [1, "two", [None]], {}, {"k": {"n": 0.1}},
)  # fmt: skip


def text(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.choice((1, 1, 1, 2, 3))))


def content(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return [{"type": "text", "text": text(rng)} for _ in range(rng.choice((0, 1, 1, 2)))]
    return text(rng)


def arguments(rng: random.Random) -> dict[str, Any]:
    return {
        rng.choice(("city", "n", "unit", "é", "<s>")): rng.choice(VALUES) for _ in range(rng.randrange(4))
    }


def tool(rng: random.Random) -> dict[str, Any]:
    kinds = ("string", "integer", "number", "boolean", "array", "object", ["string", "null"])
    properties: dict[str, Any] = {}
    for name in rng.sample(("city", "unit", "n", "list", "deep"), rng.randrange(4)):
        properties[name] = {"type": rng.choice(kinds), "description": text(rng)}
        if properties[name]["type"] == "array":
            properties[name]["items"] = {"type": "string"}
        if rng.random() < 0.3:
            properties[name]["enum"] = ["one", "<s>"]
        if rng.random() < 0.3:
            properties[name]["default"] = rng.choice(VALUES)
    function: dict[str, Any] = {"name": rng.choice(NAMES), "description": text(rng)}
    if rng.random() < 0.9:
        function["parameters"] = {"type": "object", "properties": properties}
        if rng.random() < 0.5:
            function["parameters"]["required"] = list(properties)[:1]
    return {"type": "function", "function": function}


def call(rng: random.Random, number: int) -> dict[str, Any]:
    given: Any = arguments(rng)
    if rng.random() < 0.3:
        given = json.dumps(given, ensure_ascii=rng.random() < 0.5)
    made: dict[str, Any] = {"function": {"name": rng.choice(NAMES), "arguments": given}}
    if rng.random() < 0.8:
        made = {"id": f"call{number:05}", "type": "function", **made}
    return made


def turn(rng: random.Random, number: int) -> list[dict[str, Any]]:
    """A user's message, and mostly an answer to it, which may call tools."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": content(rng)}]
    if rng.random() < 0.25:
        calls = [call(rng, 10 * number + i) for i in range(rng.choice((1, 1, 2)))]
        said = rng.choice((None, "", text(rng)))
        messages.append({"role": "assistant", "content": said, "tool_calls": calls})
        for made in calls[: rng.choice((1, 2))]:
            result: dict[str, Any] = {"role": "tool", "content": content(rng)}
            if rng.random() < 0.8:
                result["tool_call_id"] = made.get("id", "call00000")
            if rng.random() < 0.5:
                result["name"] = made["function"]["name"]
            messages.append(result)
    if rng.random() < 0.8:
        answer: dict[str, Any] = {"role": "assistant", "content": content(rng)}
        if rng.random() < 0.3:
            answer[rng.choice(("reasoning_content", "thinking", "reasoning"))] = text(rng)
        elif rng.random() < 0.2:
            answer["content"] = f"<think>\n{text(rng)}\n</think>\n\n{text(rng)}"
        messages.append(answer)
    return messages


def request(rng: random.Random) -> dict[str, Any]:
    """A request of a chat, as satchel_chat_render() takes it."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append(
            {"role": rng.choice(("system", "system", "system", "developer")), "content": content(rng)}
        )
    for number in range(rng.choice((1, 1, 2, 3))):
        messages += turn(rng, number)
        if rng.random() < 0.05:
            messages.append({"role": "system", "content": text(rng)})
    made: dict[str, Any] = {"messages": messages}
    if rng.random() < 0.4:
        made["tools"] = [tool(rng) for _ in range(rng.choice((0, 1, 2)))]
    if rng.random() < 0.3:
        made["add_generation_prompt"] = rng.random() < 0.5
    if rng.random() < 0.05:
        made["documents"] = [{"title": text(rng), "text": text(rng)}]
    if rng.random() < 0.4:
        made["chat_template_kwargs"] = {
            name: value
            for name, value in (
                ("enable_thinking", rng.random() < 0.5), ("thinking", rng.random() < 0.5),
                ("reasoning_effort", rng.choice(("low", "high"))), ("custom", rng.choice(VALUES)),
            )
            if rng.random() < 0.5
        }  # fmt: skip
    return made
