"""POST /v1/responses, stateless: the client sends earlier turns as input items."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from satchel.errors import SatchelError
from satchel.formats.chat import Content
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.grammar.spec import AnyJson, JsonSchema, Spec
from satchel.runtime.grammar.tools import MAX_TOOLS
from satchel.runtime.sampling.logprobs import TOP
from satchel.server.answer import Answer, AnswerDelta
from satchel.server.bodies import BodyRoute
from satchel.server.fields import MOST_TOKENS, Body, kept
from satchel.server.flavour import JsonObject
from satchel.server.generation import GenerationRequest, Turn
from satchel.server.openai.fields import TextFields
from satchel.server.openai.respond import silence
from satchel.server.openai.response_input import messages_of
from satchel.server.openai.response_output import ResponseOutput
from satchel.server.openai.shapes import FINISH, logprobs, new_id, usage
from satchel.server.openai.structured_output import Schema
from satchel.server.openai.tools import Function, NamedTool, ToolField, ToolName, must_call, offered
from satchel.server.problem import Problem, problem_of
from satchel.server.reading import count_tokens
from satchel.server.roles import USER, needs
from satchel.server.route import caller_of, models_of, settings_of, unknown_fields
from satchel.server.shadow import begin_answer
from satchel.server.stream import event, stream_of, unless_gone

router = APIRouter(route_class=BodyRoute)
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"


class FlatTool(Body):
    """A tool of the Responses API: the function's fields without a `function` object around them."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def nested(self) -> ToolField:
        fields = self.model_dump(include=set(Function.model_fields), exclude_none=True)
        return ToolField(function=Function(**fields))


class FlatChoice(Body):
    type: Literal["function"]
    name: str


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None
    description: str | None = None

    def spec(self) -> Spec | None:
        if self.type == "text":
            return None
        if self.type == "json_object":
            return AnyJson()
        if self.schema_ is None:
            raise Problem("invalid", "text.format.schema is missing", "text.format.schema")
        return JsonSchema(self.schema_)


class TextField(Body):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningField(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseBody(TextFields):
    input: str | Annotated[list[Any], Field(min_length=1, max_length=10_000)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool = True
    text: TextField | None = None
    reasoning: ReasoningField | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=TOP)
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    metadata: dict[str, Any] | None = None

    @property
    def warnings(self) -> list[str]:
        """A warning for each field that has no effect."""
        found = []
        if self.reasoning and (self.reasoning.summary or self.reasoning.generate_summary):
            found.append("reasoning.summary had no effect: the reasoning itself is given")
        if ENCRYPTED in (self.include or ()):
            found.append(f"include {ENCRYPTED} had no effect: the reasoning itself is given")
        return found

    @property
    def tells_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def generate_kwargs(self) -> GenerateKwargs:
        unknown = set(self.include or ()) - {LOGPROBS, ENCRYPTED}
        if unknown:
            raise Problem("unsupported", f"include: {min(unknown)!r:.80} cannot be had", "include")
        made = super().generate_kwargs()
        if self.max_output_tokens is not None:
            made["max_tokens"] = self.max_output_tokens
        if self.truncation == "auto":
            made["on_overflow"] = "truncate-middle"
        if self.text and self.text.format and (formed := self.text.format.spec()):
            if made.get("grammar"):
                raise Problem("invalid", "text.format and another grammar were given", "text.format")
            made["grammar"] = formed
        made["logprobs"] = (self.top_logprobs or 0) if self.tells_logprobs else -1
        return made

    @kept
    def turn(self) -> Turn:
        tools = [tool.nested() for tool in self.tools or ()]
        choice = self.tool_choice
        nested = (
            NamedTool.model_validate({"type": "function", "function": {"name": choice.name}})
            if isinstance(choice, FlatChoice)
            else choice
        )
        effort = self.reasoning.effort if self.reasoning else None
        return Turn(
            messages_of(self.input, self.instructions),
            tools=offered(tools, nested),
            reasoning=False if effort == "none" else effort,
            call=must_call(tools, nested, self.parallel_tool_calls),
            one_call=not self.parallel_tool_calls,
        )

    @kept
    def wanted(self) -> GenerationRequest:
        self.check_together()
        turn, kwargs = self.turn, self.generate_kwargs()
        if turn.tools and not turn.call and kwargs.get("grammar") is not None:
            line = "tools and structured output exclude each other: set tool_choice to none"
            raise Problem("invalid", line, "tool_choice")
        grammar_field = "text.format" if self.text and self.text.format else self.structured_output()[0]
        return GenerationRequest(
            self.model,
            turn,
            kwargs,
            grammar_field=grammar_field,
            words=self.biases[1],
            adapters=self.adapters,
            slot=self.id_slot,
            sampled=self.sampling_values(),
        )


@router.post("/v1/responses")
@needs(USER)
async def respond(request: Request, body: ResponseBody) -> Response:
    warnings = [*unknown_fields(request, body), *body.warnings]
    if body.n > 1 or body.use_beam_search or body.best_of or body.return_progress:
        raise Problem("unsupported", "a response is one answer: leave n, best_of and beams out", "n")
    work = begin_answer(models_of(request), body.wanted, caller_of(request))
    if body.stream:
        bits = partial(events, body=body, warnings=warnings)
        return await stream_of(request, work, bits, ping_seconds=silence(body, settings_of(request)))
    return JSONResponse(await unless_gone(request, whole(work, body, warnings)))


async def whole(work: Coroutine[Any, Any, Answer], body: ResponseBody, warnings: list[str]) -> JsonObject:
    answer = await work
    try:
        output = ResponseOutput()
        async for said in answer:
            for _ in _delta_events(said, answer, body, output):
                pass
        for _ in output.close(_status(answer)):
            pass
        return _response(answer, body, new_id("resp"), output, _status(answer), warnings)
    finally:
        await answer.close()


def _delta_events(
    said: AnswerDelta, answer: Answer, body: ResponseBody, output: ResponseOutput
) -> list[tuple[str, JsonObject]]:
    """The stream events of a delta. Log-probabilities are in the first text event."""
    given = logprobs(answer.model.model.tokenizer, said.logprobs)["content"] if body.tells_logprobs else []
    events: list[tuple[str, JsonObject]] = []
    for one in said.events:
        events += output.add(one, given)
        given = [] if isinstance(one, Content) else given
    return events


def _status(answer: Answer) -> str:
    reply = answer.chat(0)
    return "incomplete" if FINISH.get(reply.stats.finish) == "length" else "completed"


def _response(
    answer: Answer, body: ResponseBody, number: str, output: ResponseOutput, status: str, warnings: list[str]
) -> JsonObject:
    notes = [*warnings, *answer.notes]
    over = status in ("completed", "incomplete")
    counted = usage(answer) if over else None
    return {
        "id": number,
        "object": "response",
        "created_at": answer.created,
        "completed_at": int(time.time()) if status == "completed" else None,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": answer.name,
        "output": [dict(item) for item in output.items],
        "usage": counted and _usage(counted),
        **_echoed(answer, body),
        **({"warnings": notes} if notes and over else {}),
    }


def _usage(counted: JsonObject) -> JsonObject:
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": counted["prompt_tokens_details"],
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": counted["completion_tokens_details"],
        "total_tokens": counted["total_tokens"],
    }


