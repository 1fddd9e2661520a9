"""The library's face for asyncio: the methods of Model, awaited; `async for` gives an answer's pieces. The
loop never waits for the engine; cancelling the task or closing the answer ends the request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from satchel.formats.chat import Event
from satchel.runtime.cancel_scope import CancelScope
from satchel.runtime.chat_reply import ChatReply
from satchel.runtime.generate_options import GenerateKwargs
from satchel.runtime.graph import Array
from satchel.runtime.likelihood import Scored
from satchel.runtime.model import Message, Model
from satchel.runtime.options import LoadKwargs, LoadProgress, Options
from satchel.runtime.readings import Names, Text
from satchel.runtime.reply import POLL, Reply, Stats
from satchel.runtime.rerank import INSTRUCTION, Ranked
from satchel.runtime.resume import Restored
from satchel.runtime.stats import EngineStats
from satchel.runtime.usage_report import UsageReport

T = TypeVar("T")
LONG = 64  # calls at once of those that read texts or states
SHORT = 8  # calls at once of those that prepare a prompt, or judge an answer
# Runs a function in a thread, and gives its result.
Runner = Callable[[Callable[[], Any]], Awaitable[Any]]


class AsyncReply:
    """`async for` over the pieces; otherwise as Reply. Closing it (aclose, or leaving `async with`),
    cancelling the task that waits for it, and letting go of it end the request. run: the threads in which a
    whole answer is judged.
    """

    def __init__(self, reply: Reply, run: Runner = asyncio.to_thread) -> None:
        self.reply, self._run = reply, run

    @property
    def ids(self) -> list[int]:
        return self.reply.ids

    @property
    def text(self) -> str:
        return self.reply.text

    @property
    def stats(self) -> Stats:
        return self.reply.stats

    @property
    def report(self) -> UsageReport:
        return self.reply.report

    @property
    def notes(self) -> tuple[str, ...]:
        return self.reply.notes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self.reply.over:
            piece = await self._feed(await self._token())
            if piece:
                return piece
        raise StopAsyncIteration

    async def _feed(self, token: int | None) -> str:
        """The text that a token brings. Checking a whole answer takes long, so a thread does it."""
        piece = self.reply.feed(token)
        if self.reply.unjudged:
            await self._run(self.reply.conclude)
        return piece

    async def burst(self) -> str:
        """The next piece, with all that has come meanwhile; "" at the end."""
        piece, reply = await anext(self, ""), self.reply
        while not reply.over and reply.handle is not None and reply.handle.ready:
            piece += await self._feed(reply.handle.get())
        return piece

    async def _token(self) -> int | None:
        reply = self.reply
        if reply.starts_slowly:
            await self._run(reply.start)
        handle = reply.start()
        if handle is None:
            return None
        try:
            while reply.options.progress and not reply.stats.generated:
                try:
                    return await asyncio.wait_for(handle.wait(), POLL)
                except TimeoutError:
                    reply.report_progress()
            return await handle.wait()
        except asyncio.CancelledError:
            reply.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the answer at once; a second time it does nothing."""
        self.reply.close()

    def cancel(self) -> None:
        """Ends the answer after the token or the chunk of the prompt at hand."""
        self.reply.cancel()

    async def read(self) -> str:
        """Runs to the end and gives the whole text."""
        async for _ in self:
            pass
        return self.text


class AsyncChatReply(AsyncReply):
    """As AsyncReply, for the answer to a conversation; `reply` has its content, reasoning and tool calls."""

    def __init__(self, reply: ChatReply, run: Runner = asyncio.to_thread) -> None:
        super().__init__(reply, run)
        self.reply: ChatReply = reply

    async def events(self) -> AsyncIterator[Event]:
        """Thinking, text and calls as they come."""
        while True:
            for event in self.reply.taken():
                yield event
            if self.reply.over:
                return
            await anext(self, None)


