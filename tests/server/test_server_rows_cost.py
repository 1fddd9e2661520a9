"""Requests whose cost exceeds their size: rows A01 to A20 of the hostile requests. During each, the server's
health is probed; conftest's `loop_budget` times the loop's turns.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from loop_budget import Prober
from waiting import ready, until

pytest.importorskip("fastapi")

from satchel.runtime.api.options import Options
from satchel.server.bodies import FACTOR, MOST_CONTAINERS, MOST_ELEMENTS, MOST_STRINGS, check_shape
from satchel.server.ollama.store import ServerPull
from satchel.server.openai import chat
from satchel.server.openai.legacy import Legacy
from satchel.server.problem import Problem
from satchel.server.settings import ServerSettings

pytestmark = pytest.mark.model
HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
MB = 1 << 20


def healthy(server: str) -> int:
    return httpx.get(f"{server}/health", timeout=60).status_code


@pytest.fixture(autouse=True)
def probed(server: str) -> Iterator[None]:
    """The server reports good health all the time."""
    ready(server)
    with httpx.Client(base_url=server, timeout=60) as client:
        with Prober(lambda: client.get("/health").status_code) as prober:
            yield
        assert set(prober.answers) == {200}


def post(server: str, path: str, body: object, **headers: str) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return httpx.post(server + path, content=data, headers={**JSON, **headers}, timeout=120)


def refused(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text[:500]
    return str(answer.json()["error"]["message"])


def doubling(key: str, last: object, levels: int = 60) -> dict[str, Any]:
    steps = {f"a{i}": {key: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**steps, f"a{levels}": last}, "$ref": "#/$defs/a0"}


WORD = {"type": "string", "enum": ["yes"]}


def held(server: str, path: str, schema: object, **more: Any) -> httpx.Response:
    """The response to a request with a schema."""
    fmt = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = (
        {"messages": HI, "response_format": fmt} if path == CHAT else {"prompt": "hi", "json_schema": schema}
    )
    return post(server, path, {**asked, "max_tokens": 20, **more})


@pytest.mark.parametrize("path", [CHAT, "/completion", "/v1/completions"])
def test_a01_a_schema_that_doubles_is_refused(server: str, path: str) -> None:
    """2^60 schemas of one value: compiling them would take all memory, checking an answer for ever."""
    assert "over 1,000 schemas" in refused(held(server, path, doubling("allOf", WORD)))
    assert held(server, path, doubling("anyOf", WORD)).status_code in (200, 400)


@pytest.mark.parametrize("stream", [False, True])
def test_a01_one_that_doubles_a_little_is_judged_in_linear_time(server: str, stream: bool) -> None:
    answer = held(server, CHAT, doubling("allOf", WORD, 9), stream=stream)
    assert answer.status_code == 200 and "yes" in answer.text


@pytest.mark.parametrize("levels", [9, 60])
def test_a01_arguments_of_calls_are_judged_alike(server: str, levels: int) -> None:
    schema = doubling("allOf", WORD, levels)
    parameters = {"type": "object", "properties": {"a": {"$ref": schema["$ref"]}}, "$defs": schema["$defs"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    asked = {"messages": HI, "max_tokens": 60, "tools": [tool], "tool_choice": "required"}
    answer = post(server, CHAT, asked)
    assert answer.status_code in ((200, 400) if levels < 10 else (400,)), answer.text[:300]


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {  # made when it is sent: 140 MB in all
    "lists": (lambda: b"[" + b"[]," * (5 * MB) + b"[]]", "too many lists and objects"),
    "objects": (lambda: b"[" + b"{}," * (5 * MB) + b"{}]", "too many lists and objects"),
    "numbers": (lambda: b"[" + b"1," * (8 * MB - 2) + b"1]", "too many values"),
    "texts": (lambda: b"[" + b'"",' * (5 * MB) + b'""]', "too many texts"),
    "keys": (lambda: b"{" + b",".join(b'"%d":1' % i for i in range(MB)) + b"}", "too many texts"),
    "depth": (lambda: b"[" * (15 * MB), "deeper than 100"),
    "digits": (lambda: b'{"prompt":' + b"9" * MB + b"}", "digits"),
    "escapes": (lambda: b'{"prompt":"' + b"\\\\" * (7 * MB), "no JSON"),
    "quotes": (lambda: b'"' * (15 * MB), "too many texts"),
    "half a pair": (lambda: b'{"prompt":"' + b"\\ud83d\\ude00" * MB + b'\\ud83d"}', "half a surrogate pair"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a05_bodies_of_many_parts(server: str, name: str) -> None:
    body, told = HOSTILE[name]
    assert told in refused(post(server, "/v1/completions", body()))


def test_a05_six_at_once(server: str) -> None:
    body = HOSTILE["lists"][0]()
    with ThreadPoolExecutor(6) as pool:
        for answer in pool.map(lambda _: post(server, CHAT, body), range(6)):
            assert answer.status_code in (400, 503)
            assert any(told in answer.text for told in ("too many lists", "fill their memory"))


def test_a05_as_many_parts_as_are_read(server: str) -> None:
    """Just below the limits: parsed and validated, and wrong in every part."""
    many = MOST_CONTAINERS - 10
    bodies: list[tuple[str, Any]] = [
        ("/v1/completions", {"prompt": [[]] * many}),
        ("/v1/completions", {"prompt": [1] * (MOST_ELEMENTS - 10), "max_tokens": 1}),
        (CHAT, {"messages": [{}] * many}),
        (CHAT, {"messages": HI, "tools": [{}] * many}),
        (CHAT, {"messages": HI, "logit_bias": {str(i): "x" for i in range(MOST_STRINGS // 2 - 20)}}),
        (CHAT, {"messages": HI, **{f"f{i}": 1 for i in range(200_000)}}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 9000}] * 9}),
        ("/v1/embeddings", {"input": ["a"] * 200_000}),
        ("/api/chat", {"model": "", "messages": HI, "options": {f"o{i}": 1 for i in range(200_000)}}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [{}] * many}]}),
        ("/detokenize", {"tokens": [10] * (MOST_ELEMENTS - 20)}),
    ]
    for path, body in bodies:
        assert post(server, path, body).status_code in (200, 400, 404), path


def shape(body: bytes) -> str:
    try:
        check_shape(body)
    except Problem as problem:
        return problem.message
    return ""


def test_a05_the_shape_is_that_of_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets within texts do not count, wherever a piece ends."""
    texts = ['[{"\\', "\\\\", '"', "],}", "\\u005b", "é[", '\\"' * 7]
    inside = json.dumps([texts] * 40).encode()
    for piece in (1, 2, 3, 7, 1 << 20):
        monkeypatch.setattr("satchel.server.bodies.PIECE", piece)
        monkeypatch.setattr("satchel.server.bodies.MOST_CONTAINERS", 41)
        monkeypatch.setattr("satchel.server.bodies.MOST_STRINGS", 40 * len(texts))
        monkeypatch.setattr("satchel.server.bodies.MOST_ELEMENTS", 40 * len(texts) + 42)
        monkeypatch.setattr("satchel.server.bodies.MOST_DEPTH", 2)
        assert shape(inside) == ""
        assert "lists" in shape(inside[:-1] + b",[]]")
        assert "texts" in shape(inside[:-1] + b',""]')
        assert "values" in shape(inside[:-1] + b",1,1]")
        assert "deeper" in shape(b"[" + inside + b"]")