def _echoed(answer: Answer, body: ResponseBody) -> JsonObject:
    """The request's fields that a response repeats."""
    sampling = answer.replies[0].reply.sampling
    format_ = body.text.format if body.text else None
    shown = format_.model_dump(exclude_none=True, by_alias=True) if format_ else {"type": "text"}
    choice = body.tool_choice
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": shown},
        "tool_choice": choice.model_dump() if isinstance(choice, FlatChoice) else choice or "auto",
        "tools": [{"strict": False, **t.model_dump(exclude_none=True)} for t in body.tools or ()],
        "top_p": sampling.top_p,
        "truncation": body.truncation,
        "metadata": body.metadata or {},
        "user": body.user,
    }


async def events(answer: Answer, body: ResponseBody, warnings: list[str]) -> AsyncIterator[bytes]:
    """The response as server-sent events."""
    output, number = ResponseOutput(), new_id("resp")
    begun = _response(answer, body, number, output, "in_progress", warnings)
    for kind in ("response.created", "response.in_progress"):
        yield _written(output.event(kind, {"response": begun}))
    try:
        async for said in answer:
            for one in _delta_events(said, answer, body, output):
                yield _written(one)
    except (SatchelError, Problem) as error:
        problem = problem_of(error)
        said_wrong = {
            "message": problem.message,
            "code": problem.code or problem.kind,
            "param": problem.param,
        }
        # Some clients read an `error` object, others the fields beside it.
        yield _written(output.event("error", {**said_wrong, "error": said_wrong}))
        return
    status = _status(answer)
    for one in output.close(status):
        yield _written(one)
    made = _response(answer, body, number, output, status, warnings)
    yield _written(output.event(f"response.{status}", {"response": made}))


def _written(made: tuple[str, JsonObject]) -> bytes:
    kind, data = made
    return event(data, kind)


@router.post("/v1/responses/input_tokens")
@needs(USER)
async def input_tokens(request: Request, body: ResponseBody) -> JSONResponse:
    unknown_fields(request, body)
    counted = await count_tokens(request, body.model, body.turn)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": counted})
