"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from satchel.runtime.api.chat import ChatPrompt, Thinking
from satchel.runtime.api.model import Model
from satchel.server.answer import Answer
from satchel.server.anthropic.fields import MessagesBody, PromptBody
from satchel.server.anthropic.shapes import Blocks, ending, head, usage
from satchel.server.bodies import BodyRoute
from satchel.server.flavour import JsonObject
from satchel.server.generation import Turn
from satchel.server.reading import with_model
from satchel.server.roles import USER, needs
from satchel.server.route import caller_of, models_of, unknown_fields
from satchel.server.shadow import begin_answer
from satchel.server.stream import Stream, event, unless_gone

router = APIRouter(route_class=BodyRoute)
PING = event({"type": "ping"}, "ping")


@router.post("/v1/messages")
@needs(USER)
async def messages(request: Request, body: MessagesBody) -> Response:
    warnings = unknown_fields(request, body)
    work = begin_answer(models_of(request), body.wanted, caller_of(request))
    if body.stream:
        answer = await unless_gone(request, work)
        return Stream(events(answer, body, warnings), answer.close, ping=PING)
    return JSONResponse(await unless_gone(request, whole(work, body, warnings)))


async def whole(work: Coroutine[Any, Any, Answer], body: MessagesBody, warnings: list[str]) -> JsonObject:
    """The whole message as JSON."""
    answer = await work
    try:
        blocks = _blocks(body)
        async for _ in _said(answer, blocks):
            pass
        made = {**head(answer), "content": blocks.content, **ending(answer, blocks)}
        told = [*warnings, *answer.replies[0].notes]
        return {**made, "warnings": told} if told else made
    finally:
        await answer.close()


async def events(answer: Answer, body: MessagesBody, warnings: list[str]) -> AsyncIterator[bytes]:
    """The message as server-sent events."""
    blocks = _blocks(body)
    yield event({"type": "message_start", "message": head(answer)}, "message_start")
    yield PING
    async for told in _said(answer, blocks):
        yield event(told, told["type"])
    end: JsonObject = {"type": "message_delta", "delta": ending(answer, blocks), "usage": usage(answer)}
    notes = [*warnings, *answer.replies[0].notes]
    yield event({**end, "warnings": notes} if notes else end, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def _blocks(body: MessagesBody) -> Blocks:
    return Blocks(shows_thinking=not body.thinking or body.thinking.display != "omitted")


async def _said(answer: Answer, blocks: Blocks) -> AsyncIterator[JsonObject]:
    """The events of all content blocks."""
    async for said in answer:
        for told in blocks.add(said.events):
            yield told
    for told in blocks.close():
        yield told


@router.post("/v1/messages/count_tokens")
@needs(USER)
async def count_tokens(request: Request, body: PromptBody) -> JsonObject:
    warnings, turn = unknown_fields(request, body), body.turn
    _, count = await with_model(request, body.model, lambda model, salt: _count(model, turn))
    return {"input_tokens": count, **({"warnings": warnings} if warnings else {})}


def _count(model: Model, turn: Turn) -> int:
    """The number of tokens of the turn's prompt."""
    prompt = ChatPrompt(
        model.template,
        model.tokenizer,
        model.style,
        turn.messages,
        tools=turn.tools,
        thinking=Thinking.of(turn.reasoning),
        prefill=turn.prefill,
        variables=turn.variables,
    )
    return len(prompt.render(prompt.messages))
