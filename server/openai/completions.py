"""POST /v1/completions: completes texts or token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.types import Scope

from satchel.formats.chat import Content, Event
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.sampling.logprobs import TOP, Logprob
from satchel.server.answer import Answer, AnswerDelta
from satchel.server.bodies import BodyRoute
from satchel.server.fields import kept
from satchel.server.flavour import JsonObject
from satchel.server.generation import GenerationRequest, Text
from satchel.server.openai.beams import beamed_texts
from satchel.server.openai.chunks import DONE, Chunks
from satchel.server.openai.fields import TextFields
from satchel.server.openai.legacy import Legacy
from satchel.server.openai.prompts import Prompts, several
from satchel.server.openai.respond import closing, completion, respond
from satchel.server.openai.shapes import FINISH, head, new_id, prompt_logprobs, timings, usage
from satchel.server.problem import Problem
from satchel.server.relay import Relay
from satchel.server.roles import USER, needs
from satchel.server.route import caller_of, models_of, unknown_fields
from satchel.server.stream import unless_gone

router = APIRouter(route_class=BodyRoute)
USUAL_LIMIT = 16  # OpenAI's max_tokens for requests that name none


class CompletionBody(TextFields):
    prompt: Prompts = Field(description="A text, texts, token ids, or lists of them")
    suffix: str | None = None
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=TOP)
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=1 << 31)

    @property
    def scores_prompt(self) -> int:
        """The number of top alternatives to report per prompt token; -1: no report."""
        wanted = [-1 if self.prompt_logprobs is None else self.prompt_logprobs]
        if self.echo and self.logprobs is not None:
            wanted.append(self.logprobs)
        return max(wanted)

    def texts(self) -> list[Text]:
        """The prompts. The caller writes the whole prompt here, so control tokens in it are parsed."""
        bos = None if self.add_special_tokens else False
        last = self.truncate_prompt_tokens or 0
        if self.suffix is not None and last:
            name = "truncate_prompt_tokens"
            raise Problem("unsupported", f"{name} and suffix exclude each other", name)
        return [
            Text(prompt, special=True, bos=bos, last=last, hole=self.suffix)
            for prompt in several(self.prompt)
        ]

    def generate_kwargs(self) -> GenerateKwargs:
        top = -1 if self.logprobs is None else self.logprobs
        return {**super().generate_kwargs(), "logprobs": top}

    @kept
    def wanted(self) -> GenerationRequest:
        self.check_together()
        first, *others = self.texts()
        return GenerationRequest(
            self.model,
            first,
            self.generate_kwargs(),
            self.n,
            self.structured_output()[0],
            others,
            best_of=self.best_of or 0,
            words=self.biases[1],
            adapters=self.adapters,
            slot=self.id_slot,
            sampled=self.sampling_values(),
            usual_tokens=USUAL_LIMIT if self.max_tokens is None and self.n_predict is None else -1,
            prompt_logprobs=self.scores_prompt,
        )


@router.post("/v1/completions")
@needs(USER)
async def complete(request: Request, body: CompletionBody) -> Response:
    warnings = unknown_fields(request, body)
    if body.use_beam_search:
        beams = beamed_texts(models_of(request), body.wanted, caller_of(request), body)
        return JSONResponse(await unless_gone(request, beams))
    made = partial(whole, body=body, warnings=warnings)
    bits = partial(chunks, body=body, warnings=warnings, scope=request.scope)
    return await respond(request, body, body.wanted, made, bits, progress="text_completion")


def whole(answer: Answer, body: CompletionBody, warnings: list[str]) -> JsonObject:
    """All completions as one JSON object."""
    choice = partial(_choice, answer, body)
    return completion(answer, "text_completion", "cmpl", choice, warnings)


def _choice(answer: Answer, body: CompletionBody, index: int, place: int) -> JsonObject:
    reply = answer.replies[index]
    echoed = _echoed(answer, index) if body.echo else ""
    lists = None
    if body.logprobs is not None:
        legacy = Legacy(answer.model.model.tokenizer, body.logprobs, by_id=body.return_tokens_as_token_ids)
        lists = legacy.lists([*_known(answer, index, body), *reply.reply.logprobs])
    said: JsonObject = {
        "index": place,
        "text": echoed + reply.text,
        "logprobs": lists,
        "finish_reason": FINISH[reply.stats.finish],
    }
    if body.prompt_logprobs is not None:
        scored = answer.scored[index // answer.wanted.made]
        said["prompt_logprobs"] = prompt_logprobs(answer.model.model.tokenizer, scored)
    if reply.stats.reason:
        said["finish_details"] = reply.stats.reason
    return said


def _echoed(answer: Answer, index: int) -> str:
    """The prompt's text: as it was given, else detokenized."""
    prompt = answer.wanted.prompts[index // answer.wanted.made]
    if isinstance(prompt, Text) and isinstance(prompt.prompt, str) and not prompt.last:
        return prompt.prompt
    return answer.model.model.detokenize(answer.replies[index].reply.prompt, special=True)


def _known(answer: Answer, index: int, body: CompletionBody) -> Sequence[Logprob | int]:
    """The log-probabilities of the prompt's tokens, where the prompt is echoed."""
    if not body.echo or body.logprobs is None:
        return ()
    return (answer.replies[index].reply.prompt[0], *answer.scored[index // answer.wanted.made])


async def chunks(
    answer: Answer, body: CompletionBody, warnings: list[str], scope: Scope
) -> AsyncIterator[bytes]:
    """The completions as server-sent events."""
    made = Chunks(head(answer, "text_completion", new_id("cmpl")))
    tokenizer, by_id, count = (
        answer.model.model.tokenizer,
        body.return_tokens_as_token_ids,
        len(answer.replies),
    )
    lists = [Legacy(tokenizer, body.logprobs or 0, by_id=by_id) for _ in range(count)]
    plain = body.logprobs is None and not body.timings_per_token
    if body.echo:
        for index in range(count):
            known = _known(answer, index, body)
            likely = await answer.in_pool("response", partial(lists[index].lists, known)) if known else None
            yield made.choice(
                index, {"text": _echoed(answer, index), "logprobs": likely, "finish_reason": None}
            )
    relay = Relay(scope, answer, lambda events: _quick(0, made, events), made.text_frames) if plain else None
    begun, left = body.echo, count
    async for said in answer:
        text = "".join(e.text for e in said.events if isinstance(e, Content))
        if plain and text:
            yield made.text(said.index, text)
            begun = True
        elif text or (said.logprobs and not plain):
            yield made.choice(said.index, *_said(said, text, answer, body, lists[said.index]))
        if relay and begun and not said.finish and (bit := await relay.run()):
            yield bit
        if said.finish:
            left -= 1
            yield made.choice(
                said.index,
                {"text": "", "logprobs": None, "finish_reason": FINISH[said.finish]},
                closing(answer, said.index, warnings) if not left else None,
            )
    if body.with_usage:
        yield made.last({"usage": usage(answer), "timings": timings(answer.replies[0])})
    yield DONE


def _quick(index: int, made: Chunks, events: Sequence[Event]) -> bytes:
    """The chunk of a completion's new text, where nothing else is in it; b"" for none."""
    text = "".join(e.text for e in events if isinstance(e, Content))
    return made.text(index, text) if text else b""


def _said(
    said: AnswerDelta, text: str, answer: Answer, body: CompletionBody, legacy: Legacy
) -> tuple[JsonObject, JsonObject]:
    likely = legacy.lists(said.logprobs) if body.logprobs is not None else None
    more = {"timings": timings(answer.replies[said.index])} if body.timings_per_token else {}
    return {"text": text, "logprobs": likely, "finish_reason": None}, more
