"""How a route of completions replies: one JSON object, or a stream with the progress of its prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from satchel.server.answer import Answer
from satchel.server.flavour import JsonObject
from satchel.server.generation import GenerationRequest
from satchel.server.openai.fields import TextFields
from satchel.server.openai.progress import reporting
from satchel.server.openai.shapes import head, new_id, timings, usage
from satchel.server.route import caller_of, models_of, settings_of
from satchel.server.settings import ServerSettings
from satchel.server.shadow import begin_answer
from satchel.server.stream import stream_of, unless_gone

NEVER = 1e9  # seconds


async def respond(
    request: Request,
    body: TextFields,
    wanted: GenerationRequest,
    whole: Callable[[Answer], object],
    chunks: Callable[[Answer], AsyncIterator[bytes]],
    *,
    progress: str,
) -> Response:
    """The response to a request. whole: makes the JSON of a finished answer; chunks: the events of an answer
    while it is generated. progress: the `object` field of the events of its prefill.
    """
    early = None
    if body.return_progress:
        wanted, early = reporting(wanted, progress)
    work = begin_answer(models_of(request), wanted, caller_of(request))
    if body.stream:
        return await stream_of(
            request, work, chunks, early=early, ping_seconds=silence(body, settings_of(request))
        )

    async def read() -> JSONResponse:
        answer = await work
        try:
            await answer.read()
            return await answer.response(lambda: whole(answer))
        finally:
            await answer.close()

    return await unless_gone(request, read())


def silence(body: TextFields, settings: ServerSettings) -> float:
    """Seconds of silence after which the stream sends a ping."""
    asked = settings.ping_seconds if body.sse_ping_interval is None else body.sse_ping_interval
    return asked if asked > 0 else NEVER


def completion(
    answer: Answer,
    kind: str,
    number: str,
    choice: Callable[[int, int], JsonObject],
    warnings: list[str],
) -> JsonObject:
    """A whole completion. kind: its `object` field. number: the prefix of its id. choice: makes the choice of
    (reply, place in the list).
    """
    made = head(answer, kind, new_id(number))
    made["choices"] = [choice(index, place) for place, index in enumerate(answer.given)]
    return {**made, "usage": usage(answer), **closing(answer, 0, warnings)}


def closing(answer: Answer, index: int, warnings: list[str]) -> JsonObject:
    """The timings of a reply, the warnings of all, and where the context was full, what that did to the
    reply: tokens that were cut or forgotten, or that it ended (full).
    """
    told = [*warnings, *answer.notes]
    made: JsonObject = {"timings": timings(answer.replies[index])}
    if told:
        made["warnings"] = told
    report, context = answer.replies[index].report, answer.model.model.context
    full = not report.shifts and report.prompt_tokens + report.generated_tokens > context
    if report.cut_tokens or full:
        cut = {"cut_tokens": report.cut_tokens, "cut_messages": report.cut_messages}
        made["overflow"] = {"shifts": report.shifts, **cut, "full": full}
    return made
