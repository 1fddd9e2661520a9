"""Converts the input items of /v1/responses to chat messages: the reasoning, text and tool calls of one
assistant turn become one message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from satchel.server.problem import Problem

TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
Message = dict[str, Any]


def messages_of(given: str | Sequence[Any], instructions: str | None) -> list[Message]:
    """The input items as chat messages. A Problem names an item that is not supported."""
    found = _Conversation()
    if instructions:
        found.messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        found.messages.append({"role": "user", "content": given})
        return found.messages
    for at, item in enumerate(given):
        where = f"input[{at}]"
        if not isinstance(item, dict):
            raise Problem("invalid", f"{where}: expected an object", where)
        found.add(item, where)
    return found.end()


class _Conversation:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._said: Message | None = None  # the assistant's message in the current turn

    def add(self, item: Message, where: str) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            text = _joined(item.get("content") or item.get("summary") or [], f"{where}.content")
            said = self._assistant()
            said["reasoning_content"] = said.get("reasoning_content", "") + text
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            self.end()
            output = _joined(item.get("output"), f"{where}.output")
            call = _text(item, "call_id", where)
            self.messages.append({"role": "tool", "tool_call_id": call, "content": output})
        else:
            raise Problem("unsupported", f"{where}.type: {kind!r:.60} cannot be read here", f"{where}.type")

    def _message(self, item: Message, where: str) -> None:
        role, content = item.get("role"), _joined(item.get("content"), f"{where}.content")
        if role not in ("user", "system", "developer", "assistant"):
            raise Problem(
                "invalid",
                f"{where}.role: expected user, system, developer or assistant, got {role!r:.60}",
                f"{where}.role",
            )
        if role == "assistant":
            said = self._assistant()
            said["content"] = (said["content"] or "") + content
            return
        self.end()
        self.messages.append({"role": role, "content": content})

    def _call(self, item: Message, where: str) -> None:
        name, number = _text(item, "name", where), _text(item, "call_id", where)
        arguments = _text(item, "arguments", where)
        try:
            json.loads(arguments or "{}")
        except ValueError:
            raise Problem("invalid", f"{where}.arguments: they are no JSON", f"{where}.arguments") from None
        function = {"name": name, "arguments": arguments}
        call = {"id": number, "type": "function", "function": function}
        self._assistant().setdefault("tool_calls", []).append(call)

    def _assistant(self) -> Message:
        if self._said is None:
            self._said = {"role": "assistant", "content": None}
        return self._said

    def end(self) -> list[Message]:
        """Closes the assistant's current turn and returns all messages."""
        if self._said is not None:
            self.messages.append(self._said)
            self._said = None
        return self.messages


def _text(item: Message, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise Problem("invalid", f"{where}.{name}: expected text", f"{where}.{name}")
    return value


def _joined(content: Any, where: str) -> str:
    """The text of a content: a string, or a list of text parts, concatenated."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Problem("invalid", f"{where}: expected text or a list of parts", where)
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif kind in TEXTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            line = f"{where}[{at}]: only text can be given to this model, got {kind!r:.60}"
            raise Problem("unsupported", line, f"{where}[{at}]")
    return "".join(texts)
