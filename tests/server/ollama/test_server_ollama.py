"""Ollama's official client against the server: texts, conversations, streams, tools, thinking, embeddings,
errors.
"""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest
from waiting import SECONDS, until

ollama = pytest.importorskip("ollama")

from satchel.store.resolve import default_model  # noqa: E402

NAME = default_model().stem
MODEL = f"{NAME}:latest"
HI = [{"role": "user", "content": "Who are you?"}]
GREEDY = {"temperature": 0, "num_predict": 12}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
pytestmark = pytest.mark.model


@pytest.fixture
def client(server: str) -> Any:
    return ollama.Client(host=server, timeout=60)


@pytest.fixture
def thoughtful(thinker: str) -> Any:
    return ollama.Client(host=thinker, timeout=60)


def post(server: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server}/api/{path}", json={"model": MODEL, **body}, timeout=60)


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_lines_add_up_to_the_whole_answer(client: Any) -> None:
    asked = {"model": MODEL, "messages": HI, "options": GREEDY}
    whole, streamed = client.chat(**asked), list(client.chat(**asked, stream=True))
    assert "".join(part.message.content for part in streamed) == whole.message.content != ""
    assert [part.done for part in streamed] == [*[False] * (len(streamed) - 1), True]
    for end in (whole, streamed[-1]):
        assert (end.model, end.done_reason, end.eval_count) == (MODEL, "length", 12)
        assert end.total_duration >= end.prompt_eval_duration + end.eval_duration > 0
        assert end.prompt_eval_count > 0 and end.load_duration >= 0


def test_a_text_is_answered_as_a_conversation(client: Any) -> None:
    told = client.chat(model=MODEL, messages=HI, options=GREEDY).message.content
    asked = {"model": NAME, "prompt": HI[0]["content"], "options": GREEDY}
    assert client.generate(**asked).response == told
    assert "".join(part.response for part in client.generate(**asked, stream=True)) == told


def test_streaming_is_what_happens_unless_said(server: str, in_turns: None) -> None:
    parts = lines(post(server, "generate", prompt="Hi", options=GREEDY))
    assert len(parts) > 2 and parts[-1]["done"] and "warnings" not in parts[-1]


def test_tokens_of_an_answer_can_be_gone_on_from(client: Any) -> None:
    first = client.generate(model=MODEL, prompt="My name is Anna.", options=GREEDY)
    second = client.generate(model=MODEL, prompt="What is my name?", context=first.context, options=GREEDY)
    assert second.context[: len(first.context)] == first.context
    assert second.prompt_eval_count > len(first.context)
    assert second.response != client.generate(model=MODEL, prompt="What is my name?", options=GREEDY).response


def test_a_raw_prompt_is_read_as_it_stands(server: str) -> None:
    end = post(server, "generate", prompt="Once<|im_end|>", raw=True, stream=False, options=GREEDY).json()
    assert end["prompt_eval_count"] < 5 and "context" not in end


def test_a_stop_text_never_shows(client: Any) -> None:
    whole = client.generate(model=MODEL, prompt="Who are you?", options=GREEDY).response
    stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
    asked = {"model": MODEL, "prompt": "Who are you?", "options": {**GREEDY, "stop": ["nowhere", stop]}}
    parts = list(client.generate(**asked, stream=True))
    assert "".join(part.response for part in parts) == whole[: whole.index(stop)]
    assert parts[-1].done_reason == "stop"


def test_forms_hold_and_characters_stay_whole(client: Any) -> None:
    said = "🦜 héllo 漢字 👩‍👩‍👧"
    fmt = {"type": "object", "properties": {"a": {"const": said}}, "required": ["a"]}
    asked = {"model": MODEL, "messages": HI, "format": {**fmt, "additionalProperties": False}}
    pieces = [part.message.content for part in client.chat(**asked, stream=True)]
    assert json.loads("".join(pieces)) == {"a": said}
    assert not any("�" in piece for piece in pieces)


def test_log_probabilities_come_with_the_tokens(client: Any) -> None:
    asked = {"model": MODEL, "messages": HI, "options": GREEDY, "logprobs": True, "top_logprobs": 2}
    whole, streamed = client.chat(**asked), list(client.chat(**asked, stream=True))
    told = [entry for part in streamed for entry in part.logprobs or ()]
    assert [t.token for t in told] == [t.token for t in whole.logprobs] and len(told) == 12
    assert "".join(t.token for t in told) == whole.message.content
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in told)


