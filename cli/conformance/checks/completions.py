"""/v1/completions: text completions for older clients and base models."""

from __future__ import annotations

from satchel.cli.conformance.expect import expect, fits, same
from satchel.cli.conformance.target import ConformanceTarget

PATH = "/v1/completions"
CHOICE = {"index": int, "text": str, "finish_reason": str}
TOKENS = [40, 41, 42, 43]  # ids that every vocabulary has


def create(target: ConformanceTarget) -> None:
    """A completion has the shape that clients read."""
    head = {"id": str, "object": "text_completion", "created": int, "model": str}
    usage = {"prompt_tokens": int, "completion_tokens": int, "total_tokens": int}
    fits(target.post(PATH, target.text()), head | {"choices": [CHOICE], "usage": usage})


def client(target: ConformanceTarget) -> None:
    """openai: completions.create() gives the text."""
    wanted = target.post(PATH, target.text())["choices"][0]["text"]
    same("text", target.openai.completions.create(**target.text()).choices[0].text, wanted)


def stream(target: ConformanceTarget) -> None:
    """A stream joins to the text of the answer without a stream, and ends with finish_reason and [DONE]."""
    chunks = target.chunks(PATH, target.text())
    for chunk in chunks:
        fits(chunk, {"object": "text_completion", "choices": list}, "a chunk")
    choices = [c for chunk in chunks for c in chunk["choices"]]
    wanted = target.post(PATH, target.text())["choices"][0]
    same("the joined stream", "".join(c["text"] for c in choices), wanted["text"])
    same("finish_reason", choices[-1]["finish_reason"], wanted["finish_reason"])


def texts(target: ConformanceTarget) -> None:
    """A list of texts gives a choice for each, in order."""
    prompts = ["Once upon a time", "The capital of Norway is"]
    found = target.post(PATH, target.text(prompt=prompts))["choices"]
    same("indices", [c["index"] for c in found], [0, 1])
    each = [target.post(PATH, target.text(prompt=p))["choices"][0]["text"] for p in prompts]
    same("texts", [c["text"] for c in found], each)


def tokens(target: ConformanceTarget) -> None:
    """A list of tokens is one prompt of so many tokens."""
    found = target.post(PATH, target.text(prompt=TOKENS))
    same("choices", len(found["choices"]), 1)
    expect(found["usage"]["prompt_tokens"] in (4, 5), f"prompt_tokens: {found['usage']['prompt_tokens']}")


def token_lists(target: ConformanceTarget) -> None:
    """A list of token lists gives a choice for each."""
    found = target.post(PATH, target.text(prompt=[TOKENS, TOKENS[:2]]))["choices"]
    same("indices", [c["index"] for c in found], [0, 1])


def echo(target: ConformanceTarget) -> None:
    """echo puts the prompt before the answer."""
    plain = target.post(PATH, target.text())["choices"][0]["text"]
    found = target.post(PATH, target.text(echo=True))["choices"][0]["text"]
    same("text", found, target.text()["prompt"] + plain)


def suffix(target: ConformanceTarget) -> None:
    """suffix asks for what stands between, where the model can fill in."""
    asked = target.text(prompt="def add(a, b):\n", suffix="\n    return c\n")
    fits(target.able(PATH, asked), {"choices": [CHOICE]})


def logprobs(target: ConformanceTarget) -> None:
    """logprobs have the legacy shape: tokens, token_logprobs, top_logprobs and text_offset side by side."""
    choice = target.post(PATH, target.text(logprobs=2))["choices"][0]
    legacy = {"tokens": [str], "token_logprobs": [(float, None)], "top_logprobs": list, "text_offset": [int]}
    fits(choice, {"logprobs": legacy}, "the choice")
    found = choice["logprobs"]
    same("lengths of the four lists", len({len(found[name]) for name in legacy}), 1)
    fits(found["top_logprobs"], [dict], "top_logprobs")
    expect("".join(found["tokens"]).startswith(choice["text"]), "the tokens do not join to the text")


def stop(target: ConformanceTarget) -> None:
    """stop ends a completion before the text."""
    plain = target.post(PATH, target.text())["choices"][0]["text"]
    mark = plain[len(plain) // 3 :][:5]
    found = target.post(PATH, target.text(stop=mark))["choices"][0]
    same("text", found["text"], plain[: plain.index(mark)])


def several(target: ConformanceTarget) -> None:
    """n=2 gives two choices."""
    found = target.post(PATH, target.text(n=2, temperature=1, seed=1))
    same("indices", sorted(c["index"] for c in found["choices"]), [0, 1])
