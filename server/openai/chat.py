"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.types import Scope

from satchel.formats.chat import Content, Event
from satchel.formats.template.messages import RESERVED
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.sampling.logprobs import TOP
from satchel.server.answer import Answer, AnswerDelta
from satchel.server.bodies import BodyRoute
from satchel.server.fields import MOST_MESSAGES, MOST_TOKENS, Body, kept
from satchel.server.flavour import JsonObject
from satchel.server.generation import GenerationRequest, Turn
from satchel.server.openai.beams import beamed_chat
from satchel.server.openai.chunks import DONE, Chunks
from satchel.server.openai.fields import TextFields
from satchel.server.openai.respond import closing, completion, respond
from satchel.server.openai.shapes import (
    FINISH,
    call,
    delta,
    head,
    logprobs,
    new_id,
    prompt_logprobs,
    timings,
    usage,
)
from satchel.server.openai.thinking import Placed, ThinkingFields, Where
from satchel.server.openai.tools import ToolChoice, Tools, must_call, offered
from satchel.server.problem import Problem
from satchel.server.relay import Relay
from satchel.server.roles import USER, needs
from satchel.server.route import caller_of, models_of, settings_of, unknown_fields
from satchel.server.stream import unless_gone

router = APIRouter(route_class=BodyRoute)


class OpenAIMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def as_message(self) -> dict[str, Any]:
        """The message as `Model.chat` takes it; a refusal part becomes the assistant's text."""
        said = self.model_dump(exclude_none=True, exclude=set(self.model_extra or ()))
        if isinstance(self.content, list):
            said["content"] = [
                {"type": "text", "text": p["refusal"]} if p.get("type") == "refusal" and "refusal" in p else p
                for p in self.content
            ]
        return said


