"""Renders a conversation's prompt without generating: its text, its token ids, its token count."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from satchel.runtime.api.model import Model
from satchel.server.bodies import BodyRoute
from satchel.server.openai.chat import ChatBody
from satchel.server.reading import chat_prompt, count_tokens, with_model
from satchel.server.roles import USER, needs
from satchel.server.route import unknown_fields

router = APIRouter(route_class=BodyRoute)


@router.post("/apply-template")
@router.post("/v1/chat/completions/render", include_in_schema=False)
@needs(USER)
async def apply_template(request: Request, body: ChatBody) -> JSONResponse:
    """The prompt's text. It does not show that user text spelled like a control token is
    tokenized as text.
    """
    unknown_fields(request, body)
    turn = body.turn

    def work(model: Model, salt: str) -> str:
        prompt = chat_prompt(model, turn)
        return prompt.shown(prompt.messages)

    return JSONResponse({"prompt": (await with_model(request, body.model, work))[1]})


@router.post("/v1/chat/completions/input_tokens")
@router.post("/chat/completions/input_tokens", include_in_schema=False)
@needs(USER)
async def input_tokens(request: Request, body: ChatBody) -> JSONResponse:
    unknown_fields(request, body)
    counted = await count_tokens(request, body.model, body.turn)
    return JSONResponse({"object": "chat.completion.input_tokens", "input_tokens": counted})