@pytest.fixture
def small(bundled_model: Path, serving_of: Any) -> Iterator[str]:
    """A server with keys and a memory budget for four bodies of a megabyte."""
    settings = ServerSettings(port=0, api_keys=("one", "two"), most_bodies=4 * MB * FACTOR)
    with serving_of([bundled_model], Options(slots=2), settings) as address:
        ready(address)
        yield address


def test_a05_bodies_under_way_share_a_budget(small: str) -> None:
    """One key has at most half of it, and its reservations are freed."""
    body = json.dumps({"prompt": "a" * (3 * MB)}).encode()
    assert "bodies" in refused(post(small, "/v1/completions", body, authorization="Bearer one"), 503)
    fitting = json.dumps({"prompt": "a" * (MB // 4)}).encode()
    for _ in range(10):
        assert "tokens" in refused(post(small, "/v1/completions", fitting, authorization="Bearer one"))
    assert post(small, CHAT, {"messages": HI, "max_tokens": 1}, authorization="Bearer two").status_code == 200


def test_a07_stalled_pulls_do_not_delay_a_chat(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = threading.Event(), threading.Semaphore(0)

    def stalled(self: ServerPull, watch: Any) -> Path:
        begun.release()
        assert go.wait(120)
        watch(None)
        raise FileNotFoundError("nothing came")

    monkeypatch.setattr(ServerPull, "_fetch", stalled)
    with ThreadPoolExecutor(12) as pool:
        pulls = [
            pool.submit(post, server, "/api/pull", {"model": f"hf:a/b{i}", "stream": False})
            for i in range(12)
        ]
        assert all(begun.acquire(timeout=60) for _ in range(2)), "pulls are under way"
        assert post(server, CHAT, {"messages": HI, "max_tokens": 1}).status_code == 200
        assert post(server, "/tokenize", {"content": "hi"}).status_code == 200
        assert not any(pull.done() for pull in pulls[:2])
        go.set()
        assert all(pull.result(60).status_code >= 400 for pull in pulls)


def test_a11_a_prompt_is_refused_by_its_bytes(server: str) -> None:
    for text in ("word " * (14 * MB // 5), "<|im_end|>" * MB):
        for path, body in (
            (CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
            ("/v1/completions", {"prompt": text, "max_tokens": 1}),
            ("/completion", {"prompt": text, "n_predict": 1}),
            ("/infill", {"input_prefix": text, "input_suffix": "x"}),
            ("/tokenize", {"content": text}),
            ("/v1/embeddings", {"input": text}),
            ("/v1/rerank", {"query": text, "documents": ["a"]}),
            ("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": text}]}),
        ):
            answer = post(server, path, body)
            assert answer.status_code == 400, (path, answer.text[:300])


def test_a11_the_refusal_says_how_many(server: str) -> None:
    answer = post(server, CHAT, {"messages": [{"role": "user", "content": "word " * MB}]})
    error = answer.json()["error"]
    assert "at least" in error["message"] and error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"


def test_a17_a_text_of_special_tokens(server: str) -> None:
    text = "<|im_start|><|im_end|>" * 13_000  # 295 kB
    assert "tokens" in refused(post(server, "/completion", {"prompt": text, "n_predict": 1}))
    assert len(post(server, "/tokenize", {"content": text}).json()["tokens"]) == 26_000


def test_a20_a_grammar_of_5000_chained_rules(server: str) -> None:
    rules = [f"{'root' if i == 0 else f'r{i}'} ::= r{i + 1}" for i in range(4999)]
    for last in ('"a"', '"a" | "b" root'):
        grammar = "\n".join([*rules, f"r4999 ::= {last}"])
        answer = post(server, "/completion", {"prompt": "x", "n_predict": 2, "grammar": grammar})
        assert answer.status_code == 200 or "grammar" in refused(answer)
    for grammar in ('root ::= "a"' + "*" * 60_000, 'root ::= "a"' + "(" * 60_000):
        assert "grammar" in refused(post(server, "/completion", {"prompt": "x", "grammar": grammar}))


def test_a12_many_large_schemas(server: str) -> None:
    """All are different, and none stays in a cache for long."""
    for i in range(6):
        schema = {"type": "object", "properties": {f"p{i}_{j}": {"enum": ["a" * 40]} for j in range(500)}}
        answer = post(server, "/completion", {"prompt": "x", "n_predict": 1, "json_schema": schema})
        assert answer.status_code in (200, 400)


@pytest.mark.parametrize("breakers", [["e" * 40] * 33, ["e" * 41], [f"e{i}" for i in range(1000)]])
def test_breakers_are_bounded(server: str, breakers: list[str]) -> None:
    asked = {"prompt": "x", "n_predict": 1, "dry_multiplier": 0.8, "dry_sequence_breakers": breakers}
    refused(post(server, "/completion", asked))
    asked["dry_sequence_breakers"] = [f"e{i}" for i in range(32)]
    assert post(server, "/completion", asked).status_code == 200


def threads_of(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """The names of the threads in which a function is called from now on."""
    usual, seen = getattr(owner, name), list[str]()

    def watched(*args: Any, **how: Any) -> Any:
        seen.append(threading.current_thread().name)
        return usual(*args, **how)

    monkeypatch.setattr(owner, name, watched)
    return seen


LONG = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 5000
F = {"name": "f", "arguments": "{}"}
CALLS = [{"id": f"c{i}", "type": "function", "function": F} for i in range(4999)]
RESULTS = [{"role": "tool", "tool_call_id": f"c{i}", "content": "x"} for i in range(4999)]
ITEMS = [{"type": "function_call", "call_id": f"c{i}", **F} for i in range(5000)]
USES = [{"type": "tool_use", "id": f"c{i}", "name": "f", "input": {}} for i in range(9000)]
ONE = {"model": "MODEL", "max_tokens": 1}
FUNCTIONS = [{"name": f"f{i}", "input_schema": {"type": "object"}} for i in range(20_000)]


SOUND: dict[str, tuple[str, Any]] = {
    "chat": (CHAT, {"messages": LONG}),
    "calls": (CHAT, {"messages": [*HI, {"role": "assistant", "tool_calls": CALLS}, *RESULTS]}),
    "unknown": (CHAT, {"messages": [{**HI[0], **{f"u{i}": 1 for i in range(20)}}] * 5000}),
    "responses": ("/v1/responses", {"input": ITEMS}),
    "template": ("/apply-template", {"messages": LONG}),
    "messages": ("/v1/messages", {**ONE, "messages": LONG}),
    "uses": ("/v1/messages", {**ONE, "messages": [*HI, {"role": "assistant", "content": USES}]}),
    "tools": ("/v1/messages", {**ONE, "messages": HI, "tools": FUNCTIONS}),
    "more": ("/v1/messages", {**ONE, "messages": LONG * 5}),
    "ollama": ("/api/chat", {"model": "MODEL", "messages": LONG}),
    "echo": ("/v1/completions", {"prompt": "a b c d " * 450, "echo": True, "logprobs": 5, "max_tokens": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_a05_sound_requests_that_are_large(server: str, name: str) -> None:
    path, body = SOUND[name]
    model = httpx.get(f"{server}/v1/models").json()["data"][0]["id"]
    body = {**body, "model": model} if body.get("model") == "MODEL" else body
    assert post(server, path, body).status_code in (200, 400)


def test_a05_what_a_route_makes_of_a_large_body_is_made_elsewhere(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = threads_of(monkeypatch, chat, "offered")
    post(server, CHAT, {"messages": LONG[:2000]})
    assert len(seen) == 1 and seen[0].startswith("satchel-body")


def test_what_is_told_of_many_tokens_is_made_elsewhere(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threads_of(monkeypatch, Legacy, "lists")
    for stream in (False, True):
        body = {"prompt": "a b c d " * 200, "echo": True, "logprobs": 1, "max_tokens": 1, "stream": stream}
        assert post(server, "/v1/completions", body).status_code == 200
        assert seen and seen[0].startswith("satchel-response")
        seen.clear()


def test_large_answers_are_written_elsewhere(server: str) -> None:
    tokens = post(server, "/tokenize", {"content": "word " * 200_000, "with_pieces": True})
    assert tokens.status_code == 200 and len(tokens.json()["tokens"]) > 100_000
    vectors = post(server, "/v1/embeddings", {"input": [f"a {i}" for i in range(300)]})
    assert vectors.status_code in (200, 400)


def test_the_server_is_well_after_all_that(server: str) -> None:
    until(lambda: healthy(server) == 200, "the server is well")
