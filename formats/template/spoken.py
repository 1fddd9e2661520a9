"""Tool definitions, calls and results as JSON text in messages, for a template without tool support.

Invariant: the JSON contains all names, arguments, ids and texts of the request.
"""

from __future__ import annotations

import json
from typing import Any

from satchel.formats.template.messages import Message

_FORM = '{"tool_calls": [{"name": "...", "arguments": {...}}]}'


def text_of(content: Any) -> str:
    """Content as one string; parts are joined by newlines."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


def joined(*texts: str) -> str:
    """The texts that are not empty, joined by an empty line."""
    return "\n\n".join(text for text in texts if text)


def definitions(tools: list[Message], native_calls: bool) -> str:
    """System text that lists the tools, and the format of calls unless the template has its own."""
    listed = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False, indent=2)
    how = "" if native_calls else f"To call tools, answer with nothing but JSON of this form:\n{_FORM}"
    return joined(f"You can call these tools:\n{listed}", how)


def called(message: Message) -> Message:
    """An assistant message with its calls written into its text, in the format that
    `definitions` asks for.
    """
    calls = [
        {**call["function"], "arguments": _parsed(call["function"]["arguments"]), "id": call.get("id")}
        for call in message["tool_calls"]
    ]
    plain = [{key: value for key, value in call.items() if value is not None} for call in calls]
    text = json.dumps({"tool_calls": plain}, ensure_ascii=False)
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": joined(text_of(message["content"]), text)}


def result(message: Message) -> Message:
    """A user message with the result of a tool."""
    fields = {key: message[key] for key in ("name", "tool_call_id") if message.get(key) is not None}
    answer = {"tool_response": {**fields, "content": text_of(message["content"])}}
    return {"role": "user", "content": json.dumps(answer, ensure_ascii=False)}


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
