"""`satchel doctor api` passes a correct server and fails a wrong one: each check finds its fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

pytest.importorskip("httpx")

from canned_server import KEY, Reply, Server, canned

from satchel.cli.conformance.expect import Wrong, fits
from satchel.cli.conformance.suite import FAIL, PASS, SKIP, chosen, found_checks, verdicts
from satchel.cli.conformance.target import ConformanceTarget
from satchel.cli.main import main

CLIENTS = ("openai", "anthropic", "ollama")
Spoil = Callable[[str, dict[str, Any], Reply], None]


def results(url: str, *names: str) -> dict[str, tuple[str, str]]:
    """Result and text of each check by name."""
    target = ConformanceTarget(url, "m", KEY)
    try:
        return {v.name: (v.result, v.text) for v in verdicts(target, chosen(names))}
    finally:
        target.close()


def test_a_right_server_passes_every_check() -> None:
    with canned() as url:
        found = results(url)
    assert {n: r for n, r in found.items() if r[0] == FAIL} == {}
    absent = [n for n, (result, text) in found.items() if result == SKIP and "no package" not in text]
    assert absent == [] and len(found) == len(found_checks()) > 130


def at(value: Any, path: str) -> tuple[Any, Any]:
    """The container of a dotted path's last part, and that part."""
    *way, last = [int(p) if p.lstrip("-").isdigit() else p for p in path.split(".")]
    for part in way:
        value = value[part]
    return value, last


def put(where: str, path: str, value: Any = None, *, when: str = "", drop: bool = False) -> Spoil:
    """Replaces (or drops) a value in the responses of a route; in a stream, in each event that has it.

    when: a field that the request must have.
    """

    def spoil(asked: str, body: dict[str, Any], reply: Reply) -> None:
        given = body.get(when) if when else True
        if asked != where or given is None or given is False or reply.status != 200:
            return
        for one in [d for _, d in reply.events or ()] + (reply.lines or []) + [reply.body]:
            try:
                holder, last = at(one, path)
                if drop:
                    del holder[last]
                elif isinstance(holder, list) or last in holder:
                    holder[last] = value
            except (KeyError, IndexError, TypeError):
                continue

    return spoil


def events(where: str, change: Callable[[list[Any]], Any], when: str = "stream") -> Spoil:
    """Changes the list of a stream's events, (name, data) each, or of its lines."""

    def spoil(asked: str, body: dict[str, Any], reply: Reply) -> None:
        found = reply.events if reply.events is not None else reply.lines
        if asked == where and found is not None and (not when or body.get(when)):
            change(found)

    return spoil


def status(where: str, before: int, after: int, text: Any = None) -> Spoil:
    def spoil(asked: str, body: dict[str, Any], reply: Reply) -> None:
        if asked == where and reply.status == before:
            reply.status = after
            reply.body = text or reply.body

    return spoil


def role_everywhere(found: list[Any]) -> None:
    for _, data in found[:-1]:
        for choice in data["choices"]:
            choice["delta"]["role"] = "assistant"


def leak(found: list[Any]) -> None:
    found.insert(-2, ("", json.loads(json.dumps(found[1][1]))))