class AsyncModel:
    """A model for asyncio. `model` is the same for threads; both may be used at once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        # Their threads begin as they are needed, and no other work holds them up. The second is never shut
        # down: a closed model still says that it is.
        self._long = ThreadPoolExecutor(LONG, "satchel-async")
        self._short = ThreadPoolExecutor(SHORT, "satchel-prepare")

    @classmethod
    async def load(
        cls,
        path: str | Path,
        options: Options | None = None,
        *,
        progress: LoadProgress | None = None,
        **changes: Unpack[LoadKwargs],
    ) -> Self:
        """Model.load in a thread of its own. progress is called in the loop's thread. Cancelling the task
        stops the load at the next call of progress, and what was loaded is freed.
        """
        given_up = threading.Event()
        told = _in_loop(progress, given_up)
        work = partial(Model.load, path, options, progress=told, **changes)
        loading = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return cls(await asyncio.shield(loading))
        except asyncio.CancelledError:
            given_up.set()
            loading.add_done_callback(_drop)
            raise

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        reasoning: bool | int | str | None = None,
        reasoning_end: str = "",
        prefill: bool | None = None,
        variables: Mapping[str, object] | None = None,
        before: Sequence[int] = (),
        **kwargs: Unpack[GenerateKwargs],
    ) -> AsyncChatReply:
        """As Model.chat. The template is rendered in a thread."""
        asked = partial(
            self.model.chat,
            messages,
            tools=tools,
            reasoning=reasoning,
            reasoning_end=reasoning_end,
            prefill=prefill,
            variables=variables,
            before=before,
            **kwargs,
        )
        return AsyncChatReply(await self._thread(asked), self._thread)

    async def generate(self, prompt: str | Sequence[int], **kwargs: Unpack[GenerateKwargs]) -> AsyncReply:
        """As Model.generate."""
        return AsyncReply(await self._thread(partial(self.model.generate, prompt, **kwargs)), self._thread)

    async def generate_many(
        self, prompts: Iterable[str | Sequence[int]], **kwargs: Unpack[GenerateKwargs]
    ) -> list[AsyncReply]:
        """As Model.generate_many; cancelling the task ends all of them."""
        room = asyncio.Semaphore(self.model.cache.slots + 2)

        async def run(prompt: str | Sequence[int]) -> AsyncReply:
            async with room:
                reply = await self.generate(prompt, **kwargs)
                await reply.read()
                return reply

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(p)) for p in prompts]
        return [t.result() for t in tasks]

    async def tokenize(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        return await self._thread(partial(self.model.tokenize, text, special=special, bos=bos))

    async def tokenize_many(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        return await self._thread(partial(self.model.tokenize_many, texts, special=special))

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self.model.detokenize(ids, special=special)

    async def logits(self, ids: Sequence[int]) -> Array:
        """As Model.logits: (n, vocabulary) float32."""
        return await self._engine(partial(self.model.logits, ids))

    async def embed(
        self,
        texts: Text | Sequence[Text],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        adapters: Names | None = None,
        control_vectors: Names | None = None,
        salt: str = "",
    ) -> Array:
        """As Model.embed: (n, D) float32."""
        return await self._engine(
            partial(
                self.model.embed,
                texts,
                pooling=pooling,
                normalize=normalize,
                dimensions=dimensions,
                adapters=adapters,
                control_vectors=control_vectors,
                salt=salt,
            )
        )

    async def score(
        self,
        prompt: Text,
        continuations: Sequence[Text],
        *,
        adapters: Names | None = None,
        control_vectors: Names | None = None,
        salt: str = "",
    ) -> list[Scored]:
        """As Model.score."""
        return await self._engine(
            partial(
                self.model.score,
                prompt,
                continuations,
                adapters=adapters,
                control_vectors=control_vectors,
                salt=salt,
            )
        )

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top: int | None = None,
        instruction: str = INSTRUCTION,
        adapters: Names | None = None,
        control_vectors: Names | None = None,
        salt: str = "",
    ) -> list[Ranked]:
        """As Model.rerank."""
        return await self._engine(
            partial(
                self.model.rerank,
                query,
                documents,
                top=top,
                instruction=instruction,
                adapters=adapters,
                control_vectors=control_vectors,
                salt=salt,
            )
        )

    async def save_state(self, path: str | Path, prompt: str | Sequence[int], *, salt: str = "") -> int:
        """As Model.save_state."""
        return await self._engine(partial(self.model.save_state, path, prompt, salt=salt))

    async def restore_state(self, path: str | Path, *, salt: str = "") -> Restored:
        """As Model.restore_state."""
        return await self._engine(partial(self.model.restore_state, path, salt=salt))

    async def stats(self) -> EngineStats:
        """As Model.stats."""
        return await asyncio.to_thread(self.model.stats)

    @property
    def trouble(self) -> str:
        """Why no request can be answered now; "" where they are. Waits for nothing."""
        return self.model.trouble

    async def bandwidth(self) -> float | None:
        """As Model.bandwidth."""
        return await self._engine(self.model.bandwidth)

    async def close(self) -> None:
        """As Model.close."""
        self._long.shutdown(wait=False)
        await asyncio.to_thread(self.model.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._short, work)

    async def _engine(self, work: Callable[[], T]) -> T:
        """In a thread for what takes long, so that answers need not wait for one to begin. Cancelling the
        task stops what the engine does for it.
        """
        scope, loop = CancelScope(), asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._long, scope.run, work)
        except asyncio.CancelledError:
            scope.cancel()
            raise


def _in_loop(progress: LoadProgress | None, given_up: threading.Event) -> LoadProgress:
    """A callback for the loading thread that asks `progress` in the loop's thread, and says no once the task
    was cancelled.
    """
    loop = asyncio.get_running_loop()

    async def ask(done: int, total: int) -> object:
        return progress(done, total) if progress else None

    def call(done: int, total: int) -> object:
        if given_up.is_set():
            return False
        if progress is None:
            return None
        asked = asyncio.run_coroutine_threadsafe(ask(done, total), loop)
        while True:
            try:
                return asked.result(0.1)
            except TimeoutError:
                if asked.done():
                    raise
                # The loop may be gone, with the task that wanted the model.
                if given_up.is_set() or loop.is_closed():
                    return False

    return call


def _drop(loading: asyncio.Future[Model]) -> None:
    """What became of a load that nobody waits for any more."""
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
