"""Beam search for a request: the n sequences with the best scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.api.model import Model
from satchel.runtime.engine.beam import Beam
from satchel.server.asked import generate_kwargs, ids_of, limited
from satchel.server.generation import Caller, GenerationRequest, Text, Turn
from satchel.server.models import Models
from satchel.server.problem import Problem


@dataclass(frozen=True, slots=True)
class Beams:
    """The result of a beam search."""

    model: Model
    name: str
    prompt: Sequence[int]  # token ids
    found: Sequence[Beam]  # the n best, best first

    def text(self, beam: Beam) -> str:
        """The text of a beam without its end token."""
        ids = beam.ids[:-1] if beam.finish == "stop" else beam.ids
        stream = self.model.tokenizer.stream(start=False)
        return stream.feed(ids) + stream.flush()


async def search(models: Models, wanted: GenerationRequest, caller: Caller, length_penalty: float) -> Beams:
    """Searches with `wanted.made` beams and returns the n best. Raises a Problem for an option that beam
    search does not support.
    """
    _check(wanted.kwargs)
    if wanted.others:
        raise Problem("unsupported", "use_beam_search takes one prompt", "use_beam_search")
    async with models.use(wanted.model, caller.user) as lease:
        model = lease.model.model
        pools, user = models.pools, caller.user
        asked = partial(generate_kwargs, model, wanted, caller, lease.entry.adapters)
        kwargs = await pools.run("prompt", asked, user)
        _check({"grammar": kwargs.get("grammar")})  # of the model's defaults
        ids = await pools.run(
            "prompt", partial(limited, model, wanted, partial(_prompt, model, wanted, kwargs)), user
        )
        room = model.context - len(ids) + 1
        limit = kwargs.get("max_tokens", -1)
        most = room if limit < 0 else limit
        searching = partial(model.beam_search, ids, wanted.made, most, length_penalty=length_penalty)
        found = await pools.run("score", searching, user)
    return Beams(model, lease.name, ids, found[: wanted.n])


def _prompt(model: Model, wanted: GenerationRequest, kwargs: GenerateKwargs) -> list[int]:
    match wanted.prompt:
        case Text() as text:
            return ids_of(model, text)
        case Turn() as turn:
            with model.chat(
                turn.messages,
                tools=turn.tools,
                reasoning=turn.reasoning,
                prefill=turn.prefill,
                variables=turn.variables,
                max_tokens=kwargs.get("max_tokens", -1),
            ) as reply:
                return list(reply.prompt)


def _check(kwargs: GenerateKwargs) -> None:
    asked = {
        "stop": kwargs.get("stop"),
        "stop_token_ids": kwargs.get("stop_token_ids"),
        "logprobs": kwargs.get("logprobs", -1) >= 0,
        "structured output": kwargs.get("grammar"),
        "t_max_predict_ms": kwargs.get("timeout"),
    }
    for name, value in asked.items():
        if value:
            raise Problem("unsupported", f"use_beam_search and {name} exclude each other", "use_beam_search")
