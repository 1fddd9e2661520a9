"""The way of a stream's later text from its request to its connection, without a task that wakes for a token.

A stream's generator yields its first chunk, which middleware sees. From then on run() writes what comes, all
that has come for one stream as one chunk, in the turn of the event loop in which the engine's tokens arrive.
Where the server has writer processes (writers.py) and text alone can follow, it leases the stream to one.

run() returns wherever the generator must go on: at the end of the answer, where the client reads slowly, and
before tokens with reports of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from starlette.types import Scope

from satchel.errors import DeviceError
from satchel.formats.chat import Event
from satchel.server.answer import Answer
from satchel.server.stream import PIECE, DirectWriter
from satchel.server.text_frame import TextFrame
from satchel.server.writers import StreamLease, StreamWriters, state_writers

Render = Callable[[Sequence[Event]], bytes]


class Relay:
    """The relay of one stream. render: the chunk for events of the answer's one completion, b"" for none.
    frames: the chunks of events that have nothing but text, by kind; none: the stream cannot be leased.
    """

    def __init__(
        self, scope: Scope, answer: Answer, render: Render, frames: Mapping[str, TextFrame] | None = None
    ) -> None:
        self._write: DirectWriter | None = scope.get("extensions", {}).get(PIECE)
        self._writers: StreamWriters | None = state_writers(scope) if frames else None
        self._answer, self._render, self._frames = answer, render, frames or {}
        self._useless = not answer.relays

    async def run(self) -> bytes:
        """Relays until the generator must go on. Returns a chunk that it must send first; mostly none."""
        write = self._write
        if write is None or self._useless:
            return b""
        if self._writers is None:
            return await self._relayed(write)
        self._writers.running += 1
        try:
            if (lease := self._lease(write, self._writers)) is not None:
                return await self._leased(write, lease)
            return await self._relayed(write)
        finally:
            self._writers.running -= 1

    async def _relayed(self, write: DirectWriter) -> bytes:
        left, relayed = b"", False

        def show(events: Sequence[Event]) -> bool:
            nonlocal left, relayed
            relayed, data = True, self._render(events)
            if data and not write(data):
                left = data
            return not left

        await self._answer.relay(show)
        self._useless = not relayed  # its tokens have reports: each must go the long way
        return left

    def _lease(self, write: DirectWriter, writers: StreamWriters) -> StreamLease | None:
        """The stream as a process has it; None where the server writes it."""
        reply, descriptor = self._answer.replies[0].reply, write.descriptor
        settings = reply.text_settings
        if settings is None or descriptor < 0 or reply.handle is None or reply.over or reply.stop_found:
            return None
        process = writers.choose()
        if process is None:
            return None
        return process.lease(descriptor, reply.model.tokenizer, settings, self._frames, reply.ids)

    async def _leased(self, write: DirectWriter, lease: StreamLease) -> bytes:
        """Passes tokens to the process until something else comes, or it gives the stream back. Then the
        answer here takes the same tokens, of which it says what is not written.
        """
        reply = self._answer.replies[0].reply
        later: list[int] = []  # from a token on that ends the answer

        def take(tokens: list[int]) -> bool:
            if not reply.stop_ids.isdisjoint(tokens):
                later.extend(tokens)
                return False
            write.at = time.monotonic()
            lease.give(tokens)
            return True

        assert reply.handle is not None
        relaying = asyncio.ensure_future(reply.handle.relay(take))
        write.leased(lease)
        try:
            await asyncio.wait((relaying, lease.back), return_when=asyncio.FIRST_COMPLETED)
            lease.recall()
            written, unsent = await lease.back
        except DeviceError:
            write.abort()  # nobody knows how much the client got
            raise
        finally:
            relaying.cancel()
            lease.drop()
            await asyncio.wait((relaying,))
            write.leased(None)
        if not relaying.cancelled():
            relaying.result()
        self._useless = not (lease.given or later)
        write.raw(unsent)
        self._answer.say(lease.given[:written])
        return self._render([*self._answer.say(lease.given[written:]), *self._answer.say(later)])
