"""Runs requests in a worker process, with the interface of Service. If the process is lost, a new one gets
each request with its tokens so far. Random numbers are a function of (seed, position), so the answer
continues as it would have. A request that crashes processes is found, named and refused.
"""

from __future__ import annotations

import threading
import time
from collections import abc
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from satchel.errors import DeviceError, ModelError, RequestError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.api.options import Options
from satchel.runtime.engine.cancel_scope import current_scope
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled, token_of
from satchel.runtime.engine.request_handle import End, RequestHandle
from satchel.runtime.engine.stats import EngineStats, StatsCollector
from satchel.runtime.engine.tally import KVTraffic
from satchel.runtime.engine.watchdog import BEAT, Beat, Watchdog, ticking
from satchel.runtime.kv import Miss
from satchel.runtime.layers.arch import Cache
from satchel.runtime.log import LOG
from satchel.runtime.sandbox.policy import policy_of
from satchel.runtime.scheduler import SchedulerLimits, Sequence
from satchel.runtime.scheduler.scheduler import check
from satchel.runtime.worker.blame import Blame
from satchel.runtime.worker.expected import most_bytes
from satchel.runtime.worker.pending_call import PendingCall
from satchel.runtime.worker.process import PATIENCE, Process, folder
from satchel.runtime.worker.wire import Message, decode, decode_error, encode

