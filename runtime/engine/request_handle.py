"""Handle of a submitted request: its tokens as they are sampled, its end, and cancellation. The engine thread
puts items; any thread or task takes them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import abc
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from satchel.errors import SatchelError
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled
from satchel.runtime.engine.notifier import Notifier, Waiter, notifier_of
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


class RequestHandle:
    """Iterate, or `async for`, over the tokens as they are sampled. seq: counts and times, written by the
    engine thread. logprobs: of the tokens taken so far, if requested.
    """

    def __init__(self, service: Requests, seq: Sequence) -> None:
        self.seq, self.finish = seq, ""
        self.service = service  # another one after the loss of a device
        self._tokens: SimpleQueue[int | Sampled | End] = SimpleQueue()
        self.logprobs: list[Logprob] = []
        self._wake: abc.Callable[[], object] | None = None
        self._waits: Waiter | None = None  # the waiting task's future; resolved once
        self._notifier: tuple[asyncio.AbstractEventLoop, Notifier] | None = None
        self._lock = threading.Lock()

    def put(self, item: int | Sampled | End) -> None:
        """Called by the engine thread."""
        self._tokens.put(item)
        # A reader puts down that it waits, then looks for items once more; so one of the two sees the other.
        if self._waits is not None or self._wake is not None:
            self._notify()

    def _notify(self) -> None:
        with self._lock:
            wake, waits, self._waits = self._wake, self._waits, None
            notifier = self._notifier
        if waits and notifier:
            notifier[1].notify(waits)
        if wake:
            wake()

    def cancel(self) -> None:
        """Ends the request after the current step. Thread-safe and idempotent."""
        self.service.cancel(self)

    def get(self, timeout: float | None = None) -> int | None:
        """The next token; None at the end, with `finish` set. Raises queue.Empty after `timeout` seconds."""
        if self.finish:
            return None
        item = self._tokens.get(timeout=timeout)
        return self._take(item)

    def drain(self) -> list[int | Sampled | End]:
        """Takes all available items without waiting. Only one thread takes them."""
        take = self._tokens.get_nowait
        return [take() for _ in range(self._tokens.qsize())]

    def __iter__(self) -> abc.Iterator[int]:
        while (token := self.get()) is not None:
            yield token

    async def wait(self) -> int | None:
        """get() for a task. If the task is cancelled meanwhile, no token is lost."""
        while not self.finish:
            try:
                return self._take(self._tokens.get_nowait())
            except Empty:
                await self._token_there()
        return None

    async def _token_there(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        with self._lock:
            if self._notifier is None or self._notifier[0] is not loop:
                self._notifier = loop, notifier_of(loop)
            self._waits = waiter
        if self._tokens.empty():
            await waiter

    @property
    def ready(self) -> bool:
        """Whether get() would return at once."""
        return bool(self.finish) or not self._tokens.empty()

    def listen(self, wake: abc.Callable[[], object] | None) -> None:
        """Calls `wake` in the engine's thread with every token from now on."""
        with self._lock:
            self._wake = wake

    async def __aiter__(self) -> abc.AsyncIterator[int]:
        while (token := await self.wait()) is not None:
            yield token

    def _take(self, item: int | Sampled | End) -> int | None:
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
