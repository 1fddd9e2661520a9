"""The server's writer processes (writer_process.py): which stream is leased to which, and how it comes back.

All that decides over a request stays in the server: connections and their deadlines, keys, limits, drain,
metrics. A stream is leased while its tokens are plain text; what ends it or interrupts it happens after it
came back. The server keeps the tokens that it passed on, so its own answer has them all then.

All methods run in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, cast

from satchel.errors import DeviceError
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.api.answer_text import AnswerTextSettings
from satchel.runtime.children import Child, interpreter, module_path, start
from satchel.runtime.worker.wire import LENGTHS, PART, Message, pack_message
from satchel.server.log import LOG
from satchel.server.text_frame import TextFrame
from satchel.server.writer_process import told_settings

START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path'];"
    " from satchel.server.writer_process import main; main()"
)
AUTO = -1
MOST_AUTO = 4  # processes that AUTO takes at most
CORES = 4  # of the machine, for each of them
MANY = 16  # streams at once from which on AUTO has processes
NUMBERS = PART // 4 - 2  # numbers of a message with tokens, beside the last stream's
PATIENCE = 5.0  # seconds for a process to end


class StreamLease:
    """A stream that a process writes. piece: the bytes of a token, b"" for a hidden one. given: the tokens
    that it got. back: (how many of them it has written,
    bytes that it could not write), once it gave the stream back; DeviceError where the process was lost.
    """

    def __init__(
        self, number: int, process: WriterProcess, vocabulary: KnownPieces, piece: Callable[[int], bytes]
    ) -> None:
        self.number, self.vocabulary, self.piece = number, vocabulary, piece
        self._process = process
        self.given: list[int] = []
        self.back: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._recalled = False

    def give(self, tokens: Sequence[int]) -> None:
        """Passes tokens on."""
        self.given += tokens
        self._process.give(self, tokens)

    def recall(self) -> None:
        """Has the process give the stream back."""
        if not self._recalled and not self.back.done():
            self._recalled = True
            self._process.send({"recall": self.number})

    def drop(self) -> None:
        """Ends the lease: what was given and not written is lost."""
        if not self.back.done():
            self._process.forget(self.number)
            self.back.cancel()


class KnownPieces:
    """A vocabulary as far as a process knows it. The tokenizer is not held: it goes with its model."""

    def __init__(self, number: int) -> None:
        self.number, self.known = number, set[int]()


class WriterProcess(asyncio.Protocol):
    """A process and its streams. lost: called once it has ended."""

    def __init__(self, lost: Callable[[WriterProcess], object]) -> None:
        self.ready = self.closing = False
        self.streams: dict[int, StreamLease] = {}
        self._lost, self._numbers = lost, count(1)
        self._child: Child | None = None
        self._transport: asyncio.Transport | None = None
        self._side: socket.socket | None = None
        self._vocabularies: weakref.WeakKeyDictionary[Tokenizer, KnownPieces] = weakref.WeakKeyDictionary()
        self._gone: deque[int] = deque()  # vocabularies of models that are unloaded
        self._tokens, self._due = array("i"), False
        self._came = bytearray()

    async def begin(self) -> None:
        """Starts the process. DeviceError where that fails."""
        control, self._side = await asyncio.to_thread(self._start)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=control)

    def _start(self) -> tuple[socket.socket, socket.socket]:
        pairs = socket.socketpair(), socket.socketpair()
        ends = [theirs.fileno() for _, theirs in pairs]
        given = {"path": module_path(), "control": ends[0], "side": ends[1]}
        command = [*interpreter(), "-c", START, json.dumps(given)]
        try:
            self._child = start(command, isolated=True, stdin=subprocess.DEVNULL, pass_fds=ends)
        except OSError as error:
            for pair in pairs:
                pair[0].close()
            raise DeviceError(f"a process for streams could not be begun: {error}") from None
        finally:
            for _, theirs in pairs:
                theirs.close()
        return pairs[0][0], pairs[1][0]

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    def lease(
        self,
        descriptor: int,
        tokenizer: Tokenizer,
        settings: AnswerTextSettings,
        frames: Mapping[str, TextFrame],
        ids: Sequence[int],
    ) -> StreamLease:
        """Leases a stream to it. descriptor: of the connection. ids: the tokens whose text is written."""
        vocabulary = self._vocabularies.get(tokenizer)
        if vocabulary is None:
            vocabulary = KnownPieces(next(self._numbers))
            self._vocabularies[tokenizer] = vocabulary
            weakref.finalize(tokenizer, self._gone.append, vocabulary.number).atexit = False
        while self._gone:
            self.send({"forget": self._gone.popleft()})
        lease = StreamLease(next(self._numbers), self, vocabulary, tokenizer.stream().piece)
        self._teach(lease, ids)
        self.streams[lease.number] = lease
        socket.send_fds(cast(socket.socket, self._side), [b"f"], [descriptor])
        told = {name: [frame.before, frame.after] for name, frame in frames.items()}
        message = {"begin": lease.number, "vocabulary": vocabulary.number, "frames": told, "ids": list(ids)}
        self.send({**message, "settings": told_settings(settings)})
        return lease

    def _teach(self, lease: StreamLease, tokens: Sequence[int]) -> None:
        """Tells the process the tokens that it does not know."""
        vocabulary = lease.vocabulary
        if vocabulary.known.issuperset(tokens):
            return
        new = set(tokens) - vocabulary.known
        vocabulary.known |= new
        pieces = [[token, lease.piece(token).decode("latin-1")] for token in new]
        self.send({"vocabulary": vocabulary.number, "pieces": pieces})

    def give(self, lease: StreamLease, tokens: Sequence[int]) -> None:
        """Passes tokens of a stream on at the end of this turn of the loop, with those of the others."""
        self._teach(lease, tokens)
        for at in range(0, len(tokens), NUMBERS):
            part = tokens[at : at + NUMBERS]
            if len(self._tokens) + len(part) > NUMBERS:
                self._flush()
            self._tokens.extend((lease.number, len(part), *part))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        if self._tokens:
            data, self._tokens = self._tokens.tobytes(), array("i")
            self._write({"tokens": 1}, data)

    def send(self, message: Message) -> None:
        """Sends a message, after the tokens that were given so far."""
        self._flush()
        self._write(message)

    def _write(self, message: Message, data: bytes = b"") -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack_message(message, data))

    def forget(self, number: int) -> None:
        """Takes a stream from the process, wherever it is."""
        if self.streams.pop(number, None):
            self.send({"drop": number})

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._came += data
        while len(self._came) >= LENGTHS.size:
            head, more = LENGTHS.unpack_from(self._came)
            end = LENGTHS.size + head + more
            if len(self._came) < end:
                return
            text = bytes(self._came[LENGTHS.size : LENGTHS.size + head])
            raw = bytes(self._came[LENGTHS.size + head : end])
            del self._came[:end]
            self._hear(json.loads(text), raw)

    def _hear(self, message: Message, data: bytes) -> None:
        if "ready" in message:
            self.ready = True
        elif (lease := self.streams.pop(message["back"], None)) and not lease.back.done():
            lease.back.set_result((message["tokens"], data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ready = False
        for lease in self.streams.values():
            if not lease.back.done():
                lease.back.set_exception(DeviceError("the process that wrote the stream was lost"))
        self.streams.clear()
        self._lost(self)

    async def close(self) -> None:
        """Ends the process. Its streams are lost."""
        self.closing = True
        if self._transport is not None:
            self._transport.close()
        if self._side is not None:
            self._side.close()
        child = self._child
        if child is None:
            return
        try:
            await asyncio.to_thread(child.wait, PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            await asyncio.to_thread(child.wait)


class StreamWriters:
    """The writer processes of a server. count: how many; AUTO: one for CORES cores of the machine, begun when
    MANY streams run at once. Others than AUTO's begin with the server and get every stream that they can.
    """

    def __init__(self, count: int) -> None:
        self.running = 0  # streams that run now, leased or not
        self._auto = count == AUTO
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._count = min(MOST_AUTO, cores // CORES) if self._auto else count
        if not hasattr(socket, "send_fds"):  # Windows
            self._count = 0
        self.processes: list[WriterProcess] = []
        self._beginning: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Called when the server begins."""
        if self._count and not self._auto:
            self._begin()

    def _begin(self) -> None:
        if self._beginning is None:
            self._beginning = asyncio.create_task(self._begin_all())

    async def _begin_all(self) -> None:
        for _ in range(self._count):
            process = WriterProcess(self._lost)
            try:
                await process.begin()
            except DeviceError as error:
                LOG.warning("%s: the server writes all streams itself", error)
                return
            self.processes.append(process)

    def _lost(self, process: WriterProcess) -> None:
        if process in self.processes:
            self.processes.remove(process)
        if not process.closing:
            LOG.error("a process that wrote streams has ended: its streams are cut, others go on without it")

    def choose(self) -> WriterProcess | None:
        """The process that is to write another stream; None: the server writes it."""
        if not self._count or (self._auto and self.running < MANY):
            return None
        self._begin()
        ready = [process for process in self.processes if process.ready]
        return min(ready, key=lambda process: len(process.streams), default=None)

    async def close(self) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
            with suppress(asyncio.CancelledError):
                await self._beginning
        for process in list(self.processes):
            await process.close()


def state_writers(scope: Mapping[str, Any]) -> StreamWriters | None:
    """The writers of the server that a request's scope belongs to."""
    app = scope.get("app")
    return getattr(app.state, "writers", None) if app is not None else None
