"""/v1/chat/completions: whole responses and streams."""

from __future__ import annotations

from itertools import islice

from satchel.cli.conformance.expect import Skip, expect, fits, same
from satchel.cli.conformance.target import QUESTION, ConformanceTarget, joined

PATH = "/v1/chat/completions"
USAGE = {"prompt_tokens": int, "completion_tokens": int, "total_tokens": int}
MESSAGE = {"role": "assistant", "content": str}
CHUNK = {"id": str, "object": "chat.completion.chunk", "created": int, "model": str, "choices": list}


def create(target: ConformanceTarget) -> None:
    """An answer has the shape that clients read, and its usage adds up."""
    choice = {"index": 0, "finish_reason": str, "message": MESSAGE}
    head = {"id": str, "object": "chat.completion", "created": int, "model": str}
    fits(target.plain, head | {"choices": [choice], "usage": USAGE})
    usage = target.plain["usage"]
    same("total_tokens", usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
    expect(usage["completion_tokens"] <= 24, "more completion_tokens than max_tokens")


def client(target: ConformanceTarget) -> None:
    """openai: chat.completions.create() gives the text."""
    found = target.openai.chat.completions.create(**target.chat())
    same("content", found.choices[0].message.content, target.words)


def stream(target: ConformanceTarget) -> None:
    """A stream's chunks share an id, its role comes first and once, one finish_reason last, then [DONE]."""
    chunks = target.chunks(PATH, target.chat())
    for chunk in chunks:
        fits(chunk, CHUNK, "a chunk")
    same("ids of the chunks", len({c["id"] for c in chunks}), 1)
    choices = [c for chunk in chunks for c in chunk["choices"]]
    fits(choices, [{"index": 0, "delta": dict}], "choices")
    roles = [n for n, c in enumerate(choices) if c["delta"].get("role")]
    same("deltas with a role", roles, [0])
    ends = [n for n, c in enumerate(choices) if c.get("finish_reason")]
    same("deltas with a finish_reason", ends, [len(choices) - 1])


def stream_text(target: ConformanceTarget) -> None:
    """A greedy answer's stream joins to the answer without a stream."""
    same("the joined stream", joined(target.chunks(PATH, target.chat())), target.words)


def stream_usage(target: ConformanceTarget) -> None:
    """Usage comes with include_usage alone: in one last chunk that has no choices."""
    asked = target.chat(stream_options={"include_usage": True})
    *before, last = target.chunks(PATH, asked)
    fits(last, {"choices": list, "usage": USAGE}, "the last chunk")
    same("choices of the last chunk", last["choices"], [])
    same("completion_tokens", last["usage"]["completion_tokens"], target.plain["usage"]["completion_tokens"])
    expect(not any(c.get("usage") for c in before), "usage stands in another chunk than the last")
    without = target.chunks(PATH, target.chat())
    expect(not any(c.get("usage") for c in without), "usage came without being asked for")


def stream_client(target: ConformanceTarget) -> None:
    """openai: chat.completions.stream() assembles the answer."""
    asked = target.chat()
    with target.openai.chat.completions.stream(**asked) as events:
        for _ in events:
            pass
        found = events.get_final_completion()
    same("content", found.choices[0].message.content, target.words)


def stop(target: ConformanceTarget) -> None:
    """An answer ends before a stop text, with finish_reason stop."""
    mark, before = _mark(target.words)
    found = target.post(PATH, target.chat(stop=[mark]))["choices"][0]
    same("content", found["message"]["content"], before)
    same("finish_reason", found["finish_reason"], "stop")


def stop_stream(target: ConformanceTarget) -> None:
    """No part of a stop text leaks into a stream, also where it spans several tokens."""
    mark, before = _mark(target.words)
    same("the joined stream", joined(target.chunks(PATH, target.chat(stop=mark))), before)


def _mark(text: str) -> tuple[str, str]:
    """A piece of the answer that begins and ends inside words, and what stands before it."""
    middle = len(text) // 3
    mark = text[middle : middle + 7]
    return mark, text[: text.index(mark)]


def max_tokens(target: ConformanceTarget) -> None:
    """max_tokens ends an answer with finish_reason length; max_completion_tokens means the same."""
    for name in ("max_tokens", "max_completion_tokens"):
        asked = target.chat()
        del asked["max_tokens"]
        found = target.post(PATH, asked | {name: 3})
        same(f"completion_tokens with {name}", found["usage"]["completion_tokens"], 3)
        same("finish_reason", found["choices"][0]["finish_reason"], "length")


def several(target: ConformanceTarget) -> None:
    """n=2 gives two choices with indices 0 and 1, and in a stream chunks of both."""
    asked = target.chat(n=2, temperature=1, seed=3)
    found = target.post(PATH, asked)
    same("indices", sorted(c["index"] for c in found["choices"]), [0, 1])
    chunks = target.chunks(PATH, asked)
    same("indices in the stream", {c["index"] for chunk in chunks for c in chunk["choices"]}, {0, 1})
    whole = {c["index"]: c["message"]["content"] for c in found["choices"]}
    same("texts of the stream", {i: joined(chunks, i) for i in (0, 1)}, whole)


def seed(target: ConformanceTarget) -> None:
    """The same seed draws the same answer, another seed another one."""
    drawn = [
        target.post(PATH, target.chat(temperature=1.5, seed=s))["choices"][0]["message"]["content"]
        for s in (7, 7, 8, 9)
    ]
    same("the answer with the same seed", drawn[1], drawn[0])
    expect(len(set(drawn)) > 1, "three seeds gave the same answer")


def logprobs(target: ConformanceTarget) -> None:
    """logprobs gives each token with its bytes and the top_logprobs likeliest beside it."""
    choice = target.post(PATH, target.chat(logprobs=True, top_logprobs=3))["choices"][0]
    token = {"token": str, "logprob": float, "bytes": (list, None)}
    fits(choice, {"logprobs": {"content": [token | {"top_logprobs": [token]}]}}, "the choice")
    tokens = choice["logprobs"]["content"]
    expect(all(len(t["top_logprobs"]) == 3 for t in tokens), "not three top_logprobs beside each token")
    expect(all(t["logprob"] <= 0 for t in tokens), "a logprob above 0")
    spelled = b"".join(bytes(t["bytes"] or t["token"].encode()) for t in tokens).decode("utf-8", "replace")
    expect(spelled.startswith(choice["message"]["content"]), "the tokens' bytes are not the answer")


def logprobs_stream(target: ConformanceTarget) -> None:
    """logprobs come in a stream too."""
    chunks = target.chunks(PATH, target.chat(logprobs=True, top_logprobs=1))
    found = [c["logprobs"]["content"] for k in chunks for c in k["choices"] if c.get("logprobs")]
    fits(found, [[{"token": str, "logprob": float}]], "logprobs")


def logprobs_alone(target: ConformanceTarget) -> None:
    """top_logprobs without logprobs is 400."""
    target.refused(PATH, target.chat(top_logprobs=3))


def logit_bias(target: ConformanceTarget) -> None:
    """A bias of -100 on the tokens of the plain answer changes it."""
    found = target.http.post("/tokenize", json={"content": target.words})
    if found.status_code != 200:
        raise Skip("the server has no /tokenize to learn the answer's tokens from")
    tokens = found.json()["tokens"]
    found = target.post(PATH, target.chat(logit_bias={str(t): -100 for t in tokens}))
    expect(found["choices"][0]["message"]["content"] != target.words, "the same answer in spite of the bias")


def prefill(target: ConformanceTarget) -> None:
    """An assistant's message at the end is continued."""
    cut = target.words.find(" ", len(target.words) // 3)
    begun = [*QUESTION, {"role": "assistant", "content": target.words[:cut]}]
    found = target.post(PATH, target.chat(messages=begun))["choices"][0]["message"]["content"]
    rest = found.removeprefix(target.words[:cut])
    wanted = target.words[cut:]
    expect(rest.startswith(wanted[:12]), f"expected an answer that goes on with {wanted!r}, got {found!r}")


def two_prefills(target: ConformanceTarget) -> None:
    """Two assistant's messages at the end are 400."""
    twice = [{"role": "assistant", "content": "It is"}] * 2
    target.refused(PATH, target.chat(messages=[*QUESTION, *twice]))


def roles(target: ConformanceTarget) -> None:
    """system, developer, user and assistant messages, content as text and as parts, are all read."""
    parts = [{"type": "text", "text": "What is it?"}, {"type": "text", "text": "Say it."}]
    for first in ("system", "developer"):
        turns = [
            {"role": first, "content": "Be brief."},
            {"role": "user", "content": "I have a cat."},
            {"role": "assistant", "content": "A fine animal.", "reasoning_content": "cats"},
            {"role": "user", "content": parts},
        ]
        fits(target.post(PATH, target.chat(messages=turns)), {"choices": [{"message": MESSAGE}]})


def nulls(target: ConformanceTarget) -> None:
    """null means absent, for every optional field."""
    names = "stop tools tool_choice logit_bias response_format seed n user stream_options top_p top_logprobs"
    found = target.post(PATH, target.chat(**dict.fromkeys(names.split())))
    same("content", found["choices"][0]["message"]["content"], target.words)


def no_effect(target: ConformanceTarget) -> None:
    """Fields that clients send for OpenAI's own sake are accepted: user, metadata, store, service_tier."""
    asked = target.chat(user="u", metadata={"a": "b"}, store=False, service_tier="auto")
    same("content", target.post(PATH, asked)["choices"][0]["message"]["content"], target.words)


def first_piece(target: ConformanceTarget) -> None:
    """A stream's chunks come one by one, not all at the end."""
    asked = target.chat(stream=True, max_tokens=48)
    with target.http.stream("POST", PATH, json=asked) as found:
        pieces = list(islice(found.iter_raw(), 1000))
    expect(len(pieces) > 3, f"the whole stream came in {len(pieces)} pieces")
