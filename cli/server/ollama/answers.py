"""POST /api/generate and /api/chat: an answer in lines as it comes, or in one piece."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from satchel.cli.server.answer import Answer
from satchel.cli.server.bodies import BodyRoute
from satchel.cli.server.flavour import JsonObject
from satchel.cli.server.ollama.fields import ChatBody, GenerateBody
from satchel.cli.server.ollama.options import SOON, keep
from satchel.cli.server.ollama.shapes import FINISH, Reader, Said, context, done, logprobs, stamp, timing
from satchel.cli.server.roles import ADMIN, USER, check_role, needs
from satchel.cli.server.route import caller_of, models_of, unknown_fields
from satchel.cli.server.stream import LINES, Stream, line, unless_gone
from satchel.cli.server.wanted import Turn
from satchel.runtime.sampling.logprobs import Logprob

router = APIRouter(route_class=BodyRoute)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request on its way: when it came, what is told beside its answer, and the form of what is said."""

    request: Request
    body: GenerateBody | ChatBody
    arrived: float
    warnings: list[str]
    form: Callable[[Said], JsonObject]

    def told(self, said: Said, ending: JsonObject) -> JsonObject:
        return {"model": self.body.model, "created_at": stamp(), **self.form(said), **ending}


@router.post("/api/generate")
@needs(USER)
async def generate(request: Request, body: GenerateBody) -> Response:
    return await _answer(request, body, Said.response)


@router.post("/api/chat")
@needs(USER)
async def chat(request: Request, body: ChatBody) -> Response:
    return await _answer(request, body, Said.message)


async def _answer(
    request: Request, body: GenerateBody | ChatBody, form: Callable[[Said], JsonObject]
) -> Response:
    warnings = [*unknown_fields(request, body), *body.warnings()]
    asked = Asked(request, body, time.perf_counter(), warnings, form)
    if body.empty:
        return JSONResponse(await unless_gone(request, _load(asked)))
    if body.stream:
        answer = await unless_gone(request, _begin(asked))
        return Stream(_lines(answer, asked), answer.close, LINES)
    return JSONResponse(await unless_gone(request, _whole(asked)))


async def _load(asked: Asked) -> JsonObject:
    """Loads the model, or unloads it where it is to stay for no time at all."""
    models, seconds = models_of(asked.request), asked.body.keep
    entry, caller = models.entry(asked.body.model), caller_of(asked.request)
    if seconds == SOON:
        check_role(ADMIN, caller.role)
    asked.warnings.extend(keep(entry, seconds, caller))
    if seconds == SOON:
        if not entry.users:
            await entry.unload()
        return asked.told(Said(), done("unload"))
    async with models.use(asked.body.model, caller.user):
        pass
    ending = done("load")
    return asked.told(Said(), {**ending, "warnings": asked.warnings} if asked.warnings else ending)


async def _begin(asked: Asked) -> Answer:
    body, seconds = asked.body, asked.body.keep
    answer = await Answer.begin(models_of(asked.request), body.wanted, caller_of(asked.request))
    try:
        asked.warnings.extend(body.options.check_context(answer.model.model.context))
    except BaseException:
        await answer.close()
        raise
    asked.warnings.extend(keep(answer.lease.entry, seconds, caller_of(asked.request)))
    return answer


async def _lines(answer: Answer, asked: Asked) -> AsyncIterator[bytes]:
    """The answer as it comes."""
    reader = Reader()
    async for found in answer:
        said = reader.read(found.events)
        if said or (asked.body.logprobs and found.logprobs):
            yield line(asked.told(said, {"done": False, **_likely(answer, asked, found.logprobs)}))
    yield line(asked.told(Said(), _ending(answer, asked)))


async def _whole(asked: Asked) -> JsonObject:
    """The answer in one piece."""
    answer = await _begin(asked)
    try:
        reader, whole = Reader(), Said()
        async for found in answer:
            said = reader.read(found.events)
            whole.content += said.content
            whole.thinking += said.thinking
            whole.calls += said.calls
        told = _likely(answer, asked, answer.replies[0].reply.logprobs)
        return asked.told(whole, {**told, **_ending(answer, asked)})
    finally:
        await answer.close()


def _likely(answer: Answer, asked: Asked, given: Sequence[Logprob]) -> JsonObject:
    if not asked.body.logprobs:
        return {}
    return {"logprobs": logprobs(answer.model.model.tokenizer, given)}


def _ending(answer: Answer, asked: Asked) -> JsonObject:
    reply = answer.replies[0]
    notes = [*asked.warnings, *reply.notes]
    ending = {**done(FINISH[reply.stats.finish]), **timing(answer, asked.arrived)}
    if isinstance(asked.body, GenerateBody) and isinstance(answer.wanted.prompt, Turn):
        ending["context"] = context(answer)
    return {**ending, "warnings": notes} if notes else ending
