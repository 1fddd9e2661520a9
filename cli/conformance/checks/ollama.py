"""/api: Ollama's API, with NDJSON streams."""

from __future__ import annotations

from typing import Any

from satchel.cli.conformance.expect import expect, fits, parsed, same
from satchel.cli.conformance.target import QUESTION, ConformanceTarget, raised, said

DETAILS = {"format": str, "family": str, "parameter_size": str, "quantization_level": str}
NUMBERS = "total_duration load_duration prompt_eval_count prompt_eval_duration eval_count eval_duration"
END = {"done": True, "done_reason": str} | dict.fromkeys(NUMBERS.split(), int)
OPTIONS = {"temperature": 0, "num_predict": 16}


def _chat(target: ConformanceTarget, **fields: Any) -> dict[str, Any]:
    return {"model": target.model, "messages": QUESTION, "options": OPTIONS, **fields}


def _generate(target: ConformanceTarget, **fields: Any) -> dict[str, Any]:
    return {"model": target.model, "prompt": "Once upon a time", "options": OPTIONS, **fields}


def version(target: ConformanceTarget) -> None:
    """/api/version tells a version."""
    fits(target.get("/api/version"), {"version": str})


def tags(target: ConformanceTarget) -> None:
    """/api/tags lists the models with size, digest and details."""
    model = {"name": str, "model": str, "modified_at": str, "size": int, "digest": str, "details": DETAILS}
    fits(target.get("/api/tags"), {"models": [model]})


def show(target: ConformanceTarget) -> None:
    """/api/show tells template, details, model_info and capabilities."""
    found = target.post("/api/show", {"model": target.model})
    fits(found, {"template": str, "details": DETAILS, "model_info": dict, "capabilities": [str]})
    expect("completion" in found["capabilities"], "no completion among the capabilities")


def chat(target: ConformanceTarget) -> None:
    """/api/chat streams lines by default; the last has done, done_reason, counts and times."""
    *parts, last = target.lines("/api/chat", _chat(target))
    part = {"model": str, "created_at": str, "message": {"role": "assistant", "content": str}, "done": False}
    fits(parts, [part], "the lines")
    fits(last, END, "the last line")


def chat_whole(target: ConformanceTarget) -> None:
    """stream false gives one object, with the text that the stream joins to."""
    found = target.post("/api/chat", _chat(target, stream=False))
    fits(found, END | {"message": {"role": "assistant", "content": str}})
    lines = target.lines("/api/chat", _chat(target))
    same("the joined stream", "".join(x["message"]["content"] for x in lines), found["message"]["content"])


def generate(target: ConformanceTarget) -> None:
    """/api/generate streams lines with response, and ends as /api/chat."""
    *parts, last = target.lines("/api/generate", _generate(target))
    fits(parts, [{"model": str, "created_at": str, "response": str, "done": False}], "the lines")
    fits(last, END, "the last line")


def generate_whole(target: ConformanceTarget) -> None:
    """/api/generate with stream false gives one object."""
    fits(target.post("/api/generate", _generate(target, stream=False)), END | {"response": str})


def raw(target: ConformanceTarget) -> None:
    """raw puts no template around a prompt, so that it has fewer tokens."""
    wrapped = target.post("/api/generate", _generate(target, stream=False))
    bare = target.post("/api/generate", _generate(target, stream=False, raw=True))
    expect(bare["prompt_eval_count"] < wrapped["prompt_eval_count"], "as many tokens as with a template")


def options(target: ConformanceTarget) -> None:
    """num_predict bounds an answer, with done_reason length; a wrong option's value is 400."""
    found = target.post("/api/chat", _chat(target, stream=False, options={"num_predict": 3}))
    fits(found, {"eval_count": 3, "done_reason": "length"})
    fits(target.refused("/api/chat", _chat(target, options={"temperature": -3})), {"error": str})


