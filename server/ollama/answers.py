"""POST /api/generate and /api/chat: a completion as an NDJSON stream or as one object."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from satchel.runtime.sampling.logprobs import Logprob
from satchel.server.answer import Answer
from satchel.server.bodies import BodyRoute
from satchel.server.flavour import JsonObject
from satchel.server.generation import Turn
from satchel.server.ollama.fields import GenerateBody, OllamaChatBody
from satchel.server.ollama.options import SOON, keep
from satchel.server.ollama.shapes import (
    FINISH,
    DeltaReader,
    MessageDelta,
    context,
    done,
    logprobs,
    stamp,
    timing,
)
from satchel.server.roles import ADMIN, USER, check_role, needs
from satchel.server.route import caller_of, models_of, unknown_fields
from satchel.server.shadow import begin_answer
from satchel.server.stream import LINES, Stream, line, unless_gone

router = APIRouter(route_class=BodyRoute)


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """A request in progress."""

    request: Request
    body: GenerateBody | OllamaChatBody
    arrived: float  # on the clock of time.perf_counter
    warnings: list[str]
    shape: Callable[[MessageDelta], JsonObject]  # writes a delta for /api/generate or /api/chat

    def as_json(self, said: MessageDelta, ending: JsonObject) -> JsonObject:
        return {"model": self.body.model, "created_at": stamp(), **self.shape(said), **ending}


@router.post("/api/generate")
@needs(USER)
async def generate(request: Request, body: GenerateBody) -> Response:
    return await _answer(request, body, MessageDelta.response)


@router.post("/api/chat")
@needs(USER)
async def chat(request: Request, body: OllamaChatBody) -> Response:
    return await _answer(request, body, MessageDelta.message)


async def _answer(
    request: Request, body: GenerateBody | OllamaChatBody, shape: Callable[[MessageDelta], JsonObject]
) -> Response:
    warnings = [*unknown_fields(request, body), *body.warnings()]
    pending = PendingAnswer(request, body, time.perf_counter(), warnings, shape)
    if body.empty:
        return JSONResponse(await unless_gone(request, _load(pending)))
    if body.stream:
        answer = await unless_gone(request, _begin(pending))
        return Stream(_lines(answer, pending), answer.close, LINES)
    return JSONResponse(await unless_gone(request, _whole(pending)))


async def _load(pending: PendingAnswer) -> JsonObject:
    """Loads the model; unloads it where keep_alive is 0."""
    models, seconds = models_of(pending.request), pending.body.keep
    entry, caller = models.entry(pending.body.model), caller_of(pending.request)
    if seconds == SOON:
        check_role(ADMIN, caller.role)
    pending.warnings.extend(keep(entry, seconds, caller))
    if seconds == SOON:
        if not entry.users:
            await entry.unload()
        return pending.as_json(MessageDelta(), done("unload"))
    async with models.use(pending.body.model, caller.user):
        pass
    ending = done("load")
    return pending.as_json(
        MessageDelta(), {**ending, "warnings": pending.warnings} if pending.warnings else ending
    )


async def _begin(pending: PendingAnswer) -> Answer:
    body, seconds = pending.body, pending.body.keep
    answer = await begin_answer(models_of(pending.request), body.wanted, caller_of(pending.request))
    try:
        pending.warnings.extend(body.options.check_context(answer.model.model.context))
    except BaseException:
        await answer.close()
        raise
    pending.warnings.extend(keep(answer.lease.entry, seconds, caller_of(pending.request)))
    return answer


async def _lines(answer: Answer, pending: PendingAnswer) -> AsyncIterator[bytes]:
    """The completion as NDJSON lines."""
    reader = DeltaReader()
    async for found in answer:
        said = reader.read(found.events)
        if said or (pending.body.logprobs and found.logprobs):
            yield line(pending.as_json(said, {"done": False, **_likely(answer, pending, found.logprobs)}))
    yield line(pending.as_json(MessageDelta(), _ending(answer, pending)))


async def _whole(pending: PendingAnswer) -> JsonObject:
    """The whole completion as one object."""
    answer = await _begin(pending)
    try:
        reader, whole = DeltaReader(), MessageDelta()
        async for found in answer:
            said = reader.read(found.events)
            whole.content += said.content
            whole.thinking += said.thinking
            whole.calls += said.calls
        likely = _likely(answer, pending, answer.replies[0].reply.logprobs)
        return pending.as_json(whole, {**likely, **_ending(answer, pending)})
    finally:
        await answer.close()


def _likely(answer: Answer, pending: PendingAnswer, given: Sequence[Logprob]) -> JsonObject:
    if not pending.body.logprobs:
        return {}
    return {"logprobs": logprobs(answer.model.model.tokenizer, given)}


def _ending(answer: Answer, pending: PendingAnswer) -> JsonObject:
    reply = answer.replies[0]
    notes = [*pending.warnings, *reply.notes]
    ending = {**done(FINISH[reply.stats.finish]), **timing(answer, pending.arrived)}
    if isinstance(pending.body, GenerateBody) and isinstance(answer.wanted.prompt, Turn):
        ending["context"] = context(answer)
    return {**ending, "warnings": notes} if notes else ending
