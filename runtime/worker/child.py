"""The worker process: a model that reads requests from one pipe and writes tokens to another. It exits when
the pipe closes, which happens whenever its parent ends, for any reason.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import signal
import socket
import stat
import sys
import threading
from bisect import bisect_right
from collections import abc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

from satchel.errors import DeviceError, SatchelError
from satchel.formats.gguf import OpenFile
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.api.recovering import reconnecting
from satchel.runtime.api.tokenized_options import with_constraint
from satchel.runtime.device.lost import DeviceUnreachable, LinkLost
from satchel.runtime.engine.cancel_scope import CancelScope
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import End, RequestHandle
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.watchdog import Beats, Pulse, ticking
from satchel.runtime.log import LOG
from satchel.runtime.sandbox import enter
from satchel.runtime.scheduler import Sequence
from satchel.runtime.worker.outlet import Outlet
from satchel.runtime.worker.pin import pin
from satchel.runtime.worker.report import Reports
from satchel.runtime.worker.rpc_methods import METHODS
from satchel.runtime.worker.version import wire_version
from satchel.runtime.worker.wire import (
    MOST_REQUEST,
    TEXT,
    Arrays,
    Message,
    decode,
    encode,
    encode_error,
    read_message,
)

PR_SET_PDEATHSIG = 1
ITEMS = 1024  # tokens per message, with their reports: well below the size limit
COMPILING = 2  # threads that compile grammars
NO_SANDBOX = "none: it is switched off"
LEFT = 3  # status of a process that left because the host of a device was lost
SPARE = 1 << 30  # allowance for written files, in bytes: headers, log lines
# Fields of a sequence that the parent receives at its end.
TOLD = ("num_computed_tokens", "cached", "miss", "started", "first", "preempted", "used")


class Telling(logging.Handler):
    """Log handler that sends warnings and errors to the parent, whose program has configured logging."""

    def __init__(self, send: abc.Callable[[Message], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send({"log": [record.levelno, self.format(record)[:TEXT]]})


def _called(model: Model, scope: CancelScope, message: Message, args: list[Any]) -> Any:
    """What a model's method gives, in this scope. Files among its arguments are closed before the caller is
    answered.
    """
    try:
        if (method := message["method"]) not in METHODS:
            raise DeviceError(f"a worker process was asked for {method!r}, which it does not know")
        return scope.run(partial(getattr(model, method), *args, **decode(message["how"])))
    finally:
        for file in (a for a in args if isinstance(a, OpenFile)):
            file.close()


def close_sandbox(model: Model) -> enter.Sandbox | None:
    """Closes the sandbox around a loaded model. The largest file that it writes is a saved state."""
    groups, sizes = model.engine.pages.groups, model.engine.states.block_bytes
    saved = sum(model.cache.pool_of(g.window) * size for g, size in zip(groups, sizes, strict=True))
    spare = os.fstat(2).st_size if stat.S_ISREG(os.fstat(2).st_mode) else 0  # standard error, as it is now
    return enter.close(saved + spare + SPARE)


def facts(seq: Sequence) -> dict[str, Any]:
    """The fields of a sequence that the parent receives."""
    return {name: encode(getattr(seq, name)) for name in TOLD}


class Worker:
    """A loaded model, with requests and calls in flight, by the parent's numbers."""

    def __init__(self, out: BinaryIO, side: socket.socket | None = None) -> None:
        self._side = cast(socket.socket, side)
        self._outlet, self._naming = Outlet(out), threading.Lock()
        self.send = self._outlet.send
        self._handles: dict[int, RequestHandle] = {}
        self._numbers: dict[Sequence, int] = {}
        self._making: dict[int, bool] = {}  # requests whose grammars are being compiled; False: cancelled
        self._scopes: dict[int, CancelScope] = {}
        self._notified: SimpleQueue[int] = SimpleQueue()
        self._model: Model | None = None
        self._loading = Pulse()
        self._reports: Reports | None = None  # for a fleet
        self._reporting = threading.Lock()  # so that reports arrive in the order in which they were made
        self._stepped: list[int] = []  # requests of the last step that the parent was told of

    def beat(self, seconds: float) -> None:
        """Starts the heartbeat: every `seconds` the parent hears that this process runs and what it does."""
        beats = Beats(lambda: self._loading if self._model is None else self._model.pulse, seconds)

        def tell() -> None:
            found = beats.look(self._model.trouble if self._model else "")
            self.send({"beat": [found.doing, found.stalled, found.longest, found.trouble]})
            self.report()

        ticking(tell, threading.Event(), "satchel-beat", seconds)

    def report(self) -> None:
        """Tells a fleet what changed of the load and the cache. On return all news until now is sent,
        whichever thread took it.
        """
        if self._reports is not None:
            with self._reporting:
                for message in self._reports.messages():
                    self.send(message)

    def load(self, message: Message) -> Model:
        self._loading.begin("load")
        self.beat(message["beat"])

        def progress(done: int, total: int) -> None:
            self._loading.begin("load")
            self.send({"progress": [done, total]})

        options = replace(decode(message["options"]), worker="thread")
        if not pin(options.cpus):  # it is already, where the system allows it
            LOG.warning("the process may not be pinned to processors %s: it uses all", options.cpus)
        model = self._opened(Path(message["open"]), options, progress, again=bool(message["again"]))
        model.leave = self._leave
        service = model.service
        if isinstance(service, Service):
            service.watch, service.watch_scope = self._watch, self._watch_scope
            if message.get("key"):
                self._reports = Reports(model, bytes.fromhex(message["key"]))
        self._model = model
        infos = [device.info() for device in model.devices]
        hardware = ", ".join(f"{info.name} ({info.variant}, {info.threads})" for info in infos)
        held, notes = close_sandbox(model), model.notes
        if held is not None and held.note:
            notes = [*notes, held.note]
        told, block_bytes = held.text if held else NO_SANDBOX, sum(model.engine.states.block_bytes)
        ready = {"ready": encode(model.cache), "notes": notes, "sandbox": told, "block_bytes": block_bytes}
        ready |= {"hardware": hardware, "stamps": model.gguf.stamps, "version": wire_version()}
        self.send(ready)
        threading.Thread(target=self._deliver, name="satchel-deliver", daemon=True).start()
        # The model stays: a full collection of garbage, which stops the engine, need not look at it.
        gc.collect()
        gc.freeze()
        return model

    def _opened(
        self, path: Path, options: Options, progress: abc.Callable[[int, int], None], *, again: bool
    ) -> Model:
        """Loads the model. again: a process before this one was lost, perhaps with a device's host: the host
        is tried for a while, then left out.
        """
        tries = reconnecting()
        while True:
            try:
                return Model.load(path, options, progress=progress)
            except (LinkLost, DeviceUnreachable) as error:
                if not again:
                    raise
                if next(tries, False):
                    continue
                LOG.error("%s: %s", path.name, error)
                options = without_device(options, error.device)

    def _leave(self, error: LinkLost) -> None:
        """Ends the process: its sandbox lets it make no connection. The parent begins another, which takes
        the requests with the tokens that they have.
        """
        self.send({"lost": str(error)})
        os._exit(LEFT)

    def serve(self, model: Model, source: BinaryIO) -> None:
        """Serves until the parent closes or is gone. This thread never waits for the engine, a grammar, or
        the parent.
        """
        with ThreadPoolExecutor(COMPILING, "satchel-grammar") as compiling:
            while (got := read_message(source, MOST_REQUEST)) is not None and "close" not in got[0]:
                message = got[0]
                if "submit" in message:
                    number, request = message["submit"], decode(message["request"])
                    if request.grammar is None:
                        self._submit(model, number, request)
                    else:
                        self._making[number] = True
                        compiling.submit(self._make, model, number, request)
                elif "cancel" in message:
                    self._cancel(message["cancel"])
                elif "ask" in message:
                    number = message["ask"]
                    self._scopes[number] = CancelScope(number, *message["client"])
                    begin(self._answer, model, number, message, self._files(message))
            if got is None:
                os._exit(0)  # the parent is gone: no one needs the work in flight

    def _cancel(self, number: int) -> None:
        with self._naming:
            if number in self._making:
                self._making[number] = False
            handle = self._handles.get(number)
        if handle:
            handle.cancel()
        elif scope := self._scopes.get(number):
            scope.cancel()

    def _make(self, model: Model, number: int, request: GenerateRequest) -> None:
        """Compiles the request's grammar, which may take a second, then submits it."""
        try:
            made = with_constraint(request, model.tokenizer)
        except SatchelError as error:
            del self._making[number]
            self._end(number, End("error", error))
        else:
            self._submit(model, number, made)

    def _submit(self, model: Model, number: int, request: GenerateRequest) -> None:
        try:
            with self._naming:  # no step may run it before its number is known
                if not self._making.pop(number, True):
                    begin(self._end, number, End("cancelled"))
                    return
                handle = model.service.submit(request)
                self._handles[number], self._numbers[handle.seq] = handle, number
        except SatchelError as error:
            begin(self._end, number, End("error", error))
            return
        handle.listen(partial(self._notified.put, number))
        self._notified.put(number)  # tokens that came before the notifier was set

    def _files(self, message: Message) -> list[Any]:
        """Arguments of a call, with the file descriptor that came ahead of it."""
        args: list[Any] = decode(message["args"])
        for file in (a for a in args if isinstance(a, OpenFile)):
            _, descriptors, _, _ = socket.recv_fds(self._side, 1, 1)
            file.descriptor = descriptors[0]
        return args

    def _answer(self, model: Model, number: int, message: Message, args: list[Any]) -> None:
        scope, arrays = self._scopes[number], Arrays()
        try:
            value = encode(_called(model, scope, message, args), arrays)
        except Exception as error:  # even a bug must not leave the caller waiting
            self.send({"answer": number, "error": encode_error(error)})
        else:
            text = json.dumps(value, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)  # keeps the arrays after it aligned
            self.send({"answer": number, "json": len(text), "bytes": arrays.size})
            self._outlet.send_parts({"part": number}, [memoryview(text), *arrays.parts])
        finally:
            del self._scopes[number]

    def _watch(self, seqs: abc.Collection[Sequence]) -> None:
        """Before each step, reports its requests, so that a crash can be attributed. Nothing is sent if the
        requests are those of the last step.
        """
        with self._naming:
            numbers = [self._numbers.get(seq, -1) for seq in seqs]
        if numbers == self._stepped and all(seq.decoding for seq in seqs):
            return
        rows = [
            [n, seq.num_computed_tokens, seq.cached, seq.started]
            for n, seq in zip(numbers, seqs, strict=True)
        ]
        self._stepped = numbers
        self.send({"step": rows})
        if self._reports is not None:
            self._reports.attach()
            self.report()

    def _watch_scope(self, number: int) -> None:
        """The same before each piece of a call."""
        self._stepped = []
        self.send({"turn": number})

    def _deliver(self) -> None:
        """Sends tokens as they come, in a thread of its own, so that no step waits for the pipe."""
        while True:
            numbers = {self._notified.get()}
            while not self._notified.empty():
                numbers.add(self._notified.get())
            self._hand_over([(n, t) for n in numbers if (t := self._handles.get(n))])

    def _hand_over(self, handles: abc.Sequence[tuple[int, RequestHandle]]) -> None:
        """Sends the results of these requests: all their tokens in one message, then their ends."""
        came, over = [], list[tuple[int, RequestHandle, End]]()
        for number, handle in handles:
            items = handle.drain()
            if items and isinstance(last := items[-1], End):
                over.append((number, handle, last))
                del items[-1]
            came += [(number, items[at : at + ITEMS]) for at in range(0, len(items), ITEMS)]
        while came:  # in messages of bounded size, however many tokens have accumulated
            some = count_of(came)
            self.send({"tokens": [[n, encode(items)] for n, items in came[:some]]})
            del came[:some]
        if over:
            self.report()  # who hears of the end may ask for what goes on from it
        for number, handle, end in over:
            del self._handles[number], self._numbers[handle.seq]
            self._end(number, end, facts(handle.seq))

    def _end(self, number: int, end: End, known: Message | None = None) -> None:
        error = encode_error(end.error) if end.error else None
        self.send({"end": number, "finish": end.finish, "error": error, "facts": known or {}})