def test_thinking_is_told_apart(thoughtful: Any, thinker: str) -> None:
    asked = {"model": "thinker", "messages": HI, "options": {"temperature": 0, "num_predict": 20}}
    told = thoughtful.chat(**asked)
    assert told.message.thinking and told.message.content == ""
    streamed = list(thoughtful.chat(**asked, stream=True, think=True))
    assert "".join(part.message.thinking or "" for part in streamed) == told.message.thinking
    assert thoughtful.chat(**asked, think=False).message.thinking is None
    assert thoughtful.generate(model="thinker", prompt="x", options=asked["options"]).thinking
    assert thoughtful.show("thinker").capabilities == ["completion", "tools", "thinking"]


def test_a_call_and_its_result_are_read(thoughtful: Any) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    said = [
        *HI,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    options = {"num_predict": 3}
    short = thoughtful.chat(model="thinker", messages=HI, tools=[WEATHER], options=options)
    long = thoughtful.chat(model="thinker", messages=said, tools=[WEATHER], options=options)
    assert long.prompt_eval_count > short.prompt_eval_count + 30


def test_texts_become_vectors(client: Any) -> None:
    told = client.embed(model=MODEL, input=["one", "two"], dimensions=8)
    assert [len(v) for v in told.embeddings] == [8, 8] and told.prompt_eval_count > 0
    assert all(math.isclose(sum(x * x for x in v), 1, rel_tol=1e-4) for v in told.embeddings)
    one = client.embed(model=MODEL, input="one").embeddings[0]
    assert client.embeddings(model=MODEL, prompt="one").embedding == pytest.approx(one)
    assert client.embeddings(model=MODEL, prompt="").embedding == []


def test_a_text_that_is_cut_is_told(server: str) -> None:
    long = "word " * 3000
    told = post(server, "embed", input=["short", long]).json()
    assert told["warnings"][0].startswith("input 1 has ")
    assert "text 0" in post(server, "embed", input=[long], truncate=False).json()["error"]


def test_what_there_is(client: Any, server: str) -> None:
    (model,) = client.list().models
    assert model.model == MODEL and model.size == default_model().stat().st_size
    assert len(model.digest) == 64 and model.details.family
    client.generate(model=MODEL, prompt="word " * 60, options={"num_predict": 1})  # fills a block
    (running,) = client.ps().models
    assert (running.model, running.digest, running.context_length) == (MODEL, model.digest, 2048)
    (pool,) = httpx.get(f"{server}/api/ps", timeout=SECONDS).json()["models"]
    assert pool["kv_tokens"] >= 2048 and 0 < pool["kv_tokens_used"] <= pool["kv_tokens"]
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities and shown.template and shown.parameters
    assert shown.modelinfo["tokenizer.ggml.tokens"] is None
    whole = post(server, "show", verbose=True).json()
    assert len(whole["model_info"]["tokenizer.ggml.tokens"]) > 1000
    assert str(default_model().parent) not in json.dumps(whole)
    assert httpx.get(f"{server}/api/version").json()["version"]


def test_a_model_goes_and_comes_as_asked(thoughtful: Any) -> None:
    def left() -> float | None:
        found = thoughtful.ps().models
        return found and (found[0].expires_at.timestamp())

    told = thoughtful.generate(model="thinker")
    assert (told.done_reason, told.response) == ("load", "")
    assert thoughtful.chat(model="thinker", messages=[], keep_alive="1h").done_reason == "load"
    hour = left()
    assert thoughtful.generate(model="thinker", keep_alive=-1).done_reason == "load"
    assert left() > hour + 1e9
    assert thoughtful.generate(model="thinker", keep_alive=0).done_reason == "unload"
    assert left() == []
    assert thoughtful.generate(model="thinker", prompt="x", keep_alive=0, options={"num_predict": 2}).done
    until(lambda: left() == [], "the model is let go")


@pytest.mark.parametrize("ask", [{}, {"prompt": "x", "options": {"num_predict": 2}}], ids=["stop", "answer"])
def test_a_model_that_was_stopped_stays_once_another_request_has_loaded_it(
    thinker: str, thoughtful: Any, ask: dict[str, Any]
) -> None:
    # Loaded first: a stop during the load of an earlier test's request would hold for that load.
    assert thoughtful.generate(model="thinker").done_reason == "load"
    assert thoughtful.generate(model="thinker", keep_alive=0, **ask).done
    until(lambda: thoughtful.ps().models == [], "the model is unloaded")
    for _ in range(2):
        told = httpx.post(f"{thinker}/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=60)
        assert told.status_code == 200
    (found,) = thoughtful.ps().models
    assert found.expires_at.year > 2200, "the server has no --sleep-idle-seconds, so the model stays"


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "H01-no-model": ("generate", {"model": ""}, "model"),
    "H02-text-for-a-number": ("chat", {"options": {"temperature": "1"}}, "options.temperature"),
    "H02-a-fraction-of-a-token": ("chat", {"options": {"num_predict": 1.5}}, "options.num_predict"),
    "H02-true-for-a-number": ("chat", {"options": {"seed": True}}, "options.seed"),
    "H03-top_logprobs": ("chat", {"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
    "H03-many-stops": ("chat", {"options": {"stop": ["x"] * 100_000}}, "options.stop"),
    "H04-an-empty-stop": ("chat", {"options": {"stop": ""}}, "options.stop"),
    "H04-a-negative-token": ("generate", {"prompt": "x", "context": [-1]}, "context[0]"),
    "H04-no-such-token": ("generate", {"prompt": "x", "context": [10**8]}, "token id 100000000"),
    "H04-an-empty-text": ("embed", {"input": [""]}, "text 0"),
    "H05-num_keep": ("chat", {"options": {"num_keep": -2}}, "options.num_keep"),
    "H05-repeat_last_n": ("chat", {"options": {"repeat_last_n": -2}}, "options.repeat_last_n"),
    "H07-a-schema-in-a-circle": ("chat", {"format": {"$ref": "#"}}, "schema"),
    "H07-no-form": ("chat", {"format": "xml"}, "format"),
    "H10-no-function": ("chat", {"tools": [{"type": "function"}]}, "tools[0]"),
    "H10-arguments-as-text": (
        "chat",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        "arguments",
    ),
    "H11-images-beside-a-prompt": ("generate", {"prompt": "x", "images": ["eA=="]}, "images"),
    "H11-images-in-a-message": ("chat", {"messages": [{**HI[0], "images": ["x"]}]}, "messages[0].images"),
    "more-context": ("generate", {"prompt": "x", "options": {"num_ctx": 10**6}}, "-c 1000000"),
    "thinking": ("chat", {"think": True}, "thinking"),
    "a-template": ("generate", {"prompt": "x", "template": "y"}, "template"),
    "a-hole": ("generate", {"prompt": "x", "suffix": "y"}, "suffix"),
    "raw-with-system": ("generate", {"prompt": "x", "raw": True, "system": "y"}, "system"),
    "a-long-prompt": ("generate", {"prompt": "word " * 5000}, "the context holds"),
    "keep_alive": ("generate", {"keep_alive": "soon"}, "keep_alive"),
    "dimensions": ("embed", {"input": "x", "dimensions": 0}, "dimensions"),
}


@pytest.mark.parametrize("row", WRONG)
def test_what_is_wrong_is_named(server: str, row: str) -> None:
    path, body, named = WRONG[row]
    answer = post(server, path, **{**({"messages": HI} if path == "chat" else {}), **body})
    assert answer.status_code == 400
    assert named in answer.json()["error"]


def test_the_clients_exceptions_say_it(client: Any) -> None:
    for call in (
        lambda: client.generate(model="nope", prompt="x"),
        lambda: list(client.chat(model="nope", messages=HI, stream=True)),
        lambda: client.show("nope"),
    ):
        with pytest.raises(ollama.ResponseError) as missing:
            call()
        assert "does not exist" in str(missing.value)
    for call in (
        lambda: client.push(MODEL),
        lambda: client.create("x", from_=MODEL, quantize="q4_K_M"),
        lambda: client.pull("http://127.0.0.1/x.gguf"),
    ):
        with pytest.raises(ollama.ResponseError) as refused:
            call()
        assert refused.value.status_code == 400


def test_an_error_in_a_stream_is_a_line(client: Any, engine_gone: str) -> None:
    parts = []
    with pytest.raises(ollama.ResponseError) as error:
        parts.extend(client.chat(model=MODEL, messages=HI, options=GREEDY, stream=True))
    assert error.value.error == engine_gone


def test_options_without_effect_are_told(server: str) -> None:
    options = {**GREEDY, "num_gpu": 1, "num_ctx": 64, "wild": 1}
    told = lines(post(server, "generate", prompt="x", options=options, mine=2))[-1]["warnings"]
    assert [line.split()[0] for line in told] == ["the", "the", "options.num_gpu", "options.num_ctx"]
    assert "'mine'" in told[0] and "'options.wild'" in told[1]
    assert "'mine'" in post(server, "embeddings", prompt="", mine=2).json()["warnings"][0]
    assert "'mine'" in post(server, "show", mine=2).json()["warnings"][0]


def test_what_is_too_long_can_be_cut(server: str) -> None:
    said = [{"role": "user", "content": f"{i} word " * 300} for i in range(5)]
    told = post(server, "chat", messages=said, truncate=True, stream=False, options=GREEDY).json()
    assert told["done"] and "left out" in told["warnings"][0]
    refused = post(server, "chat", messages=said, stream=False, options=GREEDY)
    assert refused.status_code == 400 and refused.json()["n_prompt_tokens"] > refused.json()["n_ctx"]