LOADS = 3  # consecutive processes that may end during the load, or soon after it while idle
YOUNG = 2.0  # seconds of "soon"
POLL = 0.1  # seconds between checks whether the caller still waits


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request in flight. Its sequence has the tokens that came so far."""

    handle: RequestHandle
    nll_bits: list[float] = field(default_factory=list)  # of each of these tokens
    sent: bool = False  # the process has it
    until: int = 0  # most tokens that the process is to generate
    begun: bool = False  # a process that was lost had begun it


class WorkerService:
    """A Service whose engine runs in a worker process. begin() starts the process and waits until the model
    is loaded.

    files: all files of the model.
    sandbox: the limits that hold in the current process.
    widths: sizes of the vocabulary and of a hidden row, which bound the answers.
    stamps: of the files that its owner opened; every process must open the same.
    """

    def __init__(
        self,
        path: Path,
        options: Options,
        limits: SchedulerLimits | None = None,
        files: abc.Sequence[Path] = (),
        stamps: abc.Sequence[abc.Sequence[int]] = (),
    ) -> None:
        self.path, self.options, self.limits = path, options, limits or options.limits
        self.cache, self.widths = Cache(context=0), (0, 0)
        self.notes: list[str] = []
        self.restarts = 0
        self._past: EngineStats | None = None  # what the lost processes have counted
        self._told: EngineStats | None = None  # the last statistics of all processes
        self._lock = threading.RLock()
        self._process: Process | None = None
        self._ready = self._closed = False
        self._broken: SatchelError | None = None
        self._live: dict[int, LiveRequest] = {}
        self._numbers: dict[RequestHandle, int] = {}
        self._calls: dict[int, PendingCall] = {}
        self._step: list[int] = []
        self._stamps, self._folder = [list(stamp) for stamp in stamps], folder()
        self._sandbox = policy_of(files or (path,), options) if options.sandbox else None
        self.sandbox = ""
        self._ready_at = 0.0
        self._dog, self._hung = self._watchdog(), ""
        self._host = ""  # why the process left, where the host of a device was lost
        self._over = threading.Event()
        self._blame, self._count = Blame(), count(1)
        self._loading: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="satchel-worker", daemon=True)

    @property
    def pid(self) -> int:
        """Id of the current process; 0 between two."""
        process = self._process
        return process.pid if process else 0

    def begin(self, progress: abc.Callable[[int, int], object] | None) -> None:
        """Loads the model in the process; calls progress in this thread. Cleans up if it fails."""
        begin(self._thread)
        ticking(self._tick, self._over, "satchel-watch", BEAT)
        try:
            for at in iter(self._loading.get, None):
                if progress:
                    progress(*at)
        except BaseException:
            self.kill()
            self._thread.join(PATIENCE)
            raise
        if self._broken:
            raise self._broken

    def _watchdog(self) -> Watchdog:
        return Watchdog(self.options.worker_timeout, self.options.step_timeout, BEAT)

    @property
    def trouble(self) -> str:
        """Why requests cannot be served now; "" if they can."""
        if self._broken:
            return str(self._broken)
        if self._closed:
            return f"{self.path}: the model was closed"
        if not self._ready:
            return "the worker process is loading the model" + (" again" if self.restarts else "")
        return self._dog.trouble

    def submit(self, request: GenerateRequest) -> RequestHandle:
        """Queues a request. Raises RequestError if the queue is full, or if the request can never run or be
        sent to another process.
        """
        encode(request)
        handle = RequestHandle(self, Sequence(request, time.monotonic()))
        with self._lock:
            self._check_open()
            waiting = max(0, len(self._live) - self.cache.slots)
            queued = (live.handle.seq.client for live in self._live.values())
            check(request, waiting, self.limits, self.cache.block, self.cache.pool, queued)
            number = next(self._count)
            self._live[number], self._numbers[handle] = LiveRequest(handle), number
            self._send_due()
        return handle

    def cancel(self, handle: RequestHandle) -> None:
        """Ends the request at once for its caller, and notifies the process."""
        with self._lock:
            number = self._numbers.get(handle)
            if number is None:
                return
            if self._live[number].sent and self._process:
                self._process.send({"cancel": number})
            else:
                self._end(number, End("cancelled"))

    def ask(self, method: str, *args: Any, **how: Any) -> Any:
        """Calls a method of the worker's model. If the process is lost meanwhile, the next one is asked;
        DeviceError if the call itself crashes them. Cancelling the current CancelScope ends the call.
        """
        return self._call_while(lambda: True, method, *args, **how)

    def _call_while(self, worth: abc.Callable[[], bool], method: str, *args: Any, **how: Any) -> Any:
        """As ask(); raises DeviceError as soon as worth() is false."""
        scope = current_scope()
        call = PendingCall(method, args, how, most_bytes(method, args, how, *self.widths))
        call.message["client"] = [scope.client, scope.weight]
        scope.check()
        with self._lock:
            self._check_open()
            number = next(self._count)
            self._calls[number] = call
            self._send_due()
        try:
            while not call.done.wait(POLL):
                scope.check()
                if not worth():
                    raise DeviceError(f"{method}: {self.trouble}")
        except BaseException:
            self._forget(number)
            raise
        return call.result()

    def _forget(self, number: int) -> None:
        """Drops an answer whose caller no longer waits."""
        with self._lock:
            call = self._calls.pop(number, None)
            if call and call.sent and self._process:
                self._process.send({"cancel": number})
            self._blame.forget(number)
            self._send_due()

    def stats(self) -> EngineStats:
        """Statistics since the load, over all processes. What a process counted after the last call is lost
        with it.
        """
        restarts, asked = self.restarts, None
        if not self.trouble:
            with suppress(DeviceError):
                asked = self._call_while(lambda: not self.trouble, "stats")
        self._check_open()
        with self._lock:
            if asked is None or restarts != self.restarts:
                now = StatsCollector(KVTraffic(())).snapshot(len(self._live), 0, (0, 0, 0))
                return replace(now.after(self._told), worker_restarts=self.restarts)
            self._told = asked.after(self._past)
            return replace(self._told, worker_restarts=self.restarts)

    def close(self) -> None:
        """Cancels everything in flight and ends the process."""
        with self._lock:
            self._closed = True
            if self._process:
                self._process.send({"close": 1})
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(PATIENCE)
            self.kill()
            self._thread.join()

    def kill(self) -> None:
        """Ends the process at once, and starts no other."""
        with self._lock:
            self._closed = True
            if self._process:
                self._process.kill()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError(f"{self.path}: the model was closed: load it again")
        if self._broken:
            raise self._broken

    def _tick(self) -> None:
        """Ends a process without heartbeat; its requests continue as after a crash."""
        with self._lock:
            process = self._process
            if process is None or self._hung:
                return
            self._dog.tick(process.unread)
            self._hung = self._dog.hopeless
            if self._hung:
                LOG.error("%s: the worker process %s and is ended", self.path.name, self._hung)
                process.kill()

    def _run(self) -> None:
        """The thread that starts processes and reads from them. However it ends, all callers get an answer or
        an error.
        """
        try:
            self._run_processes()
        except Exception as error:
            LOG.exception("%s: reading from the worker process failed", self.path.name)
            with self._lock:
                lost = DeviceError(f"{self.path}: the worker process is lost: {error}")
                self._broken = self._broken or lost
                if self._process:
                    self._process.kill()
        finally:
            with self._lock:
                self._end_all(End("error", self._broken) if self._broken else End("cancelled"))
            self._loading.put(None)
            self._over.set()

    def _run_processes(self) -> None:
        """Runs one process after another."""
        failed = 0
        while not (self._closed or self._broken):
            with self._lock:
                try:
                    process = self._process = Process(self._folder, self._sandbox)
                except SatchelError as error:
                    self._broken = error
                    break
                self._dog, self._hung, self._host = self._watchdog(), "", ""
                opening = {"open": str(self.path), "options": encode(self.options), "beat": BEAT}
                process.send({**opening, "again": bool(self.restarts)})
                if self._closed:
                    process.kill()
            self._listen(process)
            died = process.reap()
            with self._lock:
                died = f"{self._hung} and {died}" if self._hung else died
                failed = failed + 1 if self._useless() else 0
                self._lost(died, failed)

    def _listen(self, process: Process) -> None:
        """Reads from the process until it is gone. A process that sends an invalid message is ended."""
        try:
            while (got := process.read()) is not None:
                self._hear(*got)
        except Exception as error:  # this thread must survive any message
            with self._lock:
                self._hung = self._hung or f"sent what is not understood ({type(error).__name__}: {error})"
            LOG.error("%s: the worker process %s and is ended", self.path.name, self._hung)
            process.kill()

    def _hear(self, message: Message, data: bytes) -> None:
        with self._lock:
            self._dog.heard(Beat(*message["beat"]) if "beat" in message else None)
            if "tokens" in message:
                for number, items in message["tokens"]:
                    self._take(number, items)
            elif "step" in message:
                self._note_step(message["step"])
            elif "turn" in message:
                self._note_turn(message["turn"])
            elif "end" in message:
                self._take_end(message)
            elif "progress" in message:
                if not self._ready_at:  # no caller watches a later load
                    done, total = message["progress"]
                    self._loading.put((done, total))
            elif "ready" in message:
                self._opened(message)
            elif "answer" in message or "part" in message:
                self._answered(message, data)
            elif "log" in message:
                level, text = message["log"]
                LOG.log(level, "%s", text)
            elif "lost" in message:
                self._host = str(message["lost"])
            elif "failed" in message:
                self._broken = self._unloadable(message)

    def _unloadable(self, message: Message) -> SatchelError:
        """Why the model cannot be loaded, or cannot be loaded again."""
        error = fault(message["failed"])
        if not self.restarts:
            return error
        return type(error)(f"the worker process was lost, and the model cannot be loaded again: {error}")

    def _opened(self, message: Message) -> None:
        if message["stamps"] != (self._stamps or message["stamps"]):
            lost = "the worker process was lost, and " if self._ready_at else ""
            self._broken = ModelError(
                f"{self.path}: {lost}the file was changed: it may be another model than the one that was"
                " loaded: load it again"
            )
            if self._process:
                self._process.kill()
            return
        self._stamps, self._ready_at = message["stamps"], time.monotonic()
        self._dog.loaded = True
        self.cache, self.notes, self._ready = decode(message["ready"]), message["notes"], True
        self.sandbox = message["sandbox"]
        # Later processes get the same context, regardless of free memory.
        self.options = replace(self.options, context=self.cache.context)
        self._loading.put(None)
        self._send_due()

    def _note_step(self, rows: list[list[Any]]) -> None:
        self._step = [row[0] for row in rows]
        for number, computed, cached, started in rows:
            if live := self._live.get(number):
                seq = live.handle.seq
                seq.num_computed_tokens = computed
                if seq.started < 0:
                    seq.cached, seq.started = cached, started

    def _note_turn(self, number: int) -> None:
        """A piece of a call begins."""
        self._step = []
        call = self._calls.get(number)
        if call is None:
            return
        call.turns += 1
        if number == self._blame.alone and call.turns > self._blame.trial(number):
            self._blame.survived(number)
            self._send_due()

    def _take(self, number: int, tokens: list[Any]) -> None:
        live = self._live.get(number)
        if live is None:
            return
        handle, bits = live.handle, live.nll_bits
        seq = handle.seq
        if tokens and seq.first < 0:
            seq.first = time.monotonic()
        for told in tokens:
            item = told if type(told) is int else decode(told)
            bits.append(item.nll_bits if isinstance(item, Sampled) else 0.0)
            seq.ids.append(token_of(item))
            handle.put(item)

    def _take_end(self, message: Message) -> None:
        number, finish, error = message["end"], message["finish"], message["error"]
        live = self._live.get(number)
        if live is None:
            return
        self._note_facts(live, message["facts"])
        if finish == "length" and live.handle.seq.generated == live.until and not self._complete(live):
            live.sent = False  # it has finished its trial alone
            self._blame.survived(number)
        else:
            self._end(number, End(finish, fault(error) if error else None))
        self._send_due()

    def _note_facts(self, live: LiveRequest, facts: Message) -> None:
        """Stores the process's report on a sequence. A restarted sequence keeps its first times."""
        seq = live.handle.seq
        known = {name: decode(value) for name, value in facts.items()}
        used = known.get("used")
        if used is not None:
            used.restarted, used.steps = seq.used.restarted, used.steps + seq.used.steps
            used.weight_bytes += seq.used.weight_bytes
            used.kv_bytes += seq.used.kv_bytes
        kept = ("started", "first", "cached", "miss") if live.begun else ()
        if known.get("miss") == Miss.COLD and self.restarts:
            known["miss"] = Miss.LOST
        for name, value in known.items():
            if name not in kept:
                setattr(seq, name, value)

    def _answered(self, message: Message, data: bytes) -> None:
        number = int(message["answer"] if "answer" in message else message["part"])
        call = self._calls.get(number)
        if call is None:
            return
        if "answer" in message:
            call.answered(message)
        else:
            call.part(data)
        if call.done.is_set():
            del self._calls[number]
            self._blame.forget(number)
            self._send_due()

    def _send_due(self) -> None:
        """Sends the requests that the current process may run and does not have."""
        if not (self._ready and self._process):
            return
        alone = self._blame.alone
        for number, live in list(self._live.items()):
            if not live.sent and alone in (None, number):
                self._process.send(self._submitted(number, live, alone is not None))
        for number, call in self._calls.items():
            if not call.sent and (call.bare or alone in (None, number)):
                call.sent = True
                self._process.send({"ask": number, **call.message}, call.descriptor)

    def _submitted(self, number: int, live: LiveRequest, alone: bool) -> Message:
        """The message that submits the rest of a request."""
        seq, request, live.sent = live.handle.seq, live.handle.seq.request, True
        live.until = request.max_tokens
        if alone:
            live.until = min(live.until, seq.generated + self._blame.trial(number))
        given, bits = tuple(seq.ids[seq.prompt :]), tuple(live.nll_bits)
        rest = replace(request, max_tokens=live.until, given=given, nll_bits=bits)
        return {"submit": number, "request": encode(rest)}

    def _useless(self) -> bool:
        """Whether the process ended by itself: during the load, or soon after it while idle."""
        if self._host and self._ready:
            return False
        had_work = self._step or any(a.sent and not a.bare for a in self._calls.values())
        return not (self._ready and (had_work or time.monotonic() - self._ready_at > YOUNG))

    def _lost(self, died: str, failed: int) -> None:
        """Handles the end of the process, expected or not."""
        loaded, self._process, self._ready = self._ready, None, False
        if self._closed or self._broken:
            return
        self.restarts += 1
        self._past = self._told
        LOG.error("the worker process %s; requests in its step: %s", died, self._step)
        if failed >= LOADS or (failed and not self.cache.context):
            when = "as soon as it had loaded" if loaded else "while it loaded"
            often = f", {failed} times in a row: load it again" if failed > 1 else ""
            self._broken = DeviceError(f"{self.path}: the worker process {died} {when} the model{often}")
            return
        calls = [n for n, a in self._calls.items() if a.sent and not a.bare]
        step, self._step = [*(n for n in self._step if n in self._live), *calls], []
        guilty = None if self._host else self._blame.died(step)  # another host's loss is no request's fault
        if guilty in self._live:
            self._end(guilty, End("error", self._refusal(guilty, died)))
        elif guilty is not None:
            refusal = self._refusal(guilty, died)
            self._calls.pop(guilty).fail(refusal)
        self._resend()

    def _resend(self) -> None:
        """Marks everything that the process had not finished for the next one."""
        for number, live in list(self._live.items()):
            finish = self._complete(live)
            if finish:  # all its tokens came, but not its end
                self._end(number, End(finish))
            live.handle.seq.used.restarted += live.sent
            live.sent, live.begun = False, live.handle.seq.started >= 0
        for call in self._calls.values():
            call.resend()

    def _complete(self, live: LiveRequest) -> str:
        """How an answer with all its tokens ended; "" if it continues."""
        seq = live.handle.seq
        if seq.generated and seq.ids[-1] in seq.request.stop_ids:
            return "stop"
        return "length" if seq.generated >= seq.request.max_tokens or self._full(seq) else ""

    def _full(self, seq: Sequence) -> bool:
        return len(seq.ids) > min(self.cache.context, self.cache.capacity)

    def _refusal(self, number: int, died: str) -> DeviceError:
        if live := self._live.get(number):
            seq = live.handle.seq
            whose = f" of user {seq.client!r}" if seq.client else ""
            what = f"{whose} ({seq.prompt} prompt tokens, {seq.generated} of its answer)"
        else:
            what = f" ({self._calls[number].method})"
        return DeviceError(
            f"request {number}{what}: the worker process {died} twice while it alone ran; it is refused,"
            " other requests go on"
        )

    def _end(self, number: int, end: End) -> None:
        live = self._live.pop(number)
        del self._numbers[live.handle]
        self._blame.forget(number)
        live.handle.seq.finish = end.finish
        live.handle.put(end)

    def _end_all(self, end: End) -> None:
        for number in list(self._live):
            self._end(number, end)
        for call in self._calls.values():
            call.fail(end.error or RequestError(f"{self.path}: the model was closed: load it again"))
        self._calls.clear()


def fault(told: list[Any]) -> SatchelError:
    """The process's error, as an error for users."""
    error = decode_error(told)
    return error if isinstance(error, SatchelError) else DeviceError(str(error))
