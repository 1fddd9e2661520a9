"""The completions of one `GenerationRequest` while they are generated, as one stream of deltas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastapi.responses import JSONResponse

from satchel.errors import DeviceError
from satchel.formats.chat import CallEnd, Content, Event
from satchel.runtime.api.answers import seeds
from satchel.runtime.api.async_model import AsyncChatReply, AsyncReply
from satchel.runtime.api.chat_reply import ChatReply
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.api.refusals import PromptTooLong
from satchel.runtime.engine.cancel_scope import CancelScope
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.logprobs import Logprob
from satchel.runtime.words import MAX_COMPLETIONS
from satchel.server.asked import generate_kwargs, ids_of, limited
from satchel.server.generation import Caller, GenerationRequest, Text, Turn
from satchel.server.models import Lease, Models
from satchel.server.pools import Pools
from satchel.server.problem import Problem, problem_of

T = TypeVar("T")
MOST = 512  # completions of one request, over all of its prompts
LARGE = 512  # tokens of prompts and completions; a longer response is written as JSON in a thread
AHEAD = 2  # completions queued beyond the model's slots, so that no slot stays empty between two of them


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """What one completion adds since its last delta."""

    index: int  # of the completion
    events: Sequence[Event]
    logprobs: Sequence[Logprob] = ()
    finish: str = ""  # the finish reason; "" while the completion goes on
    tokens: Sequence[int] = ()


class Answer:
    """All completions of one request; iterate for their deltas.

    replies: one for each completion, grouped by prompt, with its text, token counts and usage report.
    scored: the log-probabilities of each prompt's tokens, where the request asks for them.

    `begin` returns only after the first delta, so that errors until then still get an HTTP error status.
    close() cancels what is running and releases the model.
    """

    def __init__(
        self,
        wanted: GenerationRequest,
        lease: Lease,
        held: AsyncExitStack,
        pools: Pools,
        user: str,
        owner: str,
    ) -> None:
        self.wanted, self.lease, self.model, self.name = wanted, lease, lease.model, lease.name
        self.created, self.began = int(time.time()), time.perf_counter()
        self.replies: list[AsyncReply] = []
        self.scored: list[list[Logprob]] = []
        self._held, self._first, self._owner = held, AnswerDelta(0, ()), owner
        self._pools, self._user = pools, user
        self._room = asyncio.Semaphore(lease.model.model.slots + AHEAD)

    @classmethod
    async def begin(cls, models: Models, wanted: GenerationRequest, caller: Caller) -> Answer:
        """Loads the model where needed, starts the request and waits for its first delta."""
        check_counts(wanted)
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(models.use(wanted.model, caller.user))
            answer = cls(wanted, lease, stack, models.pools, caller.user, caller.salt)
            stack.callback(answer._record_spans, models)
            stack.push_async_callback(answer._end)
            asked = partial(generate_kwargs, lease.model.model, wanted, caller, lease.entry.adapters)
            try:
                kwargs = await answer.in_pool("grammar" if has_grammar(wanted) else "prompt", asked)
                await answer._start(kwargs)
            except PromptTooLong as error:
                problem = problem_of(error)
                problem.param = "messages" if isinstance(wanted.prompt, Turn) else "prompt"
                raise problem from None
            answer._held = stack.pop_all()
        return answer

    async def _start(self, kwargs: GenerateKwargs) -> None:
        """Starts a reply for each completion, and waits for the first delta of the first one: by then the
        prompt is prefilled, and the other completions find it in the prefix cache.
        """
        sampling = kwargs.get("sampling") or Sampling()
        for prompt in self.wanted.prompts:
            ids = await self._ids(prompt)
            if ids and self.wanted.prompt_logprobs >= 0:
                await self._score(ids, kwargs)
            for seed in seeds(sampling.seed or 0, self.wanted.made):
                self.replies.append(
                    await self._ask(prompt, ids, {**kwargs, "sampling": sampling.with_seed(seed)})
                )
        if not self.scored and self.wanted.prompt_logprobs >= 0:
            await self._score(self.replies[0].reply.prompt, kwargs)
        self._first = await self._next(0)

    async def _ids(self, prompt: Text | Turn) -> list[int]:
        if isinstance(prompt, Turn):
            return []
        return await self.in_pool("prompt", partial(ids_of, self.model.model, prompt))

    async def _ask(self, prompt: Text | Turn, ids: list[int], kwargs: GenerateKwargs) -> AsyncReply:
        judge = partial(self.in_pool, "check")
        if isinstance(prompt, Text):
            generate = partial(self.model.model.generate, ids, **kwargs)
            return AsyncReply(await self.in_pool("prompt", generate), judge)
        chat = partial(
            self.model.model.chat,
            prompt.messages,
            tools=prompt.tools,
            reasoning=prompt.reasoning,
            reasoning_end=prompt.reasoning_end,
            prefill=prompt.prefill,
            variables=prompt.variables,
            before=prompt.before,
            **kwargs,
        )
        return AsyncChatReply(await self.in_pool("prompt", chat), judge)

    async def in_pool(self, kind: str, work: Callable[[], T]) -> T:
        """Runs the work in the thread pool of this kind, which divides its threads fairly among users."""
        bounded = partial(limited, self.model.model, self.wanted, work)
        return await self._pools.run(kind, bounded, self._user)

    async def response(self, make: Callable[[], object]) -> JSONResponse:
        """The result of `make` as a JSON response; with more than LARGE tokens it is built in a thread."""
        count = sum(len(reply.ids) + reply.stats.prompt for reply in self.replies)
        if count <= LARGE:
            return JSONResponse(make())
        return await self.in_pool("response", lambda: JSONResponse(make()))

    async def _score(self, ids: Sequence[int], kwargs: GenerateKwargs) -> None:
        asked = partial(
            self.model.model.prompt_logprobs,
            ids,
            self.wanted.prompt_logprobs,
            salt=kwargs.get("salt", ""),
            adapters=kwargs.get("adapters"),
        )
        scope = CancelScope(client=kwargs.get("client", ""), weight=kwargs.get("weight", 1.0))
        self.scored.append(await self.in_pool("score", partial(scope.run, asked)))

    async def _next(self, index: int) -> AnswerDelta:
        """The next delta of one completion."""
        reply = self.replies[index]
        inner = reply.reply
        known, made = len(inner.logprobs), len(inner.ids)
        try:
            piece = await reply.burst()
        except DeviceError:
            self.lease.failed = True
            raise
        events = self._events(reply, piece)
        finish = inner.stats.finish if inner.over else ""
        return AnswerDelta(index, events, inner.logprobs[known:], finish, inner.ids[made:])

    def _events(self, reply: AsyncReply, piece: str) -> Sequence[Event]:
        """The events of a reply that has just said this piece."""
        if isinstance(reply, AsyncChatReply):
            return self._kept(reply.reply)
        return (Content(piece),) if piece else ()

    @property
    def relays(self) -> bool:
        """Whether relay() may stand in for iterating until the end of the answer."""
        return len(self.replies) == 1 and self.wanted.kwargs.get("logprobs", -1) < 0

    async def relay(self, show: Callable[[Sequence[Event]], bool]) -> None:
        """Calls show() with the events of the one completion, in the loop's thread and all that have come at
        each wake. Returns where iterating must go on: at the end, before what is no plain token, and when
        show() returns False.
        """
        reply = self.replies[0]
        await reply.relay(lambda piece: show(self._events(reply, piece)))

    def say(self, tokens: Sequence[int]) -> Sequence[Event]:
        """Takes tokens of the one completion that another reader had; returns the events that they bring."""
        reply = self.replies[0]
        return self._events(reply, reply.reply.feed_all(tokens)) if tokens else ()

    def _kept(self, reply: ChatReply) -> Sequence[Event]:
        """The reply's new events. Where the request wants one tool call, the reply ends after its first."""
        events = list(reply.taken())
        if not (isinstance(self.wanted.prompt, Turn) and self.wanted.prompt.one_call):
            return events
        end = next((i for i, event in enumerate(events) if isinstance(event, CallEnd)), None)
        if end is None:
            return events
        reply.close()
        return events[: end + 1]

    async def __aiter__(self) -> AsyncIterator[AnswerDelta]:
        said = self._first
        yield said
        if len(self.replies) > 1:
            async for said in self._all():
                yield said
            return
        while not said.finish:
            said = await self._next(0)
            yield said

    async def _all(self) -> AsyncIterator[AnswerDelta]:
        """The deltas of several completions, in the order in which they arrive."""
        coming: asyncio.Queue[AnswerDelta | Exception] = asyncio.Queue(2 * len(self.replies))

        async def hear(index: int) -> None:
            try:
                async with self._room:
                    said = AnswerDelta(index, ())
                    while not said.finish:
                        said = await self._next(index)
                        await coming.put(said)
            except Exception as error:
                await coming.put(error)

        begun = range(bool(self._first.finish), len(self.replies))
        tasks = [asyncio.create_task(hear(i)) for i in begun]
        left = len(tasks)
        try:
            while left:
                said = await coming.get()
                if isinstance(said, Exception):
                    raise said
                left -= bool(said.finish)
                yield said
        finally:
            for task in tasks:
                task.cancel()

    def chat(self, index: int) -> ChatReply:
        """One chat completion, parsed into reasoning, content and tool calls."""
        reply = self.replies[index].reply
        if not isinstance(reply, ChatReply):
            raise TypeError("this answers a text, not a conversation")
        return reply

    @property
    def given(self) -> list[int]:
        """Indexes of the completions that are returned: all, or with best_of the n likeliest of each prompt.
        Valid after all of them have ended.
        """
        made, n = self.wanted.made, self.wanted.n
        found: list[int] = []
        for start in range(0, len(self.replies), made):
            group = range(start, start + made)
            best = sorted(group, key=lambda i: -self.replies[i].reply.mean_logprob) if made > n else group
            found += best[:n]
        return found

    @property
    def firsts(self) -> list[AsyncReply]:
        """The first completion of each prompt."""
        return self.replies[:: self.wanted.made]

    @property
    def notes(self) -> list[str]:
        """The notes of all completions, without duplicates."""
        return list(dict.fromkeys(note for reply in self.replies for note in reply.notes))

    async def read(self) -> None:
        """Runs all completions to their ends."""
        async for _ in self:
            pass

    async def _end(self) -> None:
        for reply in self.replies:
            with suppress(Exception):
                await reply.aclose()
        if self.wanted.slot >= 0 and self.replies:
            last = self.replies[0].reply
            self.lease.entry.slots[self._owner, self.wanted.slot] = (
                [*last.prompt, *last.ids],
                last.options.salt,
            )

    def _record_spans(self, models: Models) -> None:
        models.spans.answered(self.name, self.replies, time.time_ns())

    def before_close(self, action: Callable[[], object]) -> None:
        """Has close() do this first."""
        self._held.callback(action)

    async def close(self) -> None:
        """Cancels what is running and releases the model."""
        await self._held.aclose()


def has_grammar(wanted: GenerationRequest) -> bool:
    """Whether the request needs a grammar compiled: for structured output or a forced tool call."""
    forced = isinstance(wanted.prompt, Turn) and wanted.prompt.call is not None
    return forced or wanted.kwargs.get("grammar") is not None


def check_counts(wanted: GenerationRequest) -> None:
    """Raises a Problem where the request wants too many completions, or best_of is less than n."""
    made, prompts = wanted.made, len(wanted.prompts)
    if not 1 <= wanted.n <= MAX_COMPLETIONS or made > MAX_COMPLETIONS:
        raise Problem("invalid", f"n is {wanted.n}, best_of {made}: expected 1 to {MAX_COMPLETIONS}", "n")
    if wanted.best_of and wanted.best_of < wanted.n:
        raise Problem("invalid", f"best_of is {wanted.best_of}, fewer than n, which is {wanted.n}", "best_of")
    if made * prompts > MOST:
        raise Problem(
            "invalid",
            f"{prompts} prompts with {made} answers each: expected at most {MOST} answers",
            "prompt",
        )
