"""Finds the server of a load and its model, before anything is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from satchel.cli.load.drive import Bounds, LoadTarget, drive, model_names
from satchel.cli.load.requests import LoadShape, made_up
from satchel.errors import RequestError

FIRST = 4  # tokens of the first answer


def reached(server: LoadTarget, shape: LoadShape, ask: bool = True) -> LoadTarget:
    """The server with a model's name, its first one where none is given. ask: it answers a short first
    request; a server that is only busy may refuse that. RequestError says what is wrong.
    """
    named = server if server.model else replace(server, model=model_names(server)[0])
    if ask:
        first = made_up(replace(shape, answers=[FIRST], rate=0.0), -1)
        (outcome,) = asyncio.run(drive(named, first, Bounds(requests=1))).outcomes
        if outcome.error and not outcome.refused:
            raise RequestError(fault(named, outcome.status, outcome.error))
    return named


def fault(server: LoadTarget, status: int, error: str) -> str:
    """Why the first request failed, and what to do."""
    if not status:
        return f"{server.url}: no server answers there ({error}): start it, or correct --url"
    if status == 200:
        return f"{server.url}: the first answer is not whole: {error}"
    listed = known(server) if status in (400, 404, 422) else ()
    if listed and server.model not in listed:
        others = f"the server lists {', '.join(listed)}: name one with -m"
        return f"{server.url} refuses the model {server.model!r}: {error}; {others}"
    return f"{server.url} refuses a first request to {server.model!r}: {error}"


def known(server: LoadTarget) -> Sequence[str]:
    """The models that the server lists; () where it lists none."""
    try:
        return model_names(server)
    except RequestError:
        return ()
