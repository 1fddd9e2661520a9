"""/v1/messages: Anthropic's API, whole responses and event streams."""

from __future__ import annotations

from typing import Any

from satchel.cli.conformance.expect import Skip, expect, fits, parsed, same
from satchel.cli.conformance.target import QUESTION, ConformanceTarget, Event, raised, said

PATH = "/v1/messages"
USAGE = {"input_tokens": int, "output_tokens": int}
MESSAGE = {
    "id": str,
    "type": "message",
    "role": "assistant",
    "model": str,
    "stop_reason": str,
    "usage": USAGE,
}
PLACE = {"type": "object", "properties": {"place": {"enum": ["Oslo"]}}, "required": ["place"]}
TOOL = {"name": "weather", "description": "Get the weather.", "input_schema": PLACE}
ERROR = {"type": "error", "error": {"type": str, "message": str}}


def _body(target: ConformanceTarget, **fields: Any) -> dict[str, Any]:
    return {"model": target.model, "max_tokens": 24, "temperature": 0, "messages": QUESTION, **fields}


def _call(body: dict[str, Any]) -> dict[str, Any]:
    """The body as the client's method takes it; some versions of the client have no temperature."""
    rest = {k: v for k, v in body.items() if k != "temperature"}
    return rest | {"extra_body": {"temperature": body["temperature"]}}


def _text(message: Any) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def create(target: ConformanceTarget) -> None:
    """An answer is a message with a list of text blocks, stop_reason, stop_sequence and usage."""
    found = target.post(PATH, _body(target))
    fits(found, MESSAGE | {"content": [{"type": str}], "stop_sequence": None})
    expect(_text(found), "no text in the answer")


def client(target: ConformanceTarget) -> None:
    """anthropic: messages.create() gives the text."""
    found = target.anthropic.messages.create(**_call(_body(target)))
    same("type", found.type, "message")
    expect(found.content, "no content")
    same("text", _text(found.model_dump()), _text(target.post(PATH, _body(target))))


def system(target: ConformanceTarget) -> None:
    """system may be text or blocks, content too, with the same answer."""
    as_text = _body(target, system="Be brief.")
    blocks = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    as_blocks = _body(target, system=[{"type": "text", "text": "Be brief."}], messages=blocks)
    same("the answer", _text(target.post(PATH, as_blocks)), _text(target.post(PATH, as_text)))


def max_tokens(target: ConformanceTarget) -> None:
    """max_tokens is told as stop_reason max_tokens."""
    found = target.post(PATH, _body(target, max_tokens=3))
    fits(found, {"stop_reason": "max_tokens", "usage": {"output_tokens": 3}})


