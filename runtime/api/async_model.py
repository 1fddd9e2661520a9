"""The library's interface for asyncio: the methods of Model, awaited; `async for` iterates over an answer's
pieces. The loop never waits for the engine. Cancelling the task or closing the answer ends the request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar, Unpack

from satchel.formats.chat import Event
from satchel.runtime.api import notebook
from satchel.runtime.api.chat_reply import ChatReply
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadKwargs, LoadProgress, Options
from satchel.runtime.api.reply import POLL, Reply, Stats
from satchel.runtime.api.usage_report import UsageReport
from satchel.runtime.engine.cancel_scope import CancelScope, current_scope
from satchel.runtime.engine.stats import EngineStats
from satchel.runtime.option import check_list

P = ParamSpec("P")
R = TypeVar("R", bound=Reply)
T = TypeVar("T")
Method: TypeAlias = Callable[Concatenate["AsyncModel", P], Coroutine[Any, Any, T]]
LONG = 64  # concurrent calls that read texts or states
SHORT = 8  # concurrent calls that prepare a prompt or check an answer
# Runs a function in a thread and gives its result.
Runner = Callable[[Callable[[], Any]], Awaitable[Any]]


class AsyncReply:
    """An answer for asyncio: `async for` iterates over the pieces; otherwise as Reply. Closing it (aclose, or
    leaving `async with`), cancelling the waiting task, or dropping the last reference ends the request.

    reply: the Reply that it drives.
    """

    def __init__(self, reply: Reply, run: Runner = asyncio.to_thread) -> None:
        self.reply, self._run = reply, run

    @property
    def ids(self) -> list[int]:
        """As Reply's: token ids of the answer so far, without the end token."""
        return self.reply.ids

    @property
    def text(self) -> str:
        """The text so far."""
        return self.reply.text

    @property
    def stats(self) -> Stats:
        """Token counts and seconds so far."""
        return self.reply.stats

    @property
    def report(self) -> UsageReport:
        """Usage report so far."""
        return self.reply.report

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings for the reader of the answer, such as truncation."""
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
        """The text that a token adds. The check of a whole answer takes long, so it runs in a thread."""
        piece = self.reply.feed(token)
        if self.reply.unjudged:
            await self._run(self.reply.conclude)
        return piece

    async def burst(self) -> str:
        """The next piece, joined with all that has come meanwhile; "" at the end."""
        piece, reply = "", self.reply
        while not reply.over:
            handle = reply.handle
            if handle is not None and (tokens := handle.plain()):
                piece += reply.feed_all(tokens)
            elif handle is not None and handle.ready:
                piece += reply.feed(handle.get())
            elif piece:
                break
            else:
                piece += reply.feed(await self._token())
            if reply.unjudged:
                await self._run(reply.conclude)
        return piece

    async def relay(self, show: Callable[[str], bool]) -> None:
        """Calls show() with the text of plain tokens, in the loop's thread and all that have come at each
        wake, so that no task runs for a token. Returns at the end of the answer, before what is no plain
        token, and when show() returns False; burst() goes on from there.
        """
        reply, handle = self.reply, self.reply.handle
        if handle is None or (reply.options.progress and not reply.stats.generated):
            return

        def take(tokens: list[int]) -> bool:
            more = show(reply.feed_all(tokens))
            return more and not (reply.over or reply.unjudged or reply.handle is not handle)

        await handle.relay(take)
        if reply.unjudged:
            await self._run(reply.conclude)

    async def _token(self) -> int | None:
        reply = self.reply
        handle = reply.handle
        if handle is None:
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
        """Ends the answer at once. Idempotent."""
        self.reply.close()

    def cancel(self) -> None:
        """Ends the answer after the current token or prompt chunk."""
        self.reply.cancel()

    def __repr__(self) -> str:
        if not self.reply.began:
            return f"<{type(self).__name__}, not begun: iterate over it, or await read() or display()>"
        return f"<Async{repr(self.reply).removeprefix('<')}"

    def _repr_html_(self) -> str:
        """The answer so far, for a notebook."""
        return self.reply._repr_html_() if self.reply.began else notebook.faint(repr(self))

    async def display(self) -> None:
        """As Reply.display."""
        shown = notebook.display_of(self.looks, self.text)
        try:
            async for piece in self:
                shown.grow(piece)
        except BaseException:
            self.reply.close()
            raise
        finally:
            shown.finish()

    def looks(self) -> tuple[str, str]:
        """As Reply.looks."""
        return self._repr_html_(), repr(self)

    async def read(self) -> str:
        """Runs to the end; gives the whole text."""
        async for _ in self:
            pass
        return self.text


class AsyncChatReply(AsyncReply):
    """As AsyncReply, for the answer to a conversation; `reply` has its content, reasoning and tool calls."""

    def __init__(self, reply: ChatReply, run: Runner = asyncio.to_thread) -> None:
        super().__init__(reply, run)
        self.reply: ChatReply = reply

    async def events(self) -> AsyncIterator[Event]:
        """Reasoning, text and tool calls as they come."""
        while True:
            for event in self.reply.taken():
                yield event
            if self.reply.over:
                return
            await anext(self, None)


def _in_thread(method: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """A method of Model, awaited: it takes the same arguments, and runs in a thread for short work."""

    @wraps(method)
    async def call(self: AsyncModel, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._thread(partial(getattr(self.model, method.__name__), *args, **kwargs))

    return call


def _in_engine(method: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """The same for a method that waits for the engine."""

    @wraps(method)
    async def call(self: AsyncModel, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._engine(partial(getattr(self.model, method.__name__), *args, **kwargs))

    return call


def _replying(method: Callable[Concatenate[Any, P], R], kind: Callable[[R, Runner], T]) -> Method[P, T]:
    """A method of Model that gives a Reply, awaited: it prepares the prompt in a thread and gives `kind`."""

    @wraps(method)
    async def call(self: AsyncModel, /, *args: P.args, **kwargs: P.kwargs) -> T:
        reply = await self._thread(partial(getattr(self.model, method.__name__), *args, **kwargs))
        return kind(reply, self._thread)

    return call


class AsyncModel:
    """A model for asyncio. `model` is the same for threads; both may be used at once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        # Dedicated pools, whose threads begin as they are needed, so that no other work delays the calls. The
        # second is never shut down: calls on a closed model still need it for their error.
        self._long = ThreadPoolExecutor(LONG, "satchel-async")
        self._short = ThreadPoolExecutor(SHORT, "satchel-prepare")

    def __repr__(self) -> str:
        return f"<AsyncModel of {self.model!r}>"

    def _repr_html_(self) -> str:
        return self.model._repr_html_()

    @classmethod
    async def load(
        cls,
        model: str | Path | None = None,
        options: Options | None = None,
        *,
        progress: LoadProgress | None = None,
        **changes: Unpack[LoadKwargs],
    ) -> Self:
        """Model.load in a thread of its own. progress is called in the loop's thread. Cancelling the task
        stops the load at the next progress call and frees what was loaded.
        """
        given_up = threading.Event()
        told = _in_loop(progress, given_up)
        work = partial(Model.load, model, options, progress=told, **changes)
        loading = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return cls(await asyncio.shield(loading))
        except asyncio.CancelledError:
            given_up.set()
            loading.add_done_callback(_drop)
            raise

    chat = _replying(Model.chat, AsyncChatReply)
    generate = _replying(Model.generate, AsyncReply)

    async def generate_many(
        self, prompts: Iterable[str | Sequence[int]], **kwargs: Unpack[GenerateKwargs]
    ) -> list[AsyncReply]:
        """As Model.generate_many; cancelling the task ends all of them."""
        check_list("prompts", prompts, "generate() takes one")
        room = asyncio.Semaphore(self.model.slots + 2)

        async def run(prompt: str | Sequence[int]) -> AsyncReply:
            async with room:
                reply = await self.generate(prompt, **kwargs)
                await reply.read()
                return reply

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(p)) for p in prompts]
        return [t.result() for t in tasks]

    tokenize = _in_thread(Model.tokenize)
    tokenize_many = _in_thread(Model.tokenize_many)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """As Model.detokenize; it does not wait."""
        return self.model.detokenize(ids, special=special)

    logits = _in_engine(Model.logits)
    embed = _in_engine(Model.embed)
    score = _in_engine(Model.score)
    rerank = _in_engine(Model.rerank)
    save_state = _in_engine(Model.save_state)
    restore_state = _in_engine(Model.restore_state)
    bandwidth = _in_engine(Model.bandwidth)

    async def stats(self) -> EngineStats:
        """As Model.stats."""
        return await asyncio.to_thread(self.model.stats)

    @property
    def trouble(self) -> str:
        """Why requests cannot be served now; "" if they can. Does not wait."""
        return self.model.trouble

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
        """Runs work in the pool for long calls, so that answers do not wait for them. Cancelling the task
        stops the engine's work for it.
        """
        outer, loop = current_scope(), asyncio.get_running_loop()
        scope = CancelScope(client=outer.client, weight=outer.weight)
        try:
            return await loop.run_in_executor(self._long, scope.run, work)
        except asyncio.CancelledError:
            scope.cancel()
            raise


def _in_loop(progress: LoadProgress | None, given_up: threading.Event) -> LoadProgress:
    """Callback for the loading thread that calls `progress` in the loop's thread, and returns False once the
    task is cancelled.
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
                # The loop may be gone, with the task that loads the model.
                if given_up.is_set() or loop.is_closed():
                    return False

    return call


def _drop(loading: asyncio.Future[Model]) -> None:
    """Cleans up after an abandoned load."""
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
