"""POST /tokenize and /detokenize in llama-server's shape, or in vLLM's where its fields are sent."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from satchel.runtime.api.model import Model
from satchel.server.bodies import BodyRoute
from satchel.server.fields import MOST_MESSAGES, Body, TokenId
from satchel.server.flavour import JsonObject
from satchel.server.openai.chat import OpenAIMessage, TurnBody
from satchel.server.problem import Problem
from satchel.server.reading import prompt_ids, with_model, written
from satchel.server.roles import USER, needs
from satchel.server.route import unknown_fields

router = APIRouter(route_class=BodyRoute)


class TokenizeBody(TurnBody):
    """The body of /tokenize: `content` asks for llama-server's shape, `prompt` or `messages` for vLLM's."""

    model: str = Field(default="", max_length=1000)
    messages: list[OpenAIMessage] = Field(default_factory=list, max_length=MOST_MESSAGES)
    content: str | None = None
    prompt: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    add_special_tokens: bool = True
    return_token_strs: bool = False

    def check(self) -> None:
        given = [n for n in ("content", "prompt") if getattr(self, n) is not None]
        given += ["messages"] if self.messages else []
        if len(given) != 1:
            raise Problem("invalid", "expected one of content, prompt and messages", "content")

    def ids(self, model: Model) -> list[int]:
        if self.messages:
            return prompt_ids(model, self.turn)
        if self.content is not None:
            bos = None if self.add_special else False
            return model.tokenize(self.content, special=self.parse_special, bos=bos)
        return model.tokenize(self.prompt or "", special=True, bos=None if self.add_special_tokens else False)


@router.post("/tokenize")
@router.post("/v1/tokenize", include_in_schema=False)
@needs(USER)
async def tokenize(request: Request, body: TokenizeBody) -> JSONResponse:
    unknown_fields(request, body)
    body.check()

    def work(model: Model, salt: str) -> JsonObject:
        ids = body.ids(model)
        if body.content is not None:
            return {"tokens": [_piece(model, i) for i in ids] if body.with_pieces else ids}
        made: JsonObject = {"count": len(ids), "max_model_len": model.context, "tokens": ids}
        texts = [model.tokenizer.text(i) for i in ids] if body.return_token_strs else None
        return {**made, "token_strs": texts}

    result = (await with_model(request, body.model, work))[1]
    return await written(request, lambda: result)


def _piece(model: Model, token: int) -> JsonObject:
    """A token with its text, or with its bytes where they are not valid UTF-8."""
    data = model.tokenizer.token_bytes(token)
    try:
        piece: Any = data.decode()
    except UnicodeDecodeError:
        piece = list(data)
    return {"id": token, "piece": piece}


class DetokenizeBody(Body):
    """The body of /detokenize. The response has the text by llama-server's and by vLLM's name."""

    model: str = Field(default="", max_length=1000)
    tokens: Annotated[list[TokenId], Field(max_length=1 << 20)]


@router.post("/detokenize")
@router.post("/v1/detokenize", include_in_schema=False)
@needs(USER)
async def detokenize(request: Request, body: DetokenizeBody) -> JSONResponse:
    unknown_fields(request, body)

    def work(model: Model, salt: str) -> str:
        return model.detokenize(body.tokens, special=True)

    text = (await with_model(request, body.model, work))[1]
    return await written(request, lambda: {"content": text, "prompt": text})
