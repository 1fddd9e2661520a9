"""llama-server's own routes."""

from __future__ import annotations

import re

from satchel.cli.conformance.expect import expect, fits, same, skip
from satchel.cli.conformance.target import QUESTION, ConformanceTarget, said

SAMPLE = re.compile(r"[a-zA-Z_:][\w:]*(\{.*\})? [-+\w.]+( \d+)?")


def health(target: ConformanceTarget) -> None:
    """/health and /v1/health say ok."""
    for path in ("/health", "/v1/health"):
        fits(target.get(path), {"status": "ok"}, path)


def props(target: ConformanceTarget) -> None:
    """/props tells the default settings, the number of slots and the chat template."""
    found = target.get("/props")
    fits(found, {"default_generation_settings": dict, "total_slots": int, "chat_template": str})


def slots(target: ConformanceTarget) -> None:
    """/slots tells of each slot its id and whether it is at work."""
    fits(target.get("/slots"), [{"id": int, "n_ctx": int, "is_processing": bool}])


def tokenize(target: ConformanceTarget) -> None:
    """/tokenize and /detokenize are each other's inverse, also for letters of several bytes."""
    for text in ("A small town by the sea.", "naïve – 日本語 🎒"):
        tokens = target.post("/tokenize", {"content": text})["tokens"]
        fits(tokens, [int], "tokens")
        same("content", target.post("/detokenize", {"tokens": tokens})["content"], text)


def pieces(target: ConformanceTarget) -> None:
    """/tokenize with with_pieces gives each token's id and piece."""
    found = target.post("/tokenize", {"content": "A small town", "with_pieces": True})
    fits(found, {"tokens": [{"id": int, "piece": (str, list)}]})


def template(target: ConformanceTarget) -> None:
    """/apply-template gives the prompt with the messages in it."""
    found = target.post("/apply-template", {"messages": QUESTION})
    fits(found, {"prompt": str})
    expect(QUESTION[0]["content"] in found["prompt"], "the message is not in the prompt")


def completion(target: ConformanceTarget) -> None:
    """/completion gives content, stop, stop_type, counts and timings."""
    asked = {"prompt": "Once upon a time", "n_predict": 8, "temperature": 0}
    found = target.post("/completion", asked)
    counts = {"tokens_predicted": int, "tokens_evaluated": int, "timings": dict}
    fits(found, {"content": str, "stop": True, "stop_type": str} | counts)


def completion_stream(target: ConformanceTarget) -> None:
    """/completion streams objects with content; the last has stop."""
    asked = {"prompt": "Once upon a time", "n_predict": 8, "temperature": 0}
    parts = [e.data for e in target.events("/completion", asked) if e.data != "[DONE]"]
    fits(parts, [{"content": str, "stop": bool}], "the events")
    same("stop of the events", [p["stop"] for p in parts], [False] * (len(parts) - 1) + [True])
    whole = target.post("/completion", asked)["content"]
    same("the joined stream", "".join(p["content"] for p in parts), whole)


def infill(target: ConformanceTarget) -> None:
    """/infill writes between input_prefix and input_suffix, where the model can fill in."""
    asked = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n    return c\n", "n_predict": 8}
    fits(target.able("/infill", asked), {"content": str})


def adapters(target: ConformanceTarget) -> None:
    """/lora-adapters lists what was loaded."""
    fits(target.get("/lora-adapters"), list)


def metrics(target: ConformanceTarget) -> None:
    """/metrics is in Prometheus' text form."""
    found = target.http.get("/metrics")
    if found.status_code == 403:
        skip("the key is a user's, and /metrics needs an admin's")
    expect(found.status_code == 200, f"expected HTTP 200, got {said(found)}")
    lines = [x for x in found.text.splitlines() if x and not x.startswith("#")]
    expect(lines, "no sample in it")
    wrong = [x for x in lines if not SAMPLE.fullmatch(x)]
    expect(not wrong, f"no sample: {wrong[:1]}")
