"""tools and tool_choice: whole calls, streamed calls, and the turn after them."""

from __future__ import annotations

from typing import Any

from satchel.cli.conformance.expect import Skip, expect, fits, parsed, same
from satchel.cli.conformance.target import ConformanceTarget

PATH = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "What is the weather in Oslo?"}]
CALL = {"id": str, "type": "function", "function": {"name": str, "arguments": str}}


def _tool(name: str) -> dict[str, Any]:
    place = {"type": "string", "enum": ["Oslo", "Rome"]}
    schema = {"type": "object", "properties": {"place": place}, "required": ["place"]}
    about = {"name": name, "description": f"Get the {name} of a place.", "parameters": schema}
    return {"type": "function", "function": about | {"strict": True}}


TOOLS = [_tool("weather"), _tool("time")]
NAMES = {"weather", "time"}


def _body(target: ConformanceTarget, choice: Any, **fields: Any) -> dict[str, Any]:
    asked = {"messages": ASKED, "tools": TOOLS, "tool_choice": choice, "max_tokens": 120}
    return target.chat(**asked | fields)


def _right(call: dict[str, Any]) -> None:
    """Asserts that the call names a tool, and that its arguments are JSON text that the tool's schema
    allows.
    """
    fits(call, CALL, "the call")
    expect(call["function"]["name"] in NAMES, f"no tool is named {call['function']['name']!r}")
    value = parsed(call["function"]["arguments"], "the arguments")
    expect(value.get("place") in ("Oslo", "Rome"), f"the arguments are not of the schema: {value}")


def required(target: ConformanceTarget) -> None:
    """tool_choice required gives a call with an id and JSON arguments as text; finish_reason tool_calls."""
    found = target.able(PATH, _body(target, "required"))["choices"][0]
    same("finish_reason", found["finish_reason"], "tool_calls")
    fits(found["message"], {"role": "assistant", "tool_calls": [CALL]}, "the message")
    _right(found["message"]["tool_calls"][0])


def named(target: ConformanceTarget) -> None:
    """tool_choice with a name calls that tool."""
    choice = {"type": "function", "function": {"name": "time"}}
    calls = target.able(PATH, _body(target, choice))["choices"][0]["message"].get("tool_calls")
    fits(calls, [CALL], "tool_calls")
    same("the tool", calls[0]["function"]["name"], "time")
    _right(calls[0])


def none(target: ConformanceTarget) -> None:
    """tool_choice none calls nothing."""
    found = target.able(PATH, _body(target, "none"))["choices"][0]
    expect(not found["message"].get("tool_calls"), "a tool was called")
    fits(found["message"]["content"], str, "content")


def auto(target: ConformanceTarget) -> None:
    """tool_choice auto gives text or right calls, and the finish_reason that goes with it."""
    found = target.able(PATH, _body(target, "auto", parallel_tool_calls=True))["choices"][0]
    calls = found["message"].get("tool_calls") or []
    for call in calls:
        _right(call)
    expect((found["finish_reason"] == "tool_calls") == bool(calls), "finish_reason and calls disagree")


def single(target: ConformanceTarget) -> None:
    """parallel_tool_calls false gives one call at most."""
    asked = _body(target, "required", parallel_tool_calls=False)
    same("calls", len(target.able(PATH, asked)["choices"][0]["message"]["tool_calls"]), 1)


def unknown(target: ConformanceTarget) -> None:
    """tool_choice with the name of no tool is 400."""
    target.refused(PATH, _body(target, {"type": "function", "function": {"name": "absent"}}))


def stream(target: ConformanceTarget) -> None:
    """A call's stream begins with id and name, its arguments join to JSON, and tool_calls ends it."""
    target.able(PATH, _body(target, "required"))
    chunks = target.chunks(PATH, _body(target, "required"))
    choices = [c for chunk in chunks for c in chunk["choices"]]
    parts = [p for c in choices for p in c["delta"].get("tool_calls") or ()]
    fits(parts, [{"index": int, "function": dict}], "parts of calls")
    first = [p for p in parts if p["index"] == 0]
    fits(first[0], {"id": str, "type": "function", "function": {"name": str}}, "the first part")
    expect(not any(p.get("id") for p in first[1:]), "the id comes more than once")
    arguments = "".join(p["function"].get("arguments") or "" for p in first)
    function = {"name": first[0]["function"]["name"], "arguments": arguments}
    _right({"id": first[0]["id"], "type": "function", "function": function})
    same("finish_reason", choices[-1]["finish_reason"], "tool_calls")


def stream_client(target: ConformanceTarget) -> None:
    """openai: chat.completions.stream() assembles the call."""
    target.able(PATH, _body(target, "required"))
    with target.openai.chat.completions.stream(**_body(target, "required")) as events:
        for _ in events:
            pass
        message = events.get_final_completion().choices[0].message
    _right(message.tool_calls[0].model_dump())


def result(target: ConformanceTarget) -> None:
    """The turn after a call, with the tool's result, is answered."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"place":"Oslo"}'},
    }
    turns = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7 degrees, rain"},
    ]
    found = target.able(PATH, target.chat(messages=turns, tools=TOOLS))
    fits(found, {"choices": [{"message": {"role": "assistant"}}]})


def stray_result(target: ConformanceTarget) -> None:
    """A result that answers no call is 400."""
    if target.http.post(PATH, json=_body(target, "none")).status_code == 400:
        raise Skip("the model takes no tools")
    stray = {"role": "tool", "tool_call_id": "call_9", "content": "7 degrees"}
    target.refused(PATH, target.chat(messages=[*ASKED, stray], tools=TOOLS))
