"""Routes of canned_server for clients of OpenAI and llama-server."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import canned_routes_more  # noqa: F401
from canned_model import Made, make, tokens
from canned_server import CONTEXT, MODEL, Refused, Reply, route

RANGES = {"temperature": (0, 2), "top_p": (0, 1), "n": (1, 8), "max_tokens": (0, 1 << 20)}
ABOUT = {"id": MODEL, "object": "model", "created": 1, "owned_by": "test", "meta": {"n_ctx": CONTEXT}}


def check(body: dict[str, Any]) -> None:
    for name, (low, high) in RANGES.items():
        value = body.get(name, low)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise Refused(400, f"{name} is wrong", name)


def usage(prompt: int, made: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def drawn(body: dict[str, Any], schema: Any = None, begun: str = "") -> list[Made]:
    """The n completions."""
    check(body)
    most = body.get("max_completion_tokens", body.get("max_tokens", -1))
    seeds = [body.get("seed", 0) + i for i in range(body.get("n", 1))] if body.get("temperature") else [None]
    seeds = seeds if body.get("temperature") else [None] * body.get("n", 1)
    rest: dict[str, Any] = {"stop": body.get("stop"), "bias": body.get("logit_bias"), "begun": begun}
    return [make(most, seed=s, schema=schema, **rest) for s in seeds]


@route("GET", "/v1/models")
def models(body: dict[str, Any]) -> Reply:
    return Reply({"object": "list", "data": [ABOUT]})


@route("GET", f"/v1/models/{MODEL}")
def model(body: dict[str, Any]) -> Reply:
    return Reply(ABOUT)


def schema_of(body: dict[str, Any]) -> Any:
    form = body.get("response_format", {"type": "text"})
    if form["type"] not in ("text", "json_object", "json_schema"):
        raise Refused(400, "no such format", "response_format")
    if form["type"] == "json_object":
        return {"type": "object"}
    if form["type"] == "json_schema":
        found = form["json_schema"]["schema"]
        if found.get("type") == "nonsense":
            raise Refused(400, "no such type", "response_format")
        return found
    return None


def called(body: dict[str, Any]) -> dict[str, Any] | None:
    """The tool call that tool_choice forces."""
    choice, tools = body.get("tool_choice", "auto"), body.get("tools", [])
    if choice in ("auto", "none"):
        return None
    name = tools[0]["function"]["name"] if choice == "required" else choice["function"]["name"]
    found = next((t["function"] for t in tools if t["function"]["name"] == name), None)
    if found is None:
        raise Refused(400, "no such tool", "tool_choice")
    arguments = make(schema=found["parameters"]).text
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def check_messages(messages: list[dict[str, Any]]) -> str:
    """Checks the messages; returns the prefill of the assistant's turn."""
    if sum(len(str(m.get("content"))) for m in messages) > 4 * CONTEXT:
        raise Refused(400, "too long", "messages", "context_length_exceeded")
    ids = {c["id"] for m in messages for c in m.get("tool_calls", ())}
    if any(m["role"] == "tool" and m["tool_call_id"] not in ids for m in messages):
        raise Refused(400, "a result without a call", "messages")
    trailing = [m["role"] for m in messages[-2:]]
    if trailing == ["assistant", "assistant"]:
        raise Refused(400, "two answers were begun", "messages")
    return messages[-1]["content"] if trailing[-1] == "assistant" else ""


def told(made: Made, top: int) -> dict[str, Any]:
    def token(text: str) -> dict[str, Any]:
        return {"token": text, "logprob": -0.5, "bytes": list(text.encode())}

    return {"content": [token(p) | {"top_logprobs": [token(p)] * top} for p in made.pieces]}


@route("POST", "/v1/chat/completions")
def chat(body: dict[str, Any]) -> Reply:
    if not body.get("messages"):
        raise Refused(400, "no messages", "messages")
    if "top_logprobs" in body and not body.get("logprobs"):
        raise Refused(400, "top_logprobs needs logprobs", "top_logprobs")
    begun, call = check_messages(body["messages"]), called(body)
    made = drawn(body, schema_of(body), begun)
    if body.get("stream"):
        return Reply(events=[("", c) for c in chunks(body, made, call)] + [("", "[DONE]")])
    choices = []
    for index, one in enumerate(made):
        message: dict[str, Any] = {"role": "assistant", "content": one.text}
        if call:
            message |= {"content": None, "tool_calls": [call]}
        logs = told(one, body.get("top_logprobs", 0)) if body.get("logprobs") else None
        finish = "tool_calls" if call else one.finish
        choices.append({"index": index, "message": message, "finish_reason": finish, "logprobs": logs})
    count = sum(len(one.pieces) for one in made)
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return Reply(head | {"choices": choices, "usage": usage(5, count)})


