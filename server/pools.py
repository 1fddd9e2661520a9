"""Thread pools of the server, one per kind of work, divided fairly among users.

Invariants: one kind of work never waits for another kind; a user holds at most half of the threads of a kind,
and waiting users take turns (round-robin). The queue is bounded: beyond it a call is refused at once (503).
Work that has started runs to its end and holds its thread until then, even if its client has disconnected.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeVar

from satchel.server.problem import Problem

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a pool."""

    threads: int
    waiting: int = 1024  # calls that may wait for a thread


# Work that computes in Python holds the GIL, so few threads suffice; work that waits for the engine or the
# network has more.
SIZES: Mapping[str, Size] = {
    "body": Size(2),  # bodies of requests: read and validated
    "prompt": Size(4),  # templates rendered, prompts tokenized
    "grammar": Size(2),  # grammars compiled
    "check": Size(2),  # finished completions checked against their grammar
    "text": Size(4),  # tokenize, detokenize, count
    "response": Size(2),  # large answers written as JSON
    "embed": Size(8),
    "rerank": Size(8),
    "score": Size(4),  # log-probabilities of prompts, beam searches
    "file": Size(4),  # files read, hashed, copied, deleted
    "pull": Size(4, 16),
    "document": Size(1),
    "page": Size(2, 64),  # documents and formulas of the web page
}


class TaskPool:
    """Threads for one kind of work. It belongs to one event loop."""

    def __init__(self, name: str, size: Size) -> None:
        self.name, self.size = name, size
        self.share = max(1, size.threads // 2)  # threads that one key may hold
        self._threads = ThreadPoolExecutor(size.threads, f"satchel-{name}")
        self._running: Counter[str] = Counter()
        # Waiting calls by user, the next user first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, work: Callable[[], T], user: str = "") -> T:
        """Runs the work in a thread and returns its result. user: "" where the server has no keys, which
        lifts the limit per user. A Problem where the queue is full.
        """
        await self._enter(user)
        loop = asyncio.get_running_loop()
        try:
            future = self._threads.submit(copy_context().run, work)
        except BaseException:
            self._leave(user)
            raise

        def ended(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(self._leave, user)

        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _may_run(self, user: str) -> bool:
        most = self.share if user else self.size.threads
        return self._running.total() < self.size.threads and self._running[user] < most

    async def _enter(self, user: str) -> None:
        if user not in self._waiting and self._may_run(user):
            self._running[user] += 1
            return
        own = self._waiting.get(user, ())
        most = self.size.waiting // 2 if user else self.size.waiting
        if len(own) >= most or sum(map(len, self._waiting.values())) >= self.size.waiting:
            line = f"{self.name}: {len(own)} calls wait for a thread already: try again later"
            raise Problem("busy", line, code="busy", retry_after=1)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it already holds a thread
                self._leave(user)
            else:
                self._forget(user, turn)
            raise

    def _forget(self, user: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(user, deque())
        with suppress(ValueError):
            queue.remove(turn)
        if not queue:
            self._waiting.pop(user, None)

    def _leave(self, user: str) -> None:
        """Passes a free thread to the next user below its share, and moves that user to the end
        of the queue.
        """
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        for waiting in list(self._waiting):
            if not self._may_run(waiting):
                continue
            queue = self._waiting[waiting]
            turn = queue.popleft()
            if queue:
                self._waiting.move_to_end(waiting)
            else:
                del self._waiting[waiting]
            self._running[waiting] += 1
            turn.set_result(None)
            return


class Pools:
    """The task pools by kind of work."""

    def __init__(self, sizes: Mapping[str, Size] = SIZES) -> None:
        self._pools = {name: TaskPool(name, size) for name, size in sizes.items()}

    async def run(self, kind: str, work: Callable[[], T], user: str = "") -> T:
        """Runs the work in a thread of this kind and returns its result."""
        return await self._pools[kind].run(work, user)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
