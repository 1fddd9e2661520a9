"""Runs the model's non-generating methods (embedding, reranking, scoring, tokenizing) in threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse

from satchel.formats.tokenizer import at_most
from satchel.runtime.api.chat import ChatPrompt
from satchel.runtime.api.model import Model
from satchel.server.asked import CUT
from satchel.server.generation import Turn
from satchel.server.route import caller_of, in_pool, models_of
from satchel.server.stream import unless_gone

T = TypeVar("T")
MOST_TOKENS = 1 << 18


async def written(request: Request, make: Callable[[], object]) -> JSONResponse:
    """Builds a large JSON response in a thread."""
    return await in_pool(request, "response", lambda: JSONResponse(make()))


def _limited(work: Callable[[Model, str], T], model: Model, salt: str) -> T:
    with at_most(most_tokens(model.context)):
        return work(model, salt)


def most_tokens(context: int) -> int:
    """The most tokens of one text that is embedded, counted or truncated."""
    return max(MOST_TOKENS, CUT * context)


async def with_model(
    request: Request, name: str, work: Callable[[Model, str], T], kind: str = "text"
) -> tuple[str, T]:
    """Runs work(model, caller's salt) in a thread; returns the model's listed name and the result.

    kind: the thread pool. The call is cancelled where the client hangs up.
    """
    caller = caller_of(request)

    async def run() -> tuple[str, T]:
        async with models_of(request).use(name, caller.user) as lease:
            asked = partial(_limited, work, lease.model.model, caller.salt)
            return lease.name, await in_pool(request, kind, asked)

    return await unless_gone(request, run())


def chat_prompt(model: Model, turn: Turn) -> ChatPrompt:
    return model.chat_prompt(
        turn.messages,
        tools=turn.tools,
        reasoning=turn.reasoning,
        reasoning_end=turn.reasoning_end,
        prefill=turn.prefill,
        variables=turn.variables,
    )


def prompt_ids(model: Model, turn: Turn) -> list[int]:
    """The token ids of the turn's prompt."""
    return chat_prompt(model, turn).ids


async def count_tokens(request: Request, name: str, turn: Turn) -> int:
    """The number of tokens of the turn's prompt."""
    return (await with_model(request, name, lambda model, salt: len(prompt_ids(model, turn))))[1]
