"""Shadow requests: another version of a model gets the same request afterwards, at a lower priority. Its
completion is compared with the first one and then dropped.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial

from satchel.errors import SatchelError
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.server.alias import Alias
from satchel.server.answer import Answer
from satchel.server.generation import Caller, GenerationRequest
from satchel.server.log import LOG
from satchel.server.models import Models
from satchel.server.problem import Problem

LESS_URGENT = 10  # levels of priority below the original request
WHOLE = ("stop", "length")  # finish reasons of complete completions

_running: set[asyncio.Task[None]] = set()


async def begin_answer(models: Models, wanted: GenerationRequest, caller: Caller) -> Answer:
    """Begins the answer of a request. Where its model is an alias with a shadow, that gets the request when
    the answer is closed.
    """
    answer = await Answer.begin(models, wanted, caller)
    if answer.lease.alias:
        answer.before_close(partial(follow, models, answer, caller, answer.lease.alias))
    return answer


def follow(models: Models, answer: Answer, caller: Caller, alias: Alias) -> None:
    """Starts the shadow request where there is one complete completion to compare with."""
    reply = answer.replies[0] if len(answer.replies) == 1 else None
    if reply is None or reply.stats.finish not in WHOLE or not alias.shadows():
        return
    kwargs: GenerateKwargs = {**answer.wanted.kwargs, "sampling": reply.reply.options.sampling}
    kwargs["priority"] = kwargs.get("priority", 0) + LESS_URGENT
    kwargs.pop("progress", None)
    wanted = replace(answer.wanted, model=alias.table.shadow, kwargs=kwargs, sampled={})
    task = asyncio.create_task(_compare(models, wanted, caller, alias, reply.text))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _compare(
    models: Models, wanted: GenerationRequest, caller: Caller, alias: Alias, text: str
) -> None:
    began = time.monotonic()
    try:
        other = await Answer.begin(models, wanted, caller)
        try:
            await other.read()
        finally:
            await other.close()
    except (SatchelError, Problem, OSError) as error:
        LOG.warning("%s: the shadow %s failed: %s", alias.name, alias.table.shadow, error)
        alias.compare(False, time.monotonic() - began)
        return
    alias.compare(other.replies[0].text == text, time.monotonic() - began)