class TurnBody(ThinkingFields):
    """Body fields that determine a conversation's prompt."""

    messages: Annotated[list[OpenAIMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool | None = None

    @kept
    def turn(self) -> Turn:
        tools = self.tools or []
        return Turn(
            [m.as_message() for m in self.messages],
            tools=offered(tools, self.tool_choice),
            reasoning=self.reasoning,
            reasoning_end=self.reasoning_budget_message,
            prefill=self._prefill(),
            variables=self._variables(),
            call=must_call(tools, self.tool_choice, self.parallel_tool_calls),
            one_call=not self.parallel_tool_calls,
        )

    def _prefill(self) -> bool | None:
        if not self.add_generation_prompt and not self.continue_final_message:
            name = "add_generation_prompt"
            raise Problem("unsupported", f"{name}: false goes with continue_final_message: true alone", name)
        return self.continue_final_message

    def _variables(self) -> dict[str, Any] | None:
        taken = sorted(RESERVED.intersection(self.chat_template_kwargs or ()))
        if taken:
            where = f"chat_template_kwargs.{taken[0]}"
            raise Problem("invalid", f"{where}: this name is the server's own", where)
        return self.chat_template_kwargs


class ChatBody(TurnBody, TextFields):
    max_completion_tokens: Annotated[int, Field(ge=-1, le=MOST_TOKENS)] | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=TOP)

    @property
    def limit(self) -> int:
        most = self.max_completion_tokens
        given = [v for v in (super().limit, most) if v is not None and v >= 0]
        return min(given) if given else -1

    def generate_kwargs(self) -> GenerateKwargs:
        if self.top_logprobs is not None and not self.logprobs:
            raise Problem("invalid", "top_logprobs needs logprobs: true", "top_logprobs")
        return {
            **super().generate_kwargs(),
            "logprobs": (self.top_logprobs or 0) if self.logprobs else -1,
        }

    @kept
    def wanted(self) -> GenerationRequest:
        self.check_together()
        turn, kwargs = self.turn, self.generate_kwargs()
        if turn.tools and not turn.call and kwargs.get("grammar") is not None:
            raise Problem(
                "invalid",
                "tools and structured output exclude each other: set tool_choice to none",
                "tool_choice",
            )
        return GenerationRequest(
            self.model,
            turn,
            kwargs,
            self.n,
            self.structured_output()[0],
            best_of=self.best_of or 0,
            words=self.biases[1],
            adapters=self.adapters,
            slot=self.id_slot,
            sampled=self.sampling_values(),
            prompt_logprobs=-1 if self.prompt_logprobs is None else self.prompt_logprobs,
        )


@router.post("/v1/chat/completions")
@router.post("/chat/completions", include_in_schema=False)
@needs(USER)
async def chat(request: Request, body: ChatBody) -> Response:
    warnings = unknown_fields(request, body)
    if "reasoning_format" not in body.model_fields_set:
        body.reasoning_format = cast(Where, settings_of(request).reasoning_format)
    if body.use_beam_search:
        beams = beamed_chat(models_of(request), body.wanted, caller_of(request), body)
        return JSONResponse(await unless_gone(request, beams))
    made = partial(whole, body=body, warnings=warnings)
    bits = partial(chunks, body=body, warnings=warnings, scope=request.scope)
    return await respond(request, body, body.wanted, made, bits, progress="chat.completion.chunk")


def whole(answer: Answer, body: ChatBody, warnings: list[str]) -> JsonObject:
    """The whole chat completion as JSON."""
    made = completion(answer, "chat.completion", "chatcmpl", partial(choice, answer, body), warnings)
    if answer.scored:
        made["prompt_logprobs"] = prompt_logprobs(answer.model.model.tokenizer, answer.scored[0])
    return made


def choice(answer: Answer, body: ChatBody, index: int, place: int) -> JsonObject:
    reply = answer.chat(index)
    content, reasoning = Placed(body.where, body.include_reasoning).whole(reply.content, reply.reasoning)
    message: JsonObject = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = reply.tool_calls[: None if body.parallel_tool_calls else 1]
    if calls:
        message["content"] = content or None
        message["tool_calls"] = [call(c) for c in calls]
    tokenizer, by_id = answer.model.model.tokenizer, body.return_tokens_as_token_ids
    likely = logprobs(tokenizer, reply.logprobs, by_id) if body.logprobs else None
    said: JsonObject = {
        "index": place,
        "message": message,
        "logprobs": likely,
        "finish_reason": finish(answer, index),
    }
    if reply.stats.reason:
        said["finish_details"] = reply.stats.reason
    return said


def finish(answer: Answer, index: int) -> str:
    """The finish reason. Tool calls that a limit cut off do not count as tool_calls."""
    reply = answer.chat(index)
    why = FINISH[reply.stats.finish]
    return "tool_calls" if reply.tool_calls and why == "stop" else why


async def chunks(answer: Answer, body: ChatBody, warnings: list[str], scope: Scope) -> AsyncIterator[bytes]:
    """The chat completion as server-sent events."""
    made = Chunks(head(answer, "chat.completion.chunk", new_id("chatcmpl")))
    count = len(answer.replies)
    places = [Placed(body.where, body.include_reasoning) for _ in range(count)]
    quick = not (body.logprobs or body.timings_per_token or _counts_all(body))
    # A reasoning that stands elsewhere than usual has no frame.
    frames = made.chat_frames if places[0].plain else None
    relay = Relay(scope, answer, partial(_quick, 0, places[0], made), frames) if quick else None
    left = count
    for index in range(count):
        yield made.delta(index, {"role": "assistant", "content": ""})
    async for said in answer:
        if quick:
            if bit := _quick(said.index, places[said.index], made, said.events):
                yield bit
        else:
            for bit in _bits(said, answer, body, places[said.index], made):
                yield bit
        if relay and not said.finish and (bit := await relay.run()):
            yield bit
        if said.finish:
            left -= 1
            more = closing(answer, said.index, warnings) if not left else None
            yield made.delta(said.index, {}, finish(answer, said.index), more)
    if body.with_usage:
        yield made.last({"usage": usage(answer), "timings": timings(answer.replies[0])})
    yield DONE


def _counts_all(body: ChatBody) -> bool:
    return bool(body.stream_options and body.stream_options.continuous_usage_stats)


def _quick(index: int, placed: Placed, made: Chunks, given: Sequence[Event]) -> bytes:
    """The chunks of a completion's new events, where nothing else is in them; b"" for none."""
    bits = []
    for event in placed.events(given):
        if isinstance(event, Content):
            if event.text:
                bits.append(made.content(index, event.text))
        elif (bit := delta(event)) is not None:
            bits.append(made.delta(index, bit))
    return bits[0] if len(bits) == 1 else b"".join(bits)


def _bits(said: AnswerDelta, answer: Answer, body: ChatBody, placed: Placed, made: Chunks) -> Iterator[bytes]:
    """The chunks of one delta. Log-probabilities are in the first chunk."""
    events = placed.events(said.events)
    deltas = [d for d in map(delta, events) if d is not None]
    fields: JsonObject = {}
    if body.logprobs and said.logprobs:
        tokenizer, by_id = answer.model.model.tokenizer, body.return_tokens_as_token_ids
        fields["logprobs"] = logprobs(tokenizer, said.logprobs, by_id)
    more: JsonObject = {}
    if body.timings_per_token:
        more["timings"] = timings(answer.replies[said.index])
    if _counts_all(body):
        more["usage"] = usage(answer)
    for at, bit in enumerate(deltas or ([{}] if fields else [])):
        yield made.choice(
            said.index, {"delta": bit, "finish_reason": None, **(fields if not at else {})}, more
        )
