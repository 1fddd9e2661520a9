"""POST /completion and /infill in llama-server's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from satchel.formats.chat import Content
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.api.async_model import AsyncReply
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.sampling.logprobs import TOP, Logprob
from satchel.server.answer import MOST, Answer, AnswerDelta
from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body, kept
from satchel.server.flavour import JsonObject
from satchel.server.generation import GenerationRequest, Text
from satchel.server.native.settings import generation_settings
from satchel.server.openai.fields import TextFields
from satchel.server.openai.prompts import checker, several
from satchel.server.openai.respond import respond
from satchel.server.openai.shapes import LEAST, timings
from satchel.server.problem import Problem
from satchel.server.roles import USER, needs
from satchel.server.route import unknown_fields
from satchel.server.stream import event

router = APIRouter(route_class=BodyRoute)
STOP_TYPES = {"length": "limit", "deadline": "limit", "cancelled": "none"}
Mixed = Annotated[str | list[Any], checker(MOST, mixed=True)]


class NativeFields(TextFields):
    """Body fields of /completion and /infill."""

    n_probs: int = Field(default=0, ge=0, le=TOP)
    return_tokens: bool = False
    response_fields: Annotated[list[str], Field(max_length=64)] | None = None

    def generate_kwargs(self) -> GenerateKwargs:
        return {**super().generate_kwargs(), "logprobs": self.n_probs or -1}

    def wanted_of(self, first: Text, *others: Text) -> GenerationRequest:
        self.check_together()
        for name in ("use_beam_search", "best_of", "prompt_logprobs"):
            if getattr(self, name):
                raise Problem("unsupported", f"{name} is supported at /v1/completions", name)
        return GenerationRequest(
            self.model,
            first,
            self.generate_kwargs(),
            self.n,
            self.structured_output()[0],
            others,
            words=self.biases[1],
            adapters=self.adapters,
            slot=self.id_slot,
            sampled=self.sampling_values(),
        )


class NativeCompletionBody(NativeFields):
    prompt: Mixed

    @kept
    def wanted(self) -> GenerationRequest:
        given: Any = self.prompt
        mixed = isinstance(given, list) and any(type(v) is int for v in given)
        prompts = [given] if mixed else several(given)
        return self.wanted_of(*(Text(prompt, special=True) for prompt in prompts))


class Chunk(Body):
    filename: str = ""
    text: str


class InfillBody(NativeFields):
    """The body of /infill: the model fills in between input_prefix + prompt and input_suffix."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Chunk] = Field(default_factory=list, max_length=256)
    prompt: str = ""

    @kept
    def wanted(self) -> GenerationRequest:
        files = [(chunk.filename, chunk.text) for chunk in self.input_extra]
        return self.wanted_of(Text(self.input_prefix, hole=self.input_suffix, begun=self.prompt, files=files))


@router.post("/completion")
@router.post("/completions", include_in_schema=False)
@needs(USER)
async def completion(request: Request, body: NativeCompletionBody) -> Response:
    return await _respond(request, body, body.wanted)


@router.post("/infill")
@needs(USER)
async def infill(request: Request, body: InfillBody) -> Response:
    return await _respond(request, body, body.wanted)


async def _respond(request: Request, body: NativeFields, wanted: GenerationRequest) -> Response:
    warnings = unknown_fields(request, body)
    made = partial(whole, body=body, warnings=warnings)
    bits = partial(events, body=body, warnings=warnings)
    return await respond(request, body, wanted, made, bits, progress="completion")


def whole(answer: Answer, body: NativeFields, warnings: list[str]) -> JsonObject | list[JsonObject]:
    """The completion as one JSON object; several completions as a list."""
    each = [_whole(answer, i, body, warnings) for i in range(len(answer.replies))]
    return each[0] if len(each) == 1 else each


def _whole(answer: Answer, index: int, body: NativeFields, warnings: list[str]) -> JsonObject:
    reply = answer.replies[index]
    ending = _ending(answer, index, body, warnings)
    ending |= {"content": reply.text, "tokens": reply.ids if body.return_tokens else []}
    if body.n_probs:
        ending["completion_probabilities"] = probabilities(answer.model.model.tokenizer, reply.reply.logprobs)
    return _chosen(ending, body.response_fields)


def _ending(answer: Answer, index: int, body: NativeFields, warnings: list[str]) -> JsonObject:
    """The final object of a completion: counts, settings and the stop reason."""
    reply, stats = answer.replies[index], answer.replies[index].stats
    said = [*warnings, *answer.notes]
    return {
        "index": index,
        "content": "",
        "tokens": [],
        "id_slot": body.id_slot,
        "stop": True,
        "model": answer.name,
        "tokens_predicted": stats.generated,
        "tokens_evaluated": stats.prompt,
        "generation_settings": generation_settings(reply.reply.options, reply.reply.sampling),
        "prompt": answer.model.model.detokenize(reply.reply.prompt, special=True),
        "has_new_line": "\n" in reply.text,
        "truncated": bool(reply.report.cut_tokens),
        "stop_type": _stop_type(reply),
        "stopping_word": reply.reply.stop_found or "",
        "tokens_cached": stats.cached,
        "timings": timings(reply),
        **({"warnings": said} if said else {}),
    }


def _stop_type(reply: AsyncReply) -> str:
    if reply.reply.stop_found:
        return "word"
    return STOP_TYPES.get(reply.stats.finish, "eos")


def probabilities(tokenizer: Tokenizer, given: list[Logprob]) -> list[JsonObject]:
    """The log-probability of each token, and its top alternatives."""

    def one(token: int, logprob: float) -> JsonObject:
        data = tokenizer.token_bytes(token)
        text = data.decode("utf-8", "replace")
        return {"id": token, "token": text, "bytes": list(data), "logprob": max(logprob, LEAST)}

    return [{**one(p.token, p.logprob), "top_logprobs": [one(*n) for n in p.top]} for p in given]


def _chosen(fields: JsonObject, names: list[str] | None) -> JsonObject:
    """Only the fields named in response_fields; "generation_settings/n_predict" names a nested field."""
    if names is None:
        return fields
    found: JsonObject = {}
    for name in names:
        value: Any = fields
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[name.rpartition("/")[2]] = value
    return found


async def events(answer: Answer, body: NativeFields, warnings: list[str]) -> AsyncIterator[bytes]:
    """The completions as server-sent events. llama-server's shape has no final [DONE]."""
    async for said in answer:
        if said.tokens or said.events:
            yield event(_chosen(_part(said, answer, body), body.response_fields))
        if said.finish:
            ending = _ending(answer, said.index, body, warnings)
            yield event(_chosen(ending, body.response_fields))


def _part(said: AnswerDelta, answer: Answer, body: NativeFields) -> JsonObject:
    reply = answer.replies[said.index]
    part: JsonObject = {
        "index": said.index,
        "content": "".join(e.text for e in said.events if isinstance(e, Content)),
        "tokens": list(said.tokens),
        "stop": False,
        "id_slot": body.id_slot,
        "tokens_predicted": reply.stats.generated,
        "tokens_evaluated": reply.stats.prompt,
    }
    if body.n_probs:
        given = probabilities(answer.model.model.tokenizer, list(said.logprobs))
        part["completion_probabilities"] = given
    if body.timings_per_token:
        part["timings"] = timings(reply)
    return part