def stop_sequence(target: ConformanceTarget) -> None:
    """A stop sequence is told as stop_reason, by its text, and is not in the answer."""
    text = _text(target.post(PATH, _body(target)))
    mark = text[len(text) // 3 :][:6]
    found = target.post(PATH, _body(target, stop_sequences=[mark]))
    fits(found, {"stop_reason": "stop_sequence", "stop_sequence": mark})
    same("the answer", _text(found), text[: text.index(mark)])


def no_max_tokens(target: ConformanceTarget) -> None:
    """A request without max_tokens is 400 in Anthropic's shape."""
    asked = _body(target)
    del asked["max_tokens"]
    fits(target.refused(PATH, asked), ERROR | {"error": {"type": "invalid_request_error", "message": str}})


def error(target: ConformanceTarget) -> None:
    """Errors have Anthropic's shape with a request_id; an unknown model is 404 not_found_error."""
    wrong = {"type": "error", "error": {"type": "invalid_request_error", "message": str}, "request_id": str}
    fits(target.refused(PATH, _body(target, temperature=-1)), wrong)
    gone = target.refused(PATH, _body(target, model="no-such-model"), 404)
    fits(gone, {"type": "error", "error": {"type": "not_found_error", "message": str}})


def error_client(target: ConformanceTarget) -> None:
    """anthropic: a wrong value raises BadRequestError."""
    bad = target.official("anthropic").BadRequestError
    raised(bad, lambda: target.anthropic.messages.create(**_call(_body(target, temperature=-1))), "create()")


def keys(target: ConformanceTarget) -> None:
    """x-api-key is read as well as Authorization; a wrong one is 401 authentication_error."""
    if not target.key:
        raise Skip("no --api-key was given")
    found = target.http.post(PATH, json=_body(target), headers={"Authorization": "", "x-api-key": target.key})
    expect(found.status_code == 200, f"x-api-key: expected HTTP 200, got {said(found)}")
    headers = {"Authorization": "", "x-api-key": "wrong"}
    found = target.http.post(PATH, json=_body(target), headers=headers)
    expect(found.status_code == 401, f"a wrong x-api-key: expected HTTP 401, got {said(found)}")
    fits(parsed(found.text, "the error"), ERROR | {"error": {"type": "authentication_error"}})


def _stream(target: ConformanceTarget, body: dict[str, Any]) -> list[Event]:
    events = target.events(PATH, body)
    expect(all(e.name == e.data["type"] for e in events), "an event's name is not its type")
    return [e for e in events if e.name != "ping"]


def stream(target: ConformanceTarget) -> None:
    """Events come as message_start, blocks each with start, deltas and stop, message_delta, message_stop."""
    events = _stream(target, _body(target))
    kinds = [e.name for e in events]
    same("the first event", kinds[0], "message_start")
    fits(
        events[0].data["message"], {"id": str, "role": "assistant", "usage": {"input_tokens": int}}, "message"
    )
    same("content of message_start", events[0].data["message"]["content"], [])
    same("the last events", kinds[-2:], ["message_delta", "message_stop"])
    end = {"delta": {"stop_reason": str, "stop_sequence": None}, "usage": {"output_tokens": int}}
    fits(events[-2].data, end, "message_delta")
    same("blocks that end", kinds.count("content_block_stop"), kinds.count("content_block_start"))


def stream_text(target: ConformanceTarget) -> None:
    """The text deltas of a stream join to the answer without a stream."""
    events = [e.data for e in _stream(target, _body(target))]
    deltas = [e["delta"]["text"] for e in events if e.get("delta", {}).get("type") == "text_delta"]
    same("the joined stream", "".join(deltas), _text(target.post(PATH, _body(target))))


def stream_client(target: ConformanceTarget) -> None:
    """anthropic: messages.stream() assembles the message."""
    with target.anthropic.messages.stream(**_call(_body(target))) as events:
        text = "".join(events.text_stream)
        found = events.get_final_message()
    same("the text", text, _text(found.model_dump()))
    expect(found.stop_reason in ("end_turn", "max_tokens"), f"stop_reason is {found.stop_reason}")


def tool(target: ConformanceTarget) -> None:
    """tool_choice any gives a tool_use block with an object as input; stop_reason tool_use."""
    asked = _body(target, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=100)
    found = target.able(PATH, asked)
    same("stop_reason", found["stop_reason"], "tool_use")
    block = next((b for b in found["content"] if b["type"] == "tool_use"), None)
    fits(block, {"id": str, "name": "weather", "input": {"place": "Oslo"}}, "the block")


def tool_client(target: ConformanceTarget) -> None:
    """anthropic: messages.stream() assembles a tool_use block from the deltas of its input."""
    asked = _body(target, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}, max_tokens=100)
    target.able(PATH, asked)
    with target.anthropic.messages.stream(**_call(asked)) as events:
        found = events.get_final_message()
    block = next(b for b in found.content if b.type == "tool_use")
    same("input", block.input, {"place": "Oslo"})


def tool_result(target: ConformanceTarget) -> None:
    """The turn after a call, with its tool_result, is answered."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Oslo"}}
    done = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "7 degrees"}
    turns = [*QUESTION, {"role": "assistant", "content": [use]}, {"role": "user", "content": [done]}]
    fits(target.able(PATH, _body(target, messages=turns, tools=[TOOL])), MESSAGE)


def thinking(target: ConformanceTarget) -> None:
    """thinking is accepted, and thinking blocks come before the text with their signature."""
    asked = _body(target, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    del asked["temperature"]
    kinds = [b["type"] for b in target.able(PATH, asked)["content"]]
    expect(set(kinds) <= {"thinking", "text"}, f"blocks of {kinds}")
    expect("thinking" not in kinds[1:], "a thinking block behind the text")


def count(target: ConformanceTarget) -> None:
    """count_tokens gives the input_tokens that the same request has."""
    asked = {"model": target.model, "messages": QUESTION}
    found = target.post(f"{PATH}/count_tokens", asked)
    fits(found, {"input_tokens": int})
    usage = target.post(PATH, _body(target))["usage"]
    all_read = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    same("input_tokens", found["input_tokens"], all_read)


def count_client(target: ConformanceTarget) -> None:
    """anthropic: messages.count_tokens() works."""
    found = target.anthropic.messages.count_tokens(model=target.model, messages=QUESTION)
    expect(found.input_tokens > 0, "no input_tokens")