def without_device(options: Options, device: str) -> Options:
    """The options without a device that is lost; the CPU if no named one is left."""
    left = options.placement_options.without(device)
    rules = tuple(rule for rule in options.override_tensor if device not in rule)
    return replace(options, device=",".join(left.devices), tensor_split="", override_tensor=rules)


def count_of(rows: abc.Sequence[tuple[int, abc.Sequence[object]]]) -> int:
    """Number of rows for one message: the first, and more while they have at most ITEMS tokens together."""
    total = list(accumulate(len(items) for _, items in rows))
    return max(1, bisect_right(total, ITEMS))


def begin(work: abc.Callable[..., object], *args: Any) -> None:
    """Runs the work in a thread of its own."""
    threading.Thread(target=work, args=args, daemon=True).start()


def main() -> None:
    """Entry of the process. Standard input and output are the pipes; prints go to standard error."""
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; this process ends with it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    side = json.loads(sys.argv[1])["side"]
    worker = Worker(out, socket.socket(fileno=side) if side >= 0 else None)
    LOG.addHandler(Telling(worker.send))
    first = read_message(source, MOST_REQUEST)
    if first is None:
        return
    try:
        model = worker.load(first[0])
    except SatchelError as error:
        worker.send({"failed": encode_error(error)})
        return
    with model:
        worker.serve(model, source)
