"""Chat completions over HTTP: whole and streamed texts are equal; errors have OpenAI's shape."""

from __future__ import annotations

import json

import httpx
import pytest

ASK = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8, "temperature": 0}


def post(server: str, **more: object) -> httpx.Response:
    return httpx.post(f"{server}/v1/chat/completions", json={**ASK, **more}, timeout=60)


def streamed(server: str, **more: object) -> list[dict]:
    lines = post(server, stream=True, **more).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.mark.model
def test_streamed_and_whole_answers_are_the_same(server: str) -> None:
    whole = post(server).json()
    chunks = streamed(server, stream_options={"include_usage": True})
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == whole["choices"][0]["message"]["content"] != ""
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 8
    assert whole["choices"][0]["finish_reason"] == "length"


@pytest.mark.model
def test_each_of_several_answers_has_its_index(server: str) -> None:
    chunks = streamed(server, n=3, temperature=1.5, seed=1)
    ends = {c["choices"][0]["index"]: c["choices"][0]["finish_reason"] for c in chunks}
    assert ends == {0: "length", 1: "length", 2: "length"}


@pytest.mark.model
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": True}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"model": "nope"}, "model"),
    ],
)
def test_what_is_wrong_is_named(server: str, more: dict, param: str) -> None:
    answer = post(server, **more)
    assert answer.status_code == (404 if param == "model" else 400)
    assert answer.json()["error"]["param"] == param


@pytest.mark.model
def test_a_prompt_that_is_too_long_is_refused_with_its_numbers(server: str) -> None:
    error = post(server, messages=[{"role": "user", "content": "word " * 5000}]).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["n_prompt_tokens"] > error["n_ctx"]
