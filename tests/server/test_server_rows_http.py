"""Rows H01 to H10 and H20 of the malformed requests, at OpenAI's and llama-server's routes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from waiting import SECONDS

from satchel.runtime.grammar import Choice, compiled

pytestmark = pytest.mark.model
HI = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 1},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/completion": {"prompt": "hi", "n_predict": 1},
}
OTHERS = (
    "/v1/embeddings", "/v1/rerank", "/score", "/tokenize", "/detokenize", "/apply-template", "/infill",
    "/v1/chat/completions/input_tokens", "/v1/responses/input_tokens", "/slots/0?action=erase",
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def post(server: str, path: str, body: object) -> httpx.Response:
    return httpx.post(f"{server}{path}", json=body, timeout=60)


def refused(answer: httpx.Response, *params: str | None) -> str:
    """Checks the shape of a refusal; returns its line. params: names of the field, one of which it has."""
    assert answer.status_code == 400, answer.text[:500]
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and isinstance(error["code"], str)
    assert not params or error["param"] in params, error
    assert "Traceback" not in error["message"] and "/tmp" not in error["message"]
    return str(error["message"])


@pytest.fixture(autouse=True)
def alive(server: str) -> Any:
    """The next request is answered."""
    yield
    assert httpx.get(f"{server}/healthz", timeout=SECONDS).status_code == 200


@pytest.mark.parametrize("path", [*ROUTES, *OTHERS])
@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"x"', b"{", b"\xff\xfe", b'{"a":"\\ud800"}', b"\xef\xbb\xbf{}", b'{"a":1,"a":2}'],
)
def test_h01_a_body_that_is_no_request(server: str, path: str, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{server}{path}", content=body, headers=headers, timeout=SECONDS)
    empty = path.startswith("/slots") and body == b"null"
    assert answer.status_code == 400 or empty, (path, body, answer.text)


@pytest.mark.parametrize("path", ROUTES)
def test_h01_a_body_that_is_too_deep(server: str, path: str) -> None:
    headers = {"content-type": "application/json"}
    deep = httpx.post(f"{server}{path}", content=b"[" * 100_000, headers=headers, timeout=SECONDS)
    assert deep.status_code == 400 and "deeper" in deep.json()["error"]["message"]


def test_h01_a_body_that_is_too_large(server: str) -> None:
    large = b'{"prompt":"' + b"a" * (17 << 20) + b'"}'
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{server}/v1/completions", content=large, headers=headers, timeout=SECONDS)
    assert answer.status_code == 413 and answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "1"), ("temperature", True), ("temperature", -0.1), ("temperature", 101),
        ("top_p", 1.5), ("top_k", 1.5), ("top_k", True), ("top_k", -2), ("seed", 1 << 64), ("seed", "1"),
        ("min_p", [0.5]), ("stop", 5), ("stop", [""]), ("stream", "yes"), ("stream", 1),
        ("priority", 1e300), ("presence_penalty", 1e300), ("model", 5),
    ],
)  # fmt: skip
def test_h02_numbers_that_are_none(server: str, path: str, name: str, value: object) -> None:
    assert name in refused(post(server, path, {**ROUTES[path], name: value}), name, f"{name}[0]")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_h02_numbers_that_json_has_not(server: str, number: str) -> None:
    body = f'{{"prompt":"hi","temperature":{number}}}'.encode()
    headers = {"content-type": "application/json"}
    refused(httpx.post(f"{server}/v1/completions", content=body, headers=headers, timeout=SECONDS))


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/v1/chat/completions", "n", 10**9),
        ("/v1/chat/completions", "top_logprobs", 10**9),
        ("/v1/chat/completions", "stop", ["x"] * 100_000),
        ("/v1/chat/completions", "logit_bias", {"16384": 1}),
        ("/v1/chat/completions", "logit_bias", {"-1": float(2**40)}),
        ("/v1/chat/completions", "logit_bias", [[-1, 1]]),
        ("/v1/chat/completions", "logit_bias", [[1, True]]),
        ("/v1/chat/completions", "logit_bias", [[1]]),
        ("/v1/chat/completions", "logit_bias", [[1, 10**400]]),
        ("/v1/chat/completions", "logit_bias", {"1" * 5000: 1}),
        ("/v1/chat/completions", "allowed_token_ids", [99_999]),
        ("/v1/chat/completions", "stop_token_ids", [-1]),
        ("/v1/chat/completions", "bad_words", [[99_999]]),
        ("/v1/completions", "best_of", 10**9),
        ("/v1/completions", "logprobs", 10**9),
        ("/v1/completions", "prompt", ["x"] * 100_000),
        ("/v1/completions", "prompt_logprobs", -1),
        ("/completion", "n_probs", 10**9),
        ("/completion", "n_cmpl", 10**9),
    ],
)
def test_h03_counts_that_are_too_large(server: str, path: str, name: str, value: object) -> None:
    assert name.removesuffix("_cmpl") in refused(post(server, path, {**ROUTES[path], name: value}))


def test_h03_fewer_answers_made_than_given(server: str) -> None:
    refused(post(server, "/v1/completions", {"prompt": "x", "n": 3, "best_of": 2}), "best_of")
    refused(post(server, "/v1/completions", {"prompt": ["x"] * 500, "n": 128}), "prompt")


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [""], [16384], [-1], [1.0], [True], [None], {"a": 1}, 5, [[1], ["x"]], [2**70]]
)
def test_h04_prompts_that_are_none(server: str, prompt: object) -> None:
    refused(post(server, "/v1/completions", {"prompt": prompt, "max_tokens": 1}))


def test_h04_a_prompt_of_control_tokens_alone_is_answered(server: str) -> None:
    made = post(server, "/v1/completions", {"prompt": "<|im_start|><|im_end|>", "max_tokens": 1})
    assert made.status_code == 200 and made.json()["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_discard", -(2**31)), ("n_discard", 10), ("n_keep", -1), ("n_keep", 2**62), ("id_slot", -2),
        ("id_slot", 4), ("id_slot", 10**9), ("dry_allowed_length", -1), ("repeat_last_n", -2),
        ("repeat_last_n", 2**62), ("n_cmpl", -1), ("dry_penalty_last_n", -2), ("n_predict", -2),
        ("t_max_predict_ms", -2), ("min_keep", 5), ("n_indent", -1), ("n_cache_reuse", 2**40),
    ],
)  # fmt: skip
def test_h05_negative_and_huge_numbers_of_llama_servers(server: str, name: str, value: int) -> None:
    refused(post(server, "/completion", {**ROUTES["/completion"], name: value}), name, "n")


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "(" * 60_000,
        'root ::= root "a"',
        'root ::= "a"{1,1000000000}',
        "root ::= ",
        "root ::= nobody",
        "root ::= [^",
        'other ::= "a"',
        "root ::= a\na ::= b\nb ::= a",
    ],
)
def test_h06_grammars_that_cannot_be(server: str, grammar: str) -> None:
    answer = post(server, "/completion", {"prompt": "x", "n_predict": 1, "grammar": grammar})
    if answer.status_code == 200:  # the library accepts left recursion; then the answer matches
        assert grammar.startswith("root ::= root")
        return
    refused(answer, "grammar")


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        made = {"anyOf": [made]}
    return made


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "http://127.0.0.1:9/x.json"},
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "string", "pattern": None},
        {"type": "array", "minItems": 10**9},
        nested(40),
        {"type": "nope"},
        {"properties": []},
        False,
    ],
)
def test_h07_schemas_that_cannot_be(server: str, schema: object) -> None:
    fmt = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = post(server, "/v1/chat/completions", {"messages": HI, "max_tokens": 1, "response_format": fmt})
    if schema == nested(40):  # deep, but enforceable
        assert answer.status_code in (200, 400)
        return
    refused(answer, "response_format")


def test_h07_a_schema_of_very_many_properties_ends_in_time(server: str) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(50_000)}}
    answer = post(server, "/completion", {"prompt": "x", "n_predict": 1, "json_schema": schema})
    refused(answer, "json_schema")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(x{1,1000}){1,1000}", "[", "a(?=b)"])
def test_h08_expressions_that_take_too_long(server: str, pattern: str) -> None:
    outputs = {"regex": pattern}
    answer = post(server, "/v1/completions", {"prompt": "x", "max_tokens": 1, "structured_outputs": outputs})
    refused(answer, "structured_outputs.regex")
    answer = post(server, "/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_regex": pattern})
    refused(answer, "guided_regex")


def test_h09_compiled_forms_are_bounded(server: str) -> None:
    """Compiled grammars are in the library's cache, which is bounded."""
    asked = {"prompt": "x", "max_tokens": 1, "structured_outputs": {"choice": ["a", "b"]}}
    assert post(server, "/v1/completions", asked).status_code == 200
    for tokenizer, compiler in list(compiled._compilers.items()):
        for i in range(compiled.MAX_GRAMMARS + 8):
            compiled.compile_grammar(tokenizer, Choice([f"a{i}", "b"]))
        assert len(compiler._kept) <= compiled.MAX_GRAMMARS


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"type": "function"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": 'a"b'}},
        {"type": "function", "function": {"name": ""}},
        {"type": "function", "function": {"name": "x" * 129}},
        {"type": "function", "function": {"name": "f", "parameters": []}},
        {"type": "function", "function": {"name": "f", "parameters": "x"}},
        {"type": "web_search"},
        "f",
    ],
)
def test_h10_tools_that_are_none(server: str, tool: object) -> None:
    refused(post(server, "/v1/chat/completions", {"messages": HI, "tools": [tool]}))


