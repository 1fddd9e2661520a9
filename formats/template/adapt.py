"""Adapts a conversation to what a template supports, as its probes (probes.py) found out.

Invariant: a message is changed only where the template would refuse it or leave it out, and its content is
never lost.
"""

from __future__ import annotations

import json
from typing import Any

from satchel.errors import RequestError
from satchel.formats.template import spoken
from satchel.formats.template.messages import Message
from satchel.formats.template.probes import BESIDE, KINDS, SYSTEM, Probes, call_id


def fit(
    messages: list[Message], tools: list[Message] | None, probes: Probes
) -> tuple[list[Message], list[Message] | None, dict[str, Any]]:
    """The messages, the tools and further variables in the form that this template supports. RequestError for
    call arguments that are not a JSON object.

    - The developer role becomes system, unless the template names that role.
    - A system message that the template does not support is put before the next user message, separated by an
      empty line.
    - Lists of text parts become one text, a line each, unless the template reads lists; text becomes a list
    of one part where the template reads lists only.
    - Call ids contain the tools' names where the template writes the names nowhere else.
    - A call's arguments become an object or JSON text, and its empty content None or "", as the template
    prints them. Text beside calls becomes a message of its own where the template would drop the calls.
    - Tools go where the template reads them: another variable, the system message's `tools`, or `tools` with
    a system message, which is added empty where there is none.
    - Without template support, tools, calls and results are written as JSON into the system message, the
      assistant's text and a user message.
    """
    fitted = [_fit_content(_fit_role(message, probes), probes) for message in messages]
    more: dict[str, Any] = {}
    if tools and not probes.shows_tools():
        place = probes.tools_place()
        if place == SYSTEM:
            fitted = _with_tools(fitted, tools, probes)
        elif place == BESIDE:
            fitted = _opened(fitted, probes)
        elif place:
            more = {place: tools}
        else:
            text = spoken.definitions(tools, probes.call_form()[1] != "")
            fitted = _with_system(fitted, text, probes)
        tools = tools if place == BESIDE else None
    if any("tool_calls" in m for m in fitted) and probes.names_by_id():
        fitted = _named_ids(fitted)
    fitted = _merge_results(fitted, probes)
    fitted = _merge_system(fitted, probes)
    fitted = [part for i, m in enumerate(fitted) for part in _fit_calls(m, f"messages[{i}]", probes)]
    return fitted, tools, more


def _content(text: str, probes: Probes) -> Any:
    return [{"type": "text", "text": text}] if probes.wants_parts() else text


def _fit_role(message: Message, probes: Probes) -> Message:
    if message["role"] != "developer" or probes.names_developer():
        return message
    return {**message, "role": "system"}


def _fit_content(message: Message, probes: Probes) -> Message:
    content = message["content"]
    if isinstance(content, list) and not probes.reads_parts(message["role"]):
        content = spoken.text_of(content)
    elif content is None and "tool_calls" not in message:
        content = ""
    if isinstance(content, str) and (content or "tool_calls" not in message):
        content = _content(content, probes)
    return {**message, "content": content}


def _with_system(messages: list[Message], text: str, probes: Probes) -> list[Message]:
    first, *rest = messages
    if first["role"] not in ("system", "developer"):
        return [{"role": "system", "content": _content(text, probes)}, *messages]
    whole = spoken.joined(spoken.text_of(first["content"]), text)
    return [{**first, "content": _content(whole, probes)}, *rest]


def _with_tools(messages: list[Message], tools: list[Message], probes: Probes) -> list[Message]:
    """The messages with the tools as JSON text in the system message's `tools`."""
    first, *rest = _opened(messages, probes)
    listed = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    return [{**first, "tools": listed}, *rest]


def _named_ids(messages: list[Message]) -> list[Message]:
    """Replaces call ids, in calls and results, by ids that contain the tool's name and the call's number in
    the conversation.
    """
    made: dict[Any, str] = {}
    named: list[Message] = []
    count = 0
    for message in messages:
        if "tool_calls" in message:
            made = {}
            for call in message["tool_calls"]:
                name = call["function"]["name"]
                given = str(call.get("id", ""))
                made[given] = given if f".{name}:" in given else call_id(name, count)
                count += 1
            calls = [{**call, "id": made[str(call.get("id", ""))]} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            answered = message.get("tool_call_id")
            message = {**message, "tool_call_id": made.get(answered, answered)}
        named.append(message)
    return named


def _opened(messages: list[Message], probes: Probes) -> list[Message]:
    """The messages, with an empty system message added where there is none."""
    if messages[0]["role"] in ("system", "developer"):
        return messages
    return [{"role": "system", "content": _content("", probes)}, *messages]


def _merge_results(messages: list[Message], probes: Probes) -> list[Message]:
    """Writes tool results as user messages, all results of a turn as one: many templates require alternating
    roles.
    """
    if not any(m["role"] == "tool" for m in messages) or probes.shows_results():
        return messages
    merged: list[Message] = []
    open_results = False
    for message in messages:
        if message["role"] == "tool":
            said = spoken.result(message)
            if open_results:
                before = spoken.text_of(merged.pop()["content"])
                said["content"] = f"{before}\n{said['content']}"
            message, open_results = {**said, "content": _content(said["content"], probes)}, True
        else:
            open_results = False
        merged.append(message)
    return merged


def _merge_system(messages: list[Message], probes: Probes) -> list[Message]:
    merged: list[Message] = []
    waiting: list[str] = []
    for i, message in enumerate(messages):
        role = message["role"]
        if role in ("system", "developer") and not probes.shows_role(role, first=i == 0):
            waiting.append(spoken.text_of(message["content"]))
            continue
        if role == "user" and waiting:
            whole = spoken.joined(*waiting, spoken.text_of(message["content"]))
            message, waiting = {**message, "content": _content(whole, probes)}, []
        merged.append(message)
    if waiting:
        merged.append({"role": "user", "content": _content(spoken.joined(*waiting), probes)})
    return merged


def _fit_calls(message: Message, where: str, probes: Probes) -> list[Message]:
    if "tool_calls" not in message:
        return [message]
    arguments, content = probes.call_form()
    if not content:
        said = spoken.called(message)
        return [{**said, "content": _content(said["content"], probes)}]
    calls = [_fit_call(c, arguments, f"{where}.tool_calls[{i}]") for i, c in enumerate(message["tool_calls"])]
    text = message["content"]
    if text and not probes.shows_call_beside_text():
        words = {key: value for key, value in message.items() if key != "tool_calls"}
        return [words, {"role": message["role"], "content": KINDS.get(content), "tool_calls": calls}]
    return [{**message, "content": text or KINDS.get(content, text), "tool_calls": calls}]


def _fit_call(call: Message, form: str, where: str) -> Message:
    arguments = call["function"]["arguments"]
    if form == "object" and isinstance(arguments, str):
        arguments = _parsed(arguments, f"{where}.function.arguments")
    elif form == "text" and isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where}: the text is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value
