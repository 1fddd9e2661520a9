"""Converts Anthropic messages to the library's chat messages: each tool result becomes a message
of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from satchel.server.anthropic.blocks import (
    Block,
    Content,
    RedactedBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.problem import Problem

ALLOWED: dict[str, tuple[type[Body], ...]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedBlock, ToolUseBlock),
    "system": (TextBlock,),
}
FAILED = "Error: "  # the prefix of a failed tool's result: chat templates have no field for is_error


class AnthropicMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: Content


def messages_of(system: Sequence[TextBlock], messages: Sequence[AnthropicMessage]) -> list[JsonObject]:
    """The messages as `Model.chat` takes them. A Problem names a block that its role does not allow."""
    found = [{"role": "system", "content": _parts(system)}] if system else []
    for i, message in enumerate(messages):
        _check(message, f"messages[{i}]")
        said = _assistant(message.content) if message.role == "assistant" else _others(message)
        found += said
    return found


def _check(message: AnthropicMessage, where: str) -> None:
    if not message.content and message.role != "assistant":
        raise Problem("invalid", f"{where}.content is empty: give a text", f"{where}.content")
    for i, block in enumerate(message.content):
        if not isinstance(block, ALLOWED[message.role]):
            place = f"{where}.content[{i}]"
            raise Problem("invalid", f"{place}: a {message.role} message has no {block.type} block", place)


def _assistant(content: Sequence[Block]) -> Iterator[JsonObject]:
    said: JsonObject = {"role": "assistant"}
    texts = [b for b in content if isinstance(b, TextBlock)]
    thoughts = [b.thinking for b in content if isinstance(b, ThinkingBlock)]
    calls = [_call(b) for b in content if isinstance(b, ToolUseBlock)]
    said["content"] = "".join(t.text for t in texts) or (None if calls else "")
    if thoughts:
        said["reasoning_content"] = "\n\n".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    yield said


def _call(block: ToolUseBlock) -> JsonObject:
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}


def _others(message: AnthropicMessage) -> Iterator[JsonObject]:
    """Adjacent text blocks become one message; each tool result becomes one."""
    for kind, blocks in groupby(message.content, type):
        if kind is TextBlock:
            yield {"role": message.role, "content": _parts([b for b in blocks if isinstance(b, TextBlock)])}
        else:
            yield from (_result(b) for b in blocks if isinstance(b, ToolResultBlock))


def _result(block: ToolResultBlock) -> JsonObject:
    text = "\n".join(t.text for t in block.content)
    said = f"{FAILED}{text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": said}


def _parts(texts: Sequence[TextBlock]) -> str | list[JsonObject]:
    if len(texts) == 1:
        return texts[0].text
    return [{"type": "text", "text": t.text} for t in texts]
