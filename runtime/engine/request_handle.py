"""Handle of a submitted request: its tokens as they are sampled, its end, and cancellation. The engine thread
puts items; any thread or task takes them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import abc, deque
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from satchel.errors import SatchelError
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled
from satchel.runtime.engine.notifier import Notifier, Wake, notifier_of
from satchel.runtime.engine.stats import EngineStats
from satchel.runtime.sampling.logprobs import Logprob
from satchel.runtime.scheduler import Sequence


@dataclass(frozen=True, slots=True)
class End:
    """Last item of a handle."""

    finish: str  # "stop", "length", "cancelled" or "deadline"
    error: SatchelError | None = None  # why the engine failed


class Requests(Protocol):
    """Runs requests: a Service in this process, or a WorkerService."""

    def submit(self, request: GenerateRequest) -> RequestHandle: ...

    def cancel(self, handle: RequestHandle) -> None: ...

    def stats(self) -> EngineStats: ...

    @property
    def trouble(self) -> str: ...

    def close(self) -> None: ...


Item = int | Sampled | End
# A loop with its notifier, and the call with which it wakes a reader there.
Waiting = tuple[asyncio.AbstractEventLoop, Notifier, Wake]


class RequestHandle:
    """Iterate, or `async for`, over the tokens as they are sampled. seq: counts and times, written by the
    engine thread. logprobs: of the tokens taken so far, if requested.
    """

    def __init__(self, service: Requests, seq: Sequence) -> None:
        self.seq, self.finish = seq, ""
        self.service = service  # another one after the loss of a device
        self._tokens: SimpleQueue[Item] = SimpleQueue()
        self._left: deque[Item] = deque()  # items that the reader took of the queue and did not need yet
        self.logprobs: list[Logprob] = []
        self._wake: abc.Callable[[], object] | None = None
        self._waits: Waiting | None = None  # the reader in a loop that waits; woken once
        self._notifier: tuple[asyncio.AbstractEventLoop, Notifier] | None = None
        self._lock = threading.Lock()

    def put(self, item: Item) -> None:
        """Called by the engine thread."""
        self._tokens.put(item)
        # A reader puts down that it waits, then looks for items once more; so one of the two sees the other.
        if (self._waits is not None or self._wake is not None) and (waits := self._notify()):
            loop, notifier, wake = waits
            notifier.notify(loop, (wake,))

    def _notify(self) -> Waiting | None:
        """Calls the listener; gives the reader in a loop, which the caller must wake."""
        with self._lock:
            wake, waits, self._waits = self._wake, self._waits, None
        if wake:
            wake()
        return waits

    def cancel(self) -> None:
        """Ends the request after the current step. Thread-safe and idempotent."""
        self.service.cancel(self)

    def get(self, timeout: float | None = None) -> int | None:
        """The next token; None at the end, with `finish` set. Raises queue.Empty after `timeout` seconds."""
        if self.finish:
            return None
        return self._take(self._left.popleft() if self._left else self._tokens.get(timeout=timeout))

    def drain(self) -> list[Item]:
        """Takes all available items without waiting. Only one thread takes them."""
        take = self._tokens.get_nowait
        found = [*self._left, *(take() for _ in range(self._tokens.qsize()))]
        self._left.clear()
        return found

    def plain(self) -> list[int]:
        """Takes the plain tokens at the head of what is available, up to the first item that is another."""
        items = self.drain()
        for at, item in enumerate(items):
            if not isinstance(item, int):
                self._left.extend(items[at:])
                return items[:at]  # type: ignore[return-value]  # all before it are tokens
        return items  # type: ignore[return-value]

    def __iter__(self) -> abc.Iterator[int]:
        while (token := self.get()) is not None:
            yield token

    async def wait(self) -> int | None:
        """get() for a task. If the task is cancelled meanwhile, no token is lost."""
        while not self.finish:
            try:
                return self._take(self._left.popleft() if self._left else self._tokens.get_nowait())
            except Empty:
                await self._token_there()
        return None

    async def _token_there(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._wait_with(partial(_resolve, waiter))
        if self._tokens.empty():
            await waiter

    def _wait_with(self, wake: Wake) -> None:
        """Has the next put() call `wake` in the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._notifier is None or self._notifier[0] is not loop:
                self._notifier = loop, notifier_of(loop)
            self._waits = (*self._notifier, wake)

    async def relay(self, take: abc.Callable[[list[int]], bool]) -> None:
        """Gives plain tokens to take(), in the loop's thread, all that have come at each wake; so no task
        runs for a token. Returns when another item is next, which wait() then gives, or when take(), which
        has the tokens even then, returns False. Raises what take() raises.
        """
        over = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not over.done():
                try:
                    if not self._relayed(take, look):
                        over.set_result(None)
                except Exception as error:
                    over.set_exception(error)

        look()
        try:
            await over
        finally:
            with self._lock:
                self._waits = None

    def _relayed(self, take: abc.Callable[[list[int]], bool], look: Wake) -> bool:
        """Relays what has come; whether more may follow, at which look() is called."""
        while not self.finish:
            if (tokens := self.plain()) and not take(tokens):
                return False
            if self._left:
                return False
            self._wait_with(look)
            if self._tokens.empty():
                return True
        return False

    @property
    def ready(self) -> bool:
        """Whether get() would return at once."""
        return bool(self.finish or self._left) or not self._tokens.empty()

    def listen(self, wake: abc.Callable[[], object] | None) -> None:
        """Calls `wake` in the engine's thread with every token from now on."""
        with self._lock:
            self._wake = wake

    async def __aiter__(self) -> abc.AsyncIterator[int]:
        while (token := await self.wait()) is not None:
            yield token

    def _take(self, item: Item) -> int | None:
        if isinstance(item, int):
            return item
        if isinstance(item, Sampled):
            if item.logprob is not None:
                self.logprobs.append(item.logprob)
            return item.token
        self.finish = item.finish
        if item.error is not None:
            raise item.error
        return None


def put_all(given: abc.Iterable[tuple[RequestHandle, abc.Iterable[Item]]]) -> None:
    """put() of several items and requests, such as a step's. Each loop is woken once, when all are there."""
    due: dict[Notifier, tuple[asyncio.AbstractEventLoop, list[Wake]]] = {}
    for handle, items in given:
        for item in items:
            handle._tokens.put(item)
        if (handle._waits is not None or handle._wake is not None) and (waits := handle._notify()):
            loop, notifier, wake = waits
            due.setdefault(notifier, (loop, []))[1].append(wake)
    for notifier, (loop, wakes) in due.items():
        notifier.notify(loop, wakes)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
