"""Shadow requests: another version of a model gets the same request afterwards, at a lower priority. Its own
completion is dropped. What is compared is how both versions predict each token of the first one's completion,
so that a different choice at one token does not hide what follows it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from satchel.errors import SatchelError
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.api.model import Model
from satchel.runtime.engine.cancel_scope import CancelScope
from satchel.runtime.fleet.comparison import Observation, observe
from satchel.runtime.sampling.logprobs import TOP, Logprob
from satchel.server.alias import Alias
from satchel.server.answer import Answer
from satchel.server.generation import Caller, GenerationRequest
from satchel.server.log import LOG
from satchel.server.models import Models
from satchel.server.problem import Problem

LESS_URGENT = 10  # levels of priority below the original request
WHOLE = ("stop", "length")  # finish reasons of complete completions
VOCABULARY = "tokenizer.ggml.tokens"

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
    if reply is None or reply.stats.finish not in WHOLE or not reply.reply.ids or not alias.shadows():
        return
    kwargs: GenerateKwargs = {**answer.wanted.kwargs, "sampling": reply.reply.options.sampling}
    kwargs["priority"] = kwargs.get("priority", 0) + LESS_URGENT
    kwargs.pop("progress", None)
    wanted = replace(answer.wanted, model=alias.table.shadow, kwargs=kwargs, sampled={})
    prompt, ids = list(reply.reply.prompt), list(reply.reply.ids)
    task = asyncio.create_task(_compare(models, wanted, caller, alias, answer.lease.name, prompt, ids))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _compare(
    models: Models,
    wanted: GenerationRequest,
    caller: Caller,
    alias: Alias,
    served: str,
    prompt: list[int],
    ids: list[int],
) -> None:
    """Lets the shadow answer, then both versions predict the first one's completion. served: its version."""
    began, seconds = time.monotonic(), 0.0
    try:
        other = await Answer.begin(models, wanted, caller)
        try:
            await other.read()
        finally:
            await other.close()
        seconds = time.monotonic() - began
        seen = await _observed(models, caller, alias, served, prompt, ids)
    except (SatchelError, Problem, OSError) as error:
        LOG.warning("%s: the shadow %s failed: %s", alias.name, alias.table.shadow, error)
        alias.compare(None, seconds or time.monotonic() - began)
        return
    if seen is not None:
        alias.compare(seen, seconds)


async def _observed(
    models: Models, caller: Caller, alias: Alias, served: str, prompt: Sequence[int], ids: Sequence[int]
) -> Observation | None:
    """How both predict the completion; None where their tokens are not the same."""
    async with models.use(served) as first, models.use(alias.table.shadow) as second:
        a, b = first.model.model, second.model.model
        if served not in alias.comparable:
            alias.comparable[served] = await models.pools.run(
                "score", partial(same_vocabulary, a, b), caller.user
            )
        if not alias.comparable[served]:
            alias.cannot_compare(f"its tokens are not those of {served}")
            return None
        whole = [*prompt, *ids][: min(a.context, b.context)]
        found: list[list[Logprob]] = []
        for model in (a, b):
            asked = partial(model.prompt_logprobs, whole, TOP, salt=caller.salt)
            run = partial(CancelScope(client=caller.client).run, asked)
            found.append(await models.pools.run("score", run, caller.user))
    return observe(*(reports[len(prompt) - 1 :] for reports in found))


def same_vocabulary(a: Model, b: Model) -> bool:
    """Whether both have the same tokens under the same ids."""
    first, second = (list(model.gguf.metadata.get_array(VOCABULARY, (), kind="str")) for model in (a, b))
    return first == second