def begun_anew(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if asked == CHAT and body["messages"][-1]["role"] == "assistant":
        reply.body["choices"][0]["message"]["content"] = "Begun anew."


def other_numbers(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if asked == EMBED and body["encoding_format"] == "base64":
        reply.body["data"][0]["embedding"] = "AAAAPwAAgL8="


def nameless(found: list[Any]) -> None:
    found[:] = [("", data) for _, data in found]


def half_letters(found: list[Any]) -> None:
    data = found[1][1]
    data["choices"][0]["delta"]["content"] += "\ufffd"


CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBED, MESSAGES = "/v1/embeddings", "/v1/messages"
MESSAGE = "choices.0.message"
NUMBER = {"error": {"message": "m", "type": "invalid_request_error", "param": "temperature", "code": 400}}
FAULTS: list[tuple[str, Spoil]] = [
    ("models.listed", put("/v1/models", "data.0.created", drop=True)),
    ("models.one", put("/v1/models/m", "id", "other")),
    ("models.unknown", status("/v1/models/no-such-model", 404, 400)),
    ("chat.create", put(CHAT, "usage.total_tokens", 1)),
    ("chat.create", put(CHAT, "object", "completion")),
    ("chat.stream", events(CHAT, role_everywhere)),
    ("chat.stream", events(CHAT, lambda found: found.pop())),
    ("chat.stream", events(CHAT, lambda found: found[1][1].update(id="another"))),
    ("chat.stream-text", events(CHAT, leak)),
    ("chat.stream-usage", events(CHAT, lambda found: found.pop(-2), "stream_options")),
    ("chat.stop", put(CHAT, f"{MESSAGE}.content", "too much", when="stop")),
    ("chat.stop-stream", events(CHAT, leak, "stop")),
    ("chat.max-tokens", put(CHAT, "usage.completion_tokens", 12, when="max_completion_tokens")),
    ("chat.several", put(CHAT, "choices.1", drop=True)),
    ("chat.seed", put(CHAT, f"{MESSAGE}.content", "always", when="seed")),
    ("chat.logprobs", put(CHAT, "choices.0.logprobs.content.0.top_logprobs", [])),
    ("chat.logprobs", put(CHAT, "choices.0.logprobs.content.0.logprob", 0.5)),
    ("chat.logprobs-stream", put(CHAT, "choices.0.logprobs", drop=True, when="stream")),
    ("chat.logprobs-alone", status(CHAT, 400, 200)),
    ("chat.two-prefills", status(CHAT, 400, 500)),
    ("chat.prefill", begun_anew),
    ("chat.logit-bias", put(CHAT, f"{MESSAGE}.content", "the same")),
    ("structured-output.schema", put(CHAT, f"{MESSAGE}.content", '{"name": "x"}', when="response_format")),
    ("structured-output.schema", put(CHAT, f"{MESSAGE}.content", "Of course: {}", when="response_format")),
    ("structured-output.unknown-schema", status(CHAT, 400, 200)),
    ("structured-output.letters", events(CHAT, half_letters)),
    ("tools.required", put(CHAT, f"{MESSAGE}.tool_calls.0.function.arguments", {"place": "Oslo"})),
    ("tools.required", put(CHAT, "choices.0.finish_reason", "stop", when="tools")),
    ("tools.named", put(CHAT, f"{MESSAGE}.tool_calls.0.function.name", "weather")),
    ("tools.none", put(CHAT, f"{MESSAGE}.content", when="tools")),
    ("tools.unknown", status(CHAT, 400, 501)),
    ("tools.stream", events(CHAT, lambda found: found.pop(2), "tools")),
    ("tools.stream", put(CHAT, "choices.0.delta.tool_calls.0.index", drop=True)),
    ("tools.stray-result", status(CHAT, 400, 200)),
    ("completions.create", put(TEXT, "object", "chat.completion")),
    ("completions.texts", put(TEXT, "choices.1", drop=True)),
    ("completions.tokens", put(TEXT, "usage.prompt_tokens", 9)),
    ("completions.token-lists", put(TEXT, "choices.1.index", 0)),
    ("completions.echo", put(TEXT, "choices.0.text", "no echo", when="echo")),
    ("completions.logprobs", put(TEXT, "choices.0.logprobs", {"content": []})),
    ("completions.stop", put(TEXT, "choices.0.text", "and on", when="stop")),
    ("completions.stream", put(TEXT, "choices.0.finish_reason", "eos", when="stream")),
    ("responses.create", put(RESPONSES, "parallel_tool_calls", drop=True)),
    ("responses.cut", put(RESPONSES, "status", "completed")),
    ("responses.stream", put(RESPONSES, "sequence_number", 0)),
    ("responses.stream-indices", put(RESPONSES, "content_index", drop=True)),
    ("responses.tool", put(RESPONSES, "output.0.call_id", drop=True)),
    ("responses.tool-stream", put(RESPONSES, "delta", "{")),
    ("responses.form", put(RESPONSES, "output.0.content.0.text", "four")),
    ("embeddings.create", put(EMBED, "data.0.embedding", [1.0, 1.0])),
    ("embeddings.packed", put(EMBED, "data.0.embedding", [0.6, 0.8])),
    ("embeddings.several", put(EMBED, "data.1.index", 0)),
    ("embeddings.dimensions", put(EMBED, "data.0.embedding", [1.0], when="dimensions")),
    ("embeddings.empty", status(EMBED, 400, 200)),
    ("rerank.documents", put("/v1/rerank", "results.2.relevance_score", 9.0)),
    ("rerank.top", put("/v1/rerank", "results.1", drop=True)),
    ("rerank.texts", put("/rerank", "0.score", drop=True)),
    ("errors.shape", status(CHAT, 400, 400, NUMBER)),
    ("errors.ranges", status(CHAT, 400, 200)),
    ("errors.no-json", status(CHAT, 400, 500)),
    ("errors.unknown-model", status(CHAT, 404, 200)),
    ("errors.unknown-route", status("/v1/no-such-route", 404, 404, {"detail": "Not Found"})),
    ("errors.method", status(CHAT, 405, 404)),
    ("errors.media", status(CHAT, 415, 400)),
    ("errors.too-large", status(CHAT, 413, 200)),
    ("errors.context", status(CHAT, 400, 200)),
    ("errors.context-stream", status(CHAT, 400, 200)),
    ("errors.key", status(CHAT, 401, 403)),
    ("errors.crowd", status(CHAT, 200, 503)),
    ("errors.disconnect", put("/slots", "0.is_processing", True)),
    ("anthropic.create", put(MESSAGES, "content", "text")),
    ("anthropic.max-tokens", put(MESSAGES, "stop_reason", "end_turn")),
    ("anthropic.stop-sequence", put(MESSAGES, "stop_sequence")),
    ("anthropic.no-max-tokens", status(MESSAGES, 400, 400, {"error": {"message": "m", "type": "t"}})),
    ("anthropic.error", status(MESSAGES, 404, 400)),
    ("anthropic.keys", status(MESSAGES, 401, 200)),
    ("anthropic.stream", events(MESSAGES, lambda found: found.pop())),
    ("anthropic.stream-text", events(MESSAGES, lambda found: found.pop(3))),
    ("anthropic.tool", put(MESSAGES, "content.0.input", '{"place": "Oslo"}')),
    ("anthropic.thinking", put(MESSAGES, "content.0.type", "reasoning", when="thinking")),
    ("anthropic.count", put(f"{MESSAGES}/count_tokens", "input_tokens", 50)),
    ("ollama.tags", put("/api/tags", "models.0.digest", drop=True)),
    ("ollama.show", put("/api/show", "capabilities", ["embedding"])),
    ("ollama.chat", events("/api/chat", lambda found: found.pop(), "")),
    ("ollama.chat-whole", put("/api/chat", "eval_count", drop=True)),
    ("ollama.generate", put("/api/generate", "done_reason", drop=True)),
    ("ollama.raw", put("/api/generate", "prompt_eval_count", 5, when="raw")),
    ("ollama.options", put("/api/chat", "eval_count", 16)),
    ("ollama.form", put("/api/chat", "message.content", "n is four", when="format")),
    ("ollama.embed", put("/api/embed", "embeddings", [0.5])),
    ("ollama.running", put("/api/ps", "models.0.expires_at", drop=True)),
    ("ollama.error", status("/api/show", 404, 404, {"error": {"message": "no"}})),
    ("ollama.load-and-unload", put("/api/generate", "done_reason", "stop", when="keep_alive")),
    ("ollama.load-and-unload", put("/api/generate", "done_reason", "stop")),
    ("native.health", put("/v1/health", "status", "loading")),
    ("native.slots", put("/slots", "0.is_processing", "no")),
    ("native.tokenize", put("/detokenize", "content", "?")),
    ("native.pieces", put("/tokenize", "tokens", [1])),
    ("native.template", put("/apply-template", "prompt", "")),
    ("native.completion", put("/completion", "stop_type", drop=True)),
    ("native.completion-stream", put("/completion", "stop", True)),
    ("native.metrics", status("/metrics", 200, 200, {"a": 1})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "spoil"), FAULTS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(FAULTS)])
def test_a_wrong_server_fails(name: str, spoil: Spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.cli.conformance.checks.errors.RELEASE", 0.3)
    with canned(spoil) as url:
        result, text = results(url, name)[name]
    assert result == FAIL and text, text


CLIENT_FAULTS: list[tuple[str, Spoil]] = [
    ("models.client", put("/v1/models", "data", None)),
    ("chat.client", put(CHAT, "choices", [])),
    ("chat.stream-client", put(CHAT, "choices.0.index", drop=True, when="stream")),
    ("structured-output.client-parse", put(CHAT, f"{MESSAGE}.content", "count: 1", when="response_format")),
    (
        "structured-output.client-parse-cut",
        put(CHAT, "choices.0.finish_reason", "stop", when="response_format"),
    ),
    ("tools.stream-client", put(CHAT, "choices.0.delta.tool_calls.0.function.name", "absent")),
    ("completions.client", put(TEXT, "choices", None)),
    ("responses.client", put(RESPONSES, "output", [])),
    ("responses.stream-client", put(RESPONSES, "content_index", drop=True)),
    ("embeddings.client", other_numbers),
    ("errors.client", status(CHAT, 400, 422)),
    ("errors.tried-once", status(CHAT, 400, 501)),
    ("anthropic.client", put(MESSAGES, "content", [])),
    ("anthropic.stream-client", events(MESSAGES, nameless)),
    ("anthropic.tool-client", put(MESSAGES, "delta.partial_json", "{")),
    ("anthropic.count-client", put(f"{MESSAGES}/count_tokens", "input_tokens", 0)),
    ("anthropic.error-client", status(MESSAGES, 400, 200)),
    ("ollama.client-chat", events("/api/chat", lambda found: found.pop(0))),
    ("ollama.client-generate", events("/api/generate", lambda found: found.pop(0))),
    ("ollama.client-models", put("/api/ps", "models", [])),
    ("ollama.client-embed", put("/api/embed", "embeddings", [], when="input")),
    ("ollama.client-error", status("/api/chat", 404, 500)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "spoil"), CLIENT_FAULTS, ids=[n for n, _ in CLIENT_FAULTS])
def test_a_client_that_is_given_something_wrong_fails(name: str, spoil: Spoil) -> None:
    with canned(spoil) as url:
        result, text = results(url, name)[name]
    if result == SKIP and "no package" in text:
        pytest.skip(text)
    assert result == FAIL and text, text


def test_every_check_can_fail() -> None:
    tried = {name for name, _ in (*FAULTS, *CLIENT_FAULTS)}
    with_nothing = {c.name for c in found_checks()} - tried

    class Nothing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            """Silences the access log."""

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b'{"detail": "Not Found"}'
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

    import threading

    server = Server(("127.0.0.1", 0), Nothing)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        found = results(f"http://127.0.0.1:{server.server_port}", *sorted(with_nothing))
    finally:
        server.shutdown()
        server.server_close()
    assert {n for n, (result, text) in found.items() if result != FAIL and "no package" not in text} == set()


def test_the_command_prints_a_table_and_fails_with_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    with canned(put("/v1/health", "status", "ill")) as url:
        only = ["--only", "native.h*", "--only", "models.listed"]
        assert main(["doctor", "api", url, "--api-key", KEY, *only]) == 1
        shown = capsys.readouterr().out.splitlines()
        assert shown[0].startswith("PASS  models.listed ") and shown[1].startswith("FAIL  native.health ")
        assert "expected 'ok', got 'ill'" in shown[2] and shown[3] == "1 PASS, 1 FAIL, 0 SKIP"
        assert main(["doctor-api", url, "--api-key", KEY, "--only", "models.listed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "m" and found["counts"] == {PASS: 1}
    assert found["checks"][0]["name"] == "models.listed"


def test_an_absent_client_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "openai", None)
    with canned() as url:
        assert results(url, "chat.client")["chat.client"] == (
            SKIP,
            "no package openai: pip install 'satchel[conformance]'",
        )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["doctor", "api"], 2, "expected http://HOST:PORT"),
        (["doctor", "api", "localhost:80"], 2, "got 'localhost:80'"),
        (["doctor", "api", "http://127.0.0.1:9"], 1, "no list of models (ConnectError"),
        (
            ["doctor", "api", "http://x", "--only", "chatty"],
            1,
            "no check matches 'chatty'; there are anthropic, chat",
        ),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1


def test_the_list_asks_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "api", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found_checks()) and all(len(line) > 34 for line in lines)


@pytest.mark.parametrize(
    ("value", "pattern", "text"),
    [
        ({"a": 1}, {"a": str}, "the body.a: expected str, got 1"),
        ({}, {"a": str}, "the body: no 'a' in {}"),
        ({"a": True}, {"a": int}, "the body.a: expected int, got True"),
        ([], [int], "the body: expected a list with something, got []"),
        ([1, "x"], [int], "the body[1]: expected int, got 'x'"),
        ([], {"a": int}, "the body: expected an object, got []"),
        (3, (str, None), "the body: expected str or null, got 3"),
        (3, None, "the body: expected None, got 3"),
    ],
)
def test_shapes_that_do_not_fit_are_told(value: Any, pattern: Any, text: str) -> None:
    with pytest.raises(Wrong) as wrong:
        fits(value, pattern)
    assert str(wrong.value) == text


def test_shapes_that_fit() -> None:
    fits(
        {"a": [{"b": 1.5}, {"b": 2}], "c": None, "d": "x", "e": True}, {"a": [{"b": float}], "c": (int, None)}
    )
