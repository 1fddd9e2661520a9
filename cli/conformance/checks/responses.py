"""/v1/responses: OpenAI's Responses API, whole responses and every index that its client reads."""

from __future__ import annotations

from typing import Any

from satchel.cli.conformance.expect import expect, fits, parsed, same
from satchel.cli.conformance.target import ConformanceTarget

PATH = "/v1/responses"
ORDER = ("response.created", "response.in_progress", "response.output_item.added")
TEXT = "response.output_text"
USAGE = {
    "input_tokens": int,
    "input_tokens_details": {"cached_tokens": int},
    "output_tokens": int,
    "output_tokens_details": {"reasoning_tokens": int},
    "total_tokens": int,
}
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"place": {"enum": ["Oslo"]}}, "required": ["place"]},
}


def _body(target: ConformanceTarget, **fields: Any) -> dict[str, Any]:
    asked = {"input": "Write two sentences about a small town by the sea.", "max_output_tokens": 24}
    return {"model": target.model, "temperature": 0, **asked, **fields}


def create(target: ConformanceTarget) -> None:
    """A response has every key that the client's class requires."""
    found = target.post(PATH, _body(target))
    head = {"id": str, "object": "response", "created_at": float, "status": str, "model": str}
    rest = {"output": [dict], "parallel_tool_calls": bool, "tool_choice": (str, dict), "tools": list}
    fits(found, head | rest | {"usage": USAGE})
    message = next((item for item in found["output"] if item.get("type") == "message"), None)
    content = [{"type": "output_text", "text": str, "annotations": list}]
    fits(message, {"id": str, "role": "assistant", "status": str, "content": content}, "the message")


def client(target: ConformanceTarget) -> None:
    """openai: responses.create() gives output_text."""
    expect(target.openai.responses.create(**_body(target)).output_text, "output_text is empty")


def cut(target: ConformanceTarget) -> None:
    """max_output_tokens makes a response incomplete and says why."""
    found = target.post(PATH, _body(target, max_output_tokens=3))
    fits(found, {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}})


def turns(target: ConformanceTarget) -> None:
    """input may be messages with parts, and instructions go before them."""
    parts = [{"type": "input_text", "text": "What is a harbour?"}]
    asked = _body(target, input=[{"role": "user", "content": parts}], instructions="Be brief.")
    fits(target.post(PATH, asked), {"object": "response", "output": [dict]})


def stream(target: ConformanceTarget) -> None:
    """Events are named, numbered from 0 without a gap, and come in the client's order; there is no [DONE]."""
    events = target.events(PATH, _body(target))
    expect(all(e.data != "[DONE]" for e in events), "a [DONE] at the end")
    expect(all(e.name == e.data["type"] for e in events), "an event's name is not its type")
    same("sequence numbers", [e.data.get("sequence_number") for e in events], list(range(len(events))))
    kinds = [e.name for e in events]
    same("the first events", tuple(kinds[:3]), ORDER)
    expect(kinds[-1] in ("response.completed", "response.incomplete"), f"the last event is {kinds[-1]}")


def stream_indices(target: ConformanceTarget) -> None:
    """Each event of the text has item_id, output_index and content_index, and the deltas join to it."""
    events = [e.data for e in target.events(PATH, _body(target))]
    deltas = [e for e in events if e["type"] == f"{TEXT}.delta"]
    fits(deltas, [{"item_id": str, "output_index": int, "content_index": int, "delta": str}], "deltas")
    done = next((e for e in events if e["type"] == f"{TEXT}.done"), None)
    fits(done, {"item_id": deltas[0]["item_id"], "text": "".join(e["delta"] for e in deltas)}, f"{TEXT}.done")


def stream_client(target: ConformanceTarget) -> None:
    """openai: the responses.stream() helper assembles the response."""
    with target.openai.responses.stream(**_body(target)) as events:
        kinds = [e.type for e in events]
        found = events.get_final_response()
    expect(f"{TEXT}.delta" in kinds, "no delta of text")
    expect(found.output_text, "output_text is empty")


def tool(target: ConformanceTarget) -> None:
    """A tool that must be called is a function_call item with call_id and arguments as text."""
    asked = _body(target, tools=[TOOL], tool_choice="required", max_output_tokens=100)
    found = target.able(PATH, asked)["output"]
    call = next((item for item in found if item.get("type") == "function_call"), None)
    fits(call, {"id": str, "call_id": str, "name": "weather", "arguments": str}, "the call")
    same("the arguments", parsed(call["arguments"], "the arguments"), {"place": "Oslo"})  # type: ignore[index]


def tool_stream(target: ConformanceTarget) -> None:
    """A call's stream has the deltas of its arguments and their end."""
    asked = _body(target, tools=[TOOL], tool_choice="required", max_output_tokens=100)
    target.able(PATH, asked)
    events = [e.data for e in target.events(PATH, asked)]
    kind = "response.function_call_arguments"
    deltas = [e for e in events if e["type"] == f"{kind}.delta"]
    fits(deltas, [{"item_id": str, "output_index": int, "delta": str}], "deltas")
    done = next((e for e in events if e["type"] == f"{kind}.done"), None)
    fits(done, {"arguments": "".join(e["delta"] for e in deltas)}, f"{kind}.done")


def form(target: ConformanceTarget) -> None:
    """text.format json_schema holds the answer to the schema."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    about = {"type": "json_schema", "name": "n", "schema": schema | {"additionalProperties": False}}
    asked = _body(target, text={"format": about}, max_output_tokens=60)
    items = target.post(PATH, asked)["output"]
    text = next(i["content"][0]["text"] for i in items if i["type"] == "message")
    fits(parsed(text, "the answer"), {"n": int}, "the answer")
