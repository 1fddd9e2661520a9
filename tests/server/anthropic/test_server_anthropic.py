"""Anthropic's official client against the server: messages, streams, tools, thinking, errors in its shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

anthropic = pytest.importorskip("anthropic")

from satchel.runtime.api.options import Options  # noqa: E402
from satchel.server.settings import ServerSettings  # noqa: E402
from satchel.store.resolve import default_model  # noqa: E402

MODEL = default_model().stem
HI = [{"role": "user", "content": "Who are you?"}]
GREEDY = {"temperature": 0}
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
pytestmark = pytest.mark.model


@pytest.fixture
def client(server: str) -> Any:
    return anthropic.Anthropic(base_url=server, api_key="k", max_retries=0, timeout=60)


@pytest.fixture
def thoughtful(thinker: str) -> Any:
    return anthropic.Anthropic(base_url=thinker, api_key="k", max_retries=0, timeout=60)


def ask(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 12, "messages": HI, "extra_body": GREEDY, **more}


def post(server: str, body: Any, path: str = "/v1/messages") -> httpx.Response:
    return httpx.post(f"{server}{path}", json=body, timeout=60)


def test_a_stream_adds_up_to_the_whole_answer(client: Any) -> None:
    whole = client.messages.create(**ask())
    with client.messages.stream(**ask()) as stream:
        types = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert types[0] == "message_start" and types[-2:] == ["message_delta", "message_stop"]
    assert streamed.content[0].text == whole.content[0].text != ""
    assert (streamed.stop_reason, whole.stop_reason) == ("max_tokens", "max_tokens")
    assert streamed.usage.output_tokens == whole.usage.output_tokens == 12


def test_every_event_has_its_name_and_a_ping_comes(server: str) -> None:
    text = post(server, {"model": MODEL, "max_tokens": 3, "messages": HI, "stream": True}).text
    events = [block.split("\n") for block in text.strip().split("\n\n")]
    names = [lines[0].removeprefix("event: ") for lines in events]
    assert names == [json.loads(lines[1].removeprefix("data: "))["type"] for lines in events]
    assert names[:2] == ["message_start", "ping"]


def test_what_the_cache_had_is_counted_apart(client: Any) -> None:
    said = [{"role": "user", "content": "Name three rivers of Europe, and say where each of them ends. " * 3}]
    first = client.messages.create(**ask(messages=said)).usage
    second = client.messages.create(**ask(messages=said)).usage
    whole = client.messages.count_tokens(model=MODEL, messages=said).input_tokens
    assert second.cache_read_input_tokens > 0
    assert second.input_tokens + second.cache_read_input_tokens == whole
    assert first.input_tokens + first.cache_read_input_tokens == whole


def test_a_stop_sequence_is_named_and_never_shown(client: Any) -> None:
    whole = client.messages.create(**ask()).content[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
    with client.messages.stream(**ask(stop_sequences=["nowhere", stop])) as stream:
        pieces = list(stream.text_stream)
        end = stream.get_final_message()
    assert "".join(pieces) == whole[: whole.index(stop)]
    assert (end.stop_reason, end.stop_sequence) == ("stop_sequence", stop)


def test_an_answer_that_ends_by_itself_ends_its_turn(client: Any) -> None:
    told = client.messages.create(**ask(max_tokens=200))
    assert (told.stop_reason, told.stop_sequence) == ("end_turn", None)


def test_a_full_context_is_its_own_reason(thoughtful: Any) -> None:
    said = [{"role": "user", "content": "x" * 900}]
    fmt = {"format": {"type": "json_schema", "schema": {"type": "string", "minLength": 500}}}
    told = thoughtful.messages.create(
        **ask(
            model="thinker", messages=said, max_tokens=500, output_config=fmt, thinking={"type": "disabled"}
        )
    )
    assert told.stop_reason == "model_context_window_exceeded"


def test_a_conversation_in_blocks_is_that_in_texts(client: Any) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    name, hello = {"type": "text", "text": "My name is Anna."}, {"type": "text", "text": "Hello Anna!"}
    ask_it = [{"type": "text", "text": "What is", **cached}, {"type": "text", "text": "my name?"}]
    blocks = [
        {"role": "user", "content": [name]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, hello]},
        {"role": "user", "content": ask_it},
    ]
    texts = [
        {"role": "user", "content": "My name is Anna."},
        {"role": "assistant", "content": "Hello Anna!"},
        {"role": "user", "content": "What is\nmy name?"},
    ]
    told = [
        client.messages.create(**ask(messages=said, system=system))
        for said, system in ((blocks, [{"type": "text", "text": "Be kind.", **cached}]), (texts, "Be kind."))
    ]
    assert told[0].content == told[1].content
    assert "warnings" not in told[0].model_extra


def test_an_assistant_message_at_the_end_is_gone_on_from(client: Any) -> None:
    whole = client.messages.create(**ask()).content[0].text
    head = whole[: whole.index(" ", len(whole) // 2)]
    said = [*HI, {"role": "assistant", "content": head}]
    assert (head + client.messages.create(**ask(messages=said)).content[0].text).startswith(whole)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_call_can_be_asked_for(thoughtful: Any, choice: dict[str, Any]) -> None:
    choice = {**choice, "disable_parallel_tool_use": True}
    asked = ask(model="thinker", tools=[WEATHER], tool_choice=choice, max_tokens=300)
    asked |= {"thinking": {"type": "disabled"}}
    whole = thoughtful.messages.create(**asked)
    with thoughtful.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for told in (whole, streamed):
        assert told.stop_reason == "tool_use"
        (call,) = [block for block in told.content if block.type == "tool_use"]
        assert (
            call.name == "weather" and call.input["city"] in ("Oslo", "Rome") and call.input["days"] in (1, 2)
        )


def test_the_result_of_a_call_is_read(thoughtful: Any) -> None:
    said = [
        *HI,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome", "days": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
             "content": [{"type": "text", "text": "no such city"}]},
            {"type": "text", "text": "Try again"},
        ]},
    ]  # fmt: skip
    before = thoughtful.messages.count_tokens(model="thinker", messages=HI).input_tokens
    after = thoughtful.messages.count_tokens(model="thinker", messages=said, tools=[WEATHER]).input_tokens
    assert after > before + 20
    assert thoughtful.messages.create(**ask(model="thinker", messages=said, tools=[WEATHER])).content


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_thinking_has_its_own_block_and_its_budget(thoughtful: Any, display: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": 6, "display": display}
    asked = ask(model="thinker", max_tokens=40, thinking=thinking)
    whole = thoughtful.messages.create(**asked)
    with thoughtful.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for told in (whole, streamed):
        assert [block.type for block in told.content][:2] == ["thinking", "text"]
        assert bool(told.content[0].thinking) == (display == "summarized")
        assert told.content[0].signature
    assert whole.content[0].signature == streamed.content[0].signature


def test_an_answer_can_be_held_to_a_schema_and_keeps_its_characters(client: Any) -> None:
    said = "🦜 héllo 漢字 👩‍👩‍👧"
    fmt = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"const": said}},
                                              "required": ["a"], "additionalProperties": False}}  # fmt: skip
    with client.messages.stream(**ask(max_tokens=120, output_config={"format": fmt})) as stream:
        pieces = list(stream.text_stream)
    assert json.loads("".join(pieces)) == {"a": said}
    assert not any("�" in piece for piece in pieces)


def says(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "x"}
BASH = {"type": "bash_20250124", "name": "bash"}
NAMED = {"type": "tool", "name": "x"}
BUDGET = {"type": "enabled", "budget_tokens": 12}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "H01-no-messages": ({"messages": []}, "messages"),
    "H02-a-fraction-of-a-token": ({"max_tokens": 1.5}, "max_tokens"),
    "H02-true-for-a-number": ({"max_tokens": True}, "max_tokens"),
    "H02-text-for-a-number": ({"temperature": "1"}, "temperature"),
    "H03-top_k-below-0": ({"top_k": -1}, "top_k"),
    "H03-many-stops": ({"stop_sequences": ["x"] * 100_000}, "stop_sequences"),
    "H04-an-empty-stop": ({"stop_sequences": [""]}, "stop_sequences[0]"),
    "H04-no-content": ({"messages": [says()]}, "messages[0].content"),
    "H07-a-schema-in-a-circle": (
        {"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#"}}}},
        "schema",
    ),
    "H10-no-schema": ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    "H10-a-list": ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
    "H10-twice-the-same-name": ({"tools": [WEATHER, WEATHER]}, "tools"),
    "H10-a-tool-of-the-server": ({"tools": [BASH]}, "tools[0].type"),
    "H10-no-such-tool": ({"tool_choice": NAMED}, "tool_choice"),
    "H11-a-document": ({"messages": [says(DOCUMENT)]}, "messages[0].content[0]: document blocks"),
    "H12-an-image-of-this-machine": ({"messages": [says(IMAGE)]}, "messages[0].content[0]: image blocks"),
    "no-budget": ({"thinking": {"type": "enabled"}}, "thinking"),
    "all-for-thinking": ({"thinking": BUDGET}, "thinking.budget_tokens"),
    "a-user-calls": ({"messages": [says(CALL)]}, "messages[0].content[0]"),
    "a-result-of-no-call": ({"messages": [*HI, says(RESULT)]}, "messages[1]"),
}


@pytest.mark.parametrize("row", WRONG)
def test_what_is_wrong_is_named(server: str, row: str) -> None:
    more, named = WRONG[row]
    answer = post(server, {"model": MODEL, "max_tokens": 12, "messages": HI, **more})
    told = answer.json()
    assert answer.status_code == 400, told
    assert told["type"] == "error" and told["error"]["type"] == "invalid_request_error"
    assert named in told["error"]["message"]
    assert told["request_id"] == answer.headers["request-id"]


def test_the_clients_exceptions_are_the_right_ones(
    client: Any, serving_of: Callable[..., AbstractContextManager[str]]
) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**ask(model="nope"))
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as long:
        client.messages.create(**ask(messages=[{"role": "user", "content": "word " * 5000}]))
    assert long.value.body["error"]["n_prompt_tokens"] > long.value.body["error"]["n_ctx"]
    settings = ServerSettings(port=0, api_keys=("right",), most_body=2000)
    with serving_of([default_model()], Options(), settings) as guarded:
        for key, error, kind in (
            ("wrong", anthropic.AuthenticationError, "authentication_error"),
            ("right", anthropic.RequestTooLargeError, "request_too_large"),
        ):
            with pytest.raises(error) as refused:
                anthropic.Anthropic(base_url=guarded, api_key=key, max_retries=0).messages.create(
                    **ask(system="x" * 3000)
                )
            assert refused.value.body["error"]["type"] == kind
            assert refused.value.request_id == refused.value.body["request_id"]


def test_an_error_in_a_stream_is_an_event(client: Any, engine_gone: str) -> None:
    with pytest.raises(anthropic.APIStatusError) as error, client.messages.stream(**ask()) as stream:
        for _ in stream.text_stream:
            pass
    assert error.value.body["error"] == {"type": "api_error", "message": engine_gone}


def test_models_are_listed_in_pages(client: Any, server: str) -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert client.models.retrieve(MODEL).created_at == model.created_at
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nope")
    assert "object" in httpx.get(f"{server}/v1/models").json()
    marked = {"anthropic-version": "2023-06-01"}
    page = httpx.get(f"{server}/v1/models?after_id={MODEL}", headers=marked).json()
    assert page == {"data": [], "has_more": False, "first_id": None, "last_id": None}
    long = "limit=0000000019" + "9" * 5000
    for query in ("limit=0", "limit=x", "limit=00000000120", long, "after_id=nope"):
        wrong = httpx.get(f"{server}/v1/models?{query}", headers=marked)
        assert wrong.status_code == 400 and wrong.json()["error"]["type"] == "invalid_request_error"


def test_unknown_fields_are_told(server: str) -> None:
    body = {"model": MODEL, "messages": HI, "mcp_servers": [], "tools": [{**WEATHER, "x": 1}]}
    told = post(server, {**body, "max_tokens": 2}).json()["warnings"]
    assert any("'mcp_servers'" in line for line in told) and any("'tools[0].x'" in line for line in told)
    assert post(server, body, "/v1/messages/count_tokens").json()["warnings"] == told
