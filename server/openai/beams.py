"""Results of beam search in OpenAI's shapes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from satchel.formats.chat import ChatParser, Collected
from satchel.server.beams import Beams, search
from satchel.server.flavour import JsonObject
from satchel.server.generation import Caller, GenerationRequest, Turn
from satchel.server.models import Models
from satchel.server.openai.shapes import call, new_id
from satchel.server.problem import Problem

if TYPE_CHECKING:
    from satchel.server.openai.fields import TextFields


async def beamed_chat(
    models: Models, wanted: GenerationRequest, caller: Caller, body: TextFields
) -> JsonObject:
    found = await _search(models, wanted, caller, body)
    tools = wanted.prompt.tools if isinstance(wanted.prompt, Turn) else None
    choices = []
    for index, beam in enumerate(found.found):
        parser = ChatParser(found.model.style, tools=tools)
        said = Collected().add_all([*parser.feed(found.text(beam)), *parser.finish()])
        message: JsonObject = {"role": "assistant", "content": said.content, "refusal": None}
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if said.tool_calls:
            message |= {"content": said.content or None, "tool_calls": [call(c) for c in said.tool_calls]}
        why = "tool_calls" if said.tool_calls else beam.finish
        choices.append({"index": index, "message": message, "logprobs": None, "finish_reason": why})
    return _object(found, "chat.completion", "chatcmpl", choices)


async def beamed_texts(
    models: Models, wanted: GenerationRequest, caller: Caller, body: TextFields
) -> JsonObject:
    found = await _search(models, wanted, caller, body)
    choices = [
        {"index": i, "text": found.text(beam), "logprobs": None, "finish_reason": beam.finish}
        for i, beam in enumerate(found.found)
    ]
    return _object(found, "text_completion", "cmpl", choices)


async def _search(models: Models, wanted: GenerationRequest, caller: Caller, body: TextFields) -> Beams:
    if body.stream:
        raise Problem("unsupported", "a beam search cannot stream: leave stream out", "stream")
    return await search(models, wanted, caller, body.length_penalty)


def _object(found: Beams, kind: str, number: str, choices: list[JsonObject]) -> JsonObject:
    prompt, made = len(found.prompt), sum(len(beam.ids) for beam in found.found)
    return {
        "id": new_id(number),
        "object": kind,
        "created": int(time.time()),
        "model": found.name,
        "system_fingerprint": "satchel",
        "choices": choices,
        "usage": {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made},
    }
