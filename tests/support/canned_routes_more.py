"""Routes of canned_server for clients of OpenAI's Responses API, Anthropic and Ollama."""

from __future__ import annotations

import json
from typing import Any

from canned_model import Made, instance, make, pieces
from canned_server import CONTEXT, MODEL, Refused, Reply, route

TIME = "2026-01-01T00:00:00Z"
DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "40M",
    "quantization_level": "Q6_K",
}
ENTRY = {"name": MODEL, "model": MODEL, "size": 1, "digest": "0" * 64, "details": DETAILS}


@route("POST", "/v1/responses")
def responses(body: dict[str, Any]) -> Reply:
    form = body.get("text", {}).get("format", {})
    made = make(body.get("max_output_tokens", -1), schema=form.get("schema"))
    item: dict[str, Any]
    if body.get("tools"):
        tool = body["tools"][0]
        arguments = json.dumps(instance({"type": "object"} | tool["parameters"]))
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": tool["name"]}
        item |= {"arguments": arguments, "status": "completed"}
    else:
        part = {"type": "output_text", "text": made.text, "annotations": [], "logprobs": []}
        item = {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }
    whole = _response(item, made)
    return Reply(events=_response_events(whole, item, made)) if body.get("stream") else Reply(whole)


def _response(item: dict[str, Any], made: Made) -> dict[str, Any]:
    cut = made.finish == "length"
    counts = {"input_tokens": 5, "output_tokens": len(made.pieces), "total_tokens": 5 + len(made.pieces)}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": MODEL,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": counts | details,
    }


def _response_events(whole: dict[str, Any], item: dict[str, Any], made: Made) -> list[tuple[str, Any]]:
    begun = whole | {"status": "in_progress", "output": []}
    place = {"item_id": item["id"], "output_index": 0}
    found: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": begun}),
        ("in_progress", {"response": begun}),
    ]
    if item["type"] == "message":
        part, where = item["content"][0], place | {"content_index": 0}
        empty = part | {"text": ""}
        found.append(("output_item.added", {"output_index": 0, "item": item | {"content": []}}))
        found.append(("content_part.added", where | {"part": empty}))
        found += [("output_text.delta", where | {"delta": p, "logprobs": []}) for p in made.pieces]
        found.append(("output_text.done", where | {"text": made.text, "logprobs": []}))
        found.append(("content_part.done", where | {"part": part}))
    else:
        found.append(("output_item.added", {"output_index": 0, "item": item | {"arguments": ""}}))
        given = pieces(item["arguments"])
        found += [("function_call_arguments.delta", place | {"delta": p}) for p in given]
        done = {"arguments": item["arguments"], "name": item["name"]}
        found.append(("function_call_arguments.done", place | done))
    found.append(("output_item.done", {"output_index": 0, "item": item}))
    found.append((whole["status"], {"response": whole}))
    named = [(f"response.{n}", d | {"type": f"response.{n}"}) for n, d in found]
    return [(n, d | {"sequence_number": i}) for i, (n, d) in enumerate(named)]


@route("POST", "/v1/messages")
def messages(body: dict[str, Any]) -> Reply:
    if "max_tokens" not in body or not 0 <= body.get("temperature", 0) <= 1:
        raise Refused(400, "max_tokens is missing or temperature wrong")
    made = make(body["max_tokens"], stop=body.get("stop_sequences"))
    content: list[dict[str, Any]] = [{"type": "text", "text": made.text}]
    reason = {"length": "max_tokens", "stop": "stop_sequence" if made.mark else "end_turn"}[made.finish]
    if body.get("thinking"):
        content.insert(0, {"type": "thinking", "thinking": "Well.", "signature": ""})
    if body.get("tool_choice"):
        tool = body["tools"][0]
        value = instance({"type": "object"} | tool["input_schema"])
        content = [{"type": "tool_use", "id": "toolu_1", "name": tool["name"], "input": value}]
        reason = "tool_use"
    counts = {"input_tokens": 5, "output_tokens": len(made.pieces)}
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": content}
    whole |= {"stop_reason": reason, "stop_sequence": made.mark, "usage": counts}
    return Reply(events=_message_events(whole, made)) if body.get("stream") else Reply(whole)


def _message_events(whole: dict[str, Any], made: Made) -> list[tuple[str, Any]]:
    found: list[dict[str, Any]] = [
        {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}},
        {"type": "ping"},
    ]
    for index, block in enumerate(whole["content"]):
        empty = block | ({"input": {}} if block["type"] == "tool_use" else {"text": ""})
        found.append({"type": "content_block_start", "index": index, "content_block": empty})
        if block["type"] == "tool_use":
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        else:
            deltas = [{"type": "text_delta", "text": p} for p in made.pieces]
        found += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        found.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    found.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": len(made.pieces)}})
    found.append({"type": "message_stop"})
    return [(d["type"], d) for d in found]


@route("POST", "/v1/messages/count_tokens")
def count(body: dict[str, Any]) -> Reply:
    return Reply({"input_tokens": 5})


@route("GET", "/api/version")
def version(body: dict[str, Any]) -> Reply:
    return Reply({"version": "0.1"})


@route("GET", "/api/tags")
def tags(body: dict[str, Any]) -> Reply:
    return Reply({"models": [ENTRY | {"modified_at": TIME}]})


@route("GET", "/api/ps")
def running(body: dict[str, Any]) -> Reply:
    return Reply({"models": [ENTRY | {"expires_at": TIME, "size_vram": 0, "context_length": CONTEXT}]})


@route("POST", "/api/show")
def show(body: dict[str, Any]) -> Reply:
    rest = {
        "modelfile": "",
        "parameters": "",
        "template": "t",
        "model_info": {},
        "capabilities": ["completion"],
    }
    return Reply(rest | {"details": DETAILS})


@route("POST", "/api/chat", "/api/generate")
def ask(body: dict[str, Any]) -> Reply:
    options = body.get("options", {})
    if options.get("temperature", 0) < 0:
        raise Refused(400, "temperature is wrong")
    made, chatting = make(options.get("num_predict", -1), schema=body.get("format")), "messages" in body
    numbers = ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"]
    end = dict.fromkeys(numbers, 1) | {"eval_count": len(made.pieces), "done_reason": made.finish}
    end["prompt_eval_count"] = 3 if body.get("raw") else 5
    if not chatting and not body.get("prompt"):
        unload = body.get("keep_alive") == 0
        end["done_reason"], made = "unload" if unload else "load", Made([], "stop")

    def part(text: str, done: bool) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text}} if chatting else {"response": text}
        return {"model": MODEL, "created_at": TIME, "done": done, **said, **(end if done else {})}

    if body.get("stream", True):
        return Reply(lines=[*(part(p, False) for p in made.pieces), part("", True)])
    return Reply(part(made.text, True))


@route("POST", "/api/embed")
def embed(body: dict[str, Any]) -> Reply:
    many = body["input"] if isinstance(body["input"], list) else [body["input"]]
    counts = {"total_duration": 1, "load_duration": 1, "prompt_eval_count": 1}
    return Reply({"model": MODEL, "embeddings": [[0.6, 0.8] for _ in many]} | counts)


@route("POST", "/api/embeddings")
def embeddings(body: dict[str, Any]) -> Reply:
    return Reply({"embedding": [0.6, 0.8]})