def test_h10_too_many_tools_twice_the_same_and_none(server: str) -> None:
    ask = {"messages": HI, "max_tokens": 1}
    many = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(10_000)]
    refused(post(server, "/v1/chat/completions", {**ask, "tools": many}), "tools")
    refused(post(server, "/v1/chat/completions", {**ask, "tools": [TOOL, TOOL]}), "tools[1].function.name")
    refused(post(server, "/v1/chat/completions", {**ask, "tool_choice": "required"}), "tool_choice")
    named = {"type": "function", "function": {"name": "g"}}
    refused(
        post(server, "/v1/chat/completions", {**ask, "tools": [TOOL], "tool_choice": named}), "tool_choice"
    )
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
    forced = {**ask, "tools": [odd], "tool_choice": "required"}
    refused(post(server, "/v1/chat/completions", forced), "tools")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
@pytest.mark.parametrize("name", ["prompt_embeds", "multimodal_data", "logits_processors", "chat_template"])
def test_h20_nothing_but_text_and_tokens_is_accepted(server: str, path: str, name: str) -> None:
    refused(post(server, path, {**ROUTES[path], name: "gASVDQAAAAAAAACMCWJ1aWx0aW5z"}), name)


@pytest.mark.parametrize("name", ["tokenize", "add_generation_prompt", "messages", "tools", "chat_template"])
def test_templates_keep_their_own_names(server: str, name: str) -> None:
    """T06."""
    body = {"messages": HI, "chat_template_kwargs": {name: True}}
    refused(post(server, "/v1/chat/completions", body), f"chat_template_kwargs.{name}")
    refused(post(server, "/apply-template", body), f"chat_template_kwargs.{name}")
