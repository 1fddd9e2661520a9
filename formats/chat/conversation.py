"""Checks a conversation as a whole: tool results match calls, and ids have the form that the template
requires.

Invariant: after `fit` every call has an id, and each result has the id and name of an earlier call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from satchel.errors import RequestError
from satchel.formats.chat.parser import LETTERS
from satchel.formats.template.messages import Message, Plain, read_messages


def fit(messages: Sequence[Mapping[str, Any]], form: str = "") -> list[Message]:
    """The checked messages, with ids in the family's form. A result without an id belongs to the first call
    without a result.

    RequestError, with the place, for a result without its call, two results of a call, or two calls with one
    id.
    """
    read = read_messages(messages, Plain())
    waiting: dict[str, str] = {}  # names by id, of calls that have no result yet
    answered: set[str] = set()
    for i, message in enumerate(read):
        where = f"messages[{i}]"
        if message["role"] == "assistant":
            waiting, answered = _calls(message, where, i, form), set()
        elif message["role"] == "tool":
            _result(message, where, waiting, answered, form)
    return read


def _calls(message: Message, where: str, number: int, form: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for i, call in enumerate(message.get("tool_calls", ())):
        given = call.get("id") or f"call_{number}_{i}"
        if not isinstance(given, str):
            raise RequestError(f"{where}.tool_calls[{i}].id: expected text, got {type(given).__name__}")
        call["id"] = fit_id(given, form)
        if call["id"] in names:
            raise RequestError(f"{where}.tool_calls[{i}].id: {given!r} is an earlier call's; give it its own")
        names[call["id"]] = call["function"]["name"]
    return names


def _result(message: Message, where: str, waiting: dict[str, str], answered: set[str], form: str) -> None:
    given = message.get("tool_call_id")
    if given is not None and not isinstance(given, str):
        raise RequestError(f"{where}.tool_call_id: expected text, got {type(given).__name__}")
    if not waiting and not answered:
        raise RequestError(f"{where}: a tool's result, but the assistant's message before it calls no tool")
    made = fit_id(given, form) if given else next(iter(waiting), "")
    if made in answered:
        raise RequestError(f"{where}.tool_call_id: {given!r} has its result already")
    if made not in waiting:
        said = repr(given) if given else "missing"
        raise RequestError(
            f"{where}.tool_call_id: expected the id of a call without a result"
            f" ({', '.join(map(repr, waiting)) or 'all have theirs'}), got {said}"
        )
    name = waiting.pop(made)
    answered.add(made)
    message["tool_call_id"] = made
    message.setdefault("name", name)


def fit_id(given: str, form: str) -> str:
    """The id, or one derived from it where the family requires nine letters or digits."""
    if form != "letters9" or (len(given) == 9 and given.isascii() and given.isalnum()):
        return given
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest())
    return "".join(LETTERS[number // len(LETTERS) ** i % len(LETTERS)] for i in range(9))


def parted(messages: Sequence[Message], opening: str, closing: str) -> list[Message]:
    """The messages with the reasoning split off from assistant texts that begin with the marker `opening`:
    clients often send an answer back as it was written, and the template would treat its markers as text.
    """
    return [_parted(message, opening, closing) for message in messages]


def _parted(message: Message, opening: str, closing: str) -> Message:
    content = message.get("content")
    if message["role"] != "assistant" or message.get("reasoning_content") or not isinstance(content, str):
        return message
    begun = content.lstrip()
    if not opening or not begun.startswith(opening):
        return message
    thought, _, said = begun.removeprefix(opening).partition(closing)
    return {**message, "thinking": thought.strip("\n"), "reasoning_content": thought.strip("\n"),
            "content": said.lstrip("\n")}  # fmt: skip


def continued(messages: Sequence[Message]) -> Message | None:
    """The last message, if it is an assistant's text that the answer can continue."""
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        return None
    if len(messages) > 1 and messages[-2]["role"] == "assistant" and "tool_calls" not in messages[-2]:
        raise RequestError(
            f"messages[{len(messages) - 1}]: two assistant messages stand at the end: "
            "only one can be continued; join them"
        )
    return last