def chunks(body: dict[str, Any], made: list[Made], call: dict[str, Any] | None) -> list[dict[str, Any]]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

    def chunk(index: int, delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
        return head | {"choices": [{"index": index, "delta": delta, "finish_reason": finish, **more}]}

    found = []
    for index, one in enumerate(made):
        found.append(chunk(index, {"role": "assistant", "content": None if call else ""}))
        if call:
            begin = call["function"] | {"arguments": ""}
            half = len(call["function"]["arguments"]) // 2
            parts = [call["function"]["arguments"][:half], call["function"]["arguments"][half:]]
            found.append(chunk(index, {"tool_calls": [call | {"index": 0, "function": begin}]}))
            calls = [{"tool_calls": [{"index": 0, "function": {"arguments": p}}]} for p in parts]
            found += [chunk(index, c) for c in calls]
        else:
            for piece in one.pieces:
                more = {"logprobs": told(Made([piece], ""), 1)} if body.get("logprobs") else {}
                found.append(chunk(index, {"content": piece}, **more))
        found.append(chunk(index, {}, "tool_calls" if call else one.finish))
    if body.get("stream_options", {}).get("include_usage"):
        found.append(head | {"choices": [], "usage": usage(5, sum(len(m.pieces) for m in made))})
    return found


@route("POST", "/v1/completions")
def completions(body: dict[str, Any]) -> Reply:
    prompt = body["prompt"]
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    prompts = prompt if many else [prompt]
    made = [one for _ in prompts for one in drawn(body)]
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
    if body.get("stream"):
        texts = [(p, None) for p in made[0].pieces] + [("", made[0].finish)]
        choices = [{"index": 0, "text": t, "finish_reason": f, "logprobs": None} for t, f in texts]
        return Reply(events=[("", head | {"choices": [c]}) for c in choices] + [("", "[DONE]")])
    legacy = {
        "tokens": made[0].pieces,
        "token_logprobs": [-0.5 for _ in made[0].pieces],
        "top_logprobs": [{p: -0.5} for p in made[0].pieces],
        "text_offset": [0 for _ in made[0].pieces],
    }
    logs = legacy if "logprobs" in body else None
    echoed = prompt if body.get("echo") else ""
    choices = [
        {"index": i, "text": echoed + one.text, "finish_reason": one.finish, "logprobs": logs}
        for i, one in enumerate(made)
    ]
    read = len(prompts[0]) if isinstance(prompts[0], list) else 5
    return Reply(head | {"choices": choices, "usage": usage(read, len(made[0].pieces))})


@route("POST", "/v1/embeddings")
def embeddings(body: dict[str, Any]) -> Reply:
    given = body["input"]
    if not given:
        raise Refused(400, "no input", "input")
    many = isinstance(given, list) and not isinstance(given[0], int)
    data = []
    for index, item in enumerate(given if many else [given]):
        raw = [float(1 + len(item) % (i + 2)) for i in range(body.get("dimensions", 16))]
        vector: Any = [x / math.hypot(*raw) for x in raw]
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    counts = {"prompt_tokens": 1, "total_tokens": 1}
    return Reply({"object": "list", "model": MODEL, "data": data, "usage": counts})


@route("POST", "/v1/rerank", "/rerank")
def rerank(body: dict[str, Any]) -> Reply:
    given = body.get("documents") or body["texts"]
    order = [(i, 1 / (i + 2)) for i in range(len(given))][: body.get("top_n")]
    if "texts" in body:
        return Reply([{"index": i, "score": s} for i, s in order])
    results = [{"index": i, "relevance_score": s} for i, s in order]
    return Reply({"model": MODEL, "object": "list", "results": results, "usage": usage(3, 0)})


@route("GET", "/health", "/v1/health")
def health(body: dict[str, Any]) -> Reply:
    return Reply({"status": "ok"})


@route("GET", "/props")
def props(body: dict[str, Any]) -> Reply:
    settings = {"n_ctx": CONTEXT}
    rest = {"total_slots": 2, "chat_template": "{{ messages }}"}
    return Reply({"default_generation_settings": settings} | rest)


@route("GET", "/slots")
def slots(body: dict[str, Any]) -> Reply:
    return Reply([{"id": i, "n_ctx": CONTEXT, "is_processing": False} for i in range(2)])


@route("POST", "/tokenize")
def tokenize(body: dict[str, Any]) -> Reply:
    found: list[Any] = tokens(body["content"])
    if body.get("with_pieces"):
        found = [{"id": t, "piece": [t]} for t in found]
    return Reply({"tokens": found})


@route("POST", "/detokenize")
def detokenize(body: dict[str, Any]) -> Reply:
    return Reply({"content": bytes(body["tokens"]).decode()})


@route("POST", "/apply-template")
def template(body: dict[str, Any]) -> Reply:
    return Reply({"prompt": "".join(f"<{m['role']}>{m['content']}" for m in body["messages"])})


@route("POST", "/completion", "/infill")
def completion(body: dict[str, Any]) -> Reply:
    made = make(body.get("n_predict", -1))
    if body.get("stream"):
        parts: list[Any] = [{"content": p, "stop": False} for p in made.pieces]
        return Reply(events=[("", p) for p in [*parts, {"content": "", "stop": True}]])
    counts = {"tokens_predicted": len(made.pieces), "tokens_evaluated": 4, "timings": {}}
    return Reply({"content": made.text, "stop": True, "stop_type": "limit"} | counts)


@route("GET", "/lora-adapters")
def adapters(body: dict[str, Any]) -> Reply:
    return Reply([])


@route("GET", "/metrics")
def metrics(body: dict[str, Any]) -> Reply:
    return Reply('# HELP a b\n# TYPE a counter\na_total{model="m"} 3\nb 1.5e-3\n')