def form(target: ConformanceTarget) -> None:
    """format with a schema holds the answer to it."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    asked = _chat(target, stream=False, format=schema | {"additionalProperties": False}, options={})
    fits(
        parsed(target.post("/api/chat", asked)["message"]["content"], "the answer"), {"n": int}, "the answer"
    )


def tool(target: ConformanceTarget) -> None:
    """tools are accepted, and a call's arguments are an object."""
    place = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    about = {"name": "weather", "description": "Get the weather.", "parameters": place}
    asked = _chat(target, stream=False, tools=[{"type": "function", "function": about}])
    message = target.able("/api/chat", asked)["message"]
    for call in message.get("tool_calls") or ():
        fits(call, {"function": {"name": str, "arguments": dict}}, "the call")


def embed(target: ConformanceTarget) -> None:
    """/api/embed gives a list of vectors, for a text and for several."""
    for given, count in (("a harbour", 1), (["a harbour", "bread"], 2)):
        found = target.able("/api/embed", {"model": target.model, "input": given})
        fits(found, {"model": str, "embeddings": [[float]], "prompt_eval_count": int})
        same("vectors", len(found["embeddings"]), count)


def embeddings(target: ConformanceTarget) -> None:
    """/api/embeddings, the older route, gives one vector."""
    fits(
        target.able("/api/embeddings", {"model": target.model, "prompt": "a harbour"}), {"embedding": [float]}
    )


def running(target: ConformanceTarget) -> None:
    """/api/ps lists a model that was asked, with expires_at and context_length."""
    target.post("/api/generate", _generate(target, stream=False))
    model = {"name": str, "model": str, "size": int, "digest": str, "expires_at": str, "context_length": int}
    fits(target.get("/api/ps"), {"models": [model]})


def error(target: ConformanceTarget) -> None:
    """Errors are an object with one text; an unknown model is 404."""
    for path in ("/api/chat", "/api/generate", "/api/show"):
        fits(target.refused(path, {"model": "no-such-model", "prompt": "a"}, 404), {"error": str}, path)


def client_chat(target: ConformanceTarget) -> None:
    """ollama: chat() works whole and streamed, with the same text."""
    asked = _chat(target)
    whole = target.ollama.chat(**asked).message.content
    same(
        "the joined stream",
        "".join(x.message.content for x in target.ollama.chat(**asked, stream=True)),
        whole,
    )


def client_generate(target: ConformanceTarget) -> None:
    """ollama: generate() works whole and streamed, with the same text."""
    asked = _generate(target)
    whole = target.ollama.generate(**asked).response
    same(
        "the joined stream", "".join(x.response for x in target.ollama.generate(**asked, stream=True)), whole
    )


def client_models(target: ConformanceTarget) -> None:
    """ollama: list(), show() and ps() read the server's models."""
    names = [m.model for m in target.ollama.list().models]
    expect(names and all(names), f"list() gives {names}")
    expect(target.ollama.show(target.model).capabilities, "show() gives no capabilities")
    target.ollama.generate(**_generate(target))
    expect(target.ollama.ps().models, "ps() gives no model")


def client_embed(target: ConformanceTarget) -> None:
    """ollama: embed() gives the vectors."""
    target.able("/api/embed", {"model": target.model, "input": "a"})
    same("vectors", len(target.ollama.embed(model=target.model, input=["a", "b"]).embeddings), 2)


def client_error(target: ConformanceTarget) -> None:
    """ollama: an unknown model raises ResponseError with status 404."""
    kind = target.official("ollama").ResponseError
    error = raised(kind, lambda: target.ollama.chat(model="no-such-model", messages=QUESTION), "chat()")
    same("status_code", error.status_code, 404)


def load_and_unload(target: ConformanceTarget) -> None:
    """No prompt loads a model (done_reason load); keep_alive 0 unloads it (unload), and it answers again."""
    asked = {"model": target.model, "stream": False}
    fits(target.post("/api/generate", asked), {"done": True, "done_reason": "load"})
    found = target.http.post("/api/generate", json=asked | {"keep_alive": 0})
    expect(found.status_code == 200, f"keep_alive 0: expected HTTP 200, got {said(found)}")
    fits(found.json(), {"done": True, "done_reason": "unload"})
    fits(target.post("/api/generate", _generate(target, stream=False)), {"response": str})
