"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from satchel.server import reading
from satchel.server.answer import Answer
from satchel.server.anthropic.fields import MessagesBody, PromptBody
from satchel.server.anthropic.shapes import Blocks, ending, head, usage
from satchel.server.bodies import BodyRoute
from satchel.server.flavour import JsonObject
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
        notes = [*warnings, *answer.replies[0].notes]
        return {**made, "warnings": notes} if notes else made
    finally:
        await answer.close()


async def events(answer: Answer, body: MessagesBody, warnings: list[str]) -> AsyncIterator[bytes]:
    """The message as server-sent events."""
    blocks = _blocks(body)
    yield event({"type": "message_start", "message": head(answer)}, "message_start")
    yield PING
    async for data in _said(answer, blocks):
        yield event(data, data["type"])
    end: JsonObject = {"type": "message_delta", "delta": ending(answer, blocks), "usage": usage(answer)}
    notes = [*warnings, *answer.replies[0].notes]
    yield event({**end, "warnings": notes} if notes else end, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def _blocks(body: MessagesBody) -> Blocks:
    return Blocks(shows_thinking=not body.thinking or body.thinking.display != "omitted")


async def _said(answer: Answer, blocks: Blocks) -> AsyncIterator[JsonObject]:
    """The events of all content blocks."""
    async for said in answer:
        for data in blocks.add(said.events):
            yield data
    for data in blocks.close():
        yield data


@router.post("/v1/messages/count_tokens")
@needs(USER)
async def count_tokens(request: Request, body: PromptBody) -> JsonObject:
    warnings = unknown_fields(request, body)
    count = await reading.count_tokens(request, body.model, body.turn)
    return {"input_tokens": count, **({"warnings": warnings} if warnings else {})}
