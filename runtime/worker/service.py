"""Runs requests in a worker process, with the interface of Service. If the process is lost, a new one gets
each request with its tokens so far (replay.py). A request that crashes processes is found, named and refused.

A service that is one of several, the member of a fleet, hands the work of a lost process to the fleet, and
begins the next process with nothing to do.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, abc
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from satchel.errors import DeviceError, ModelError, RequestError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.api.options import Options
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled
from satchel.runtime.engine.request_handle import End, RequestHandle, put_all
from satchel.runtime.engine.stats import EngineStats, StatsCollector
from satchel.runtime.engine.tally import KVTraffic
from satchel.runtime.engine.watchdog import BEAT, Beat, Watchdog, ticking
from satchel.runtime.layers.arch import Cache
from satchel.runtime.log import LOG
from satchel.runtime.net.remote_process import RemoteEngine, RemoteProcess
from satchel.runtime.sandbox.policy import policy_of
from satchel.runtime.scheduler import SchedulerLimits, Sequence
from satchel.runtime.scheduler.scheduler import check
from satchel.runtime.worker.blame import Blame
from satchel.runtime.worker.pending_call import PendingCall, call_of
from satchel.runtime.worker.process import PATIENCE, Process, folder
from satchel.runtime.worker.replay import LiveRequest
from satchel.runtime.worker.version import wire_version
from satchel.runtime.worker.wire import Message, decode, decode_error, encode

LOADS = 3  # consecutive processes that may end during the load, or soon after it while idle
YOUNG = 2.0  # seconds of "soon"
FIRST_PAUSE, LAST_PAUSE = 0.2, 1.0  # seconds between two tries to begin a process on another host; doubled


class ProcessLost(DeviceError):
    """The process ended before the model was loaded, or soon after, again and again; or its host cannot be
    reached.
    """


@dataclass(frozen=True, slots=True)
class LostWork:
    """What a process that ended leaves to be done elsewhere."""

    how: str  # it ended, such as "was ended by SIGKILL"
    again: bool  # a host that could not be had still cannot, for the same reason: nothing new to tell
    outside: bool  # by a signal from outside, so that nothing is said about what it computed
    step: abc.Sequence[LiveRequest | PendingCall]  # what it was computing
    requests: abc.Sequence[LiveRequest]  # all that it had, with those of the step
    calls: abc.Sequence[PendingCall]


class Owner(Protocol):
    """Who divides requests among services. It is called with the lock held."""

    def opened(self, service: WorkerService) -> None:
        """The service has a process with the model loaded."""

    def ended(self, service: WorkerService, work: LiveRequest | PendingCall) -> None:
        """A request or a call has ended there."""

    def lost(self, service: WorkerService, work: LostWork) -> None:
        """The service's process ended."""

    def told(self, service: WorkerService, message: Message) -> None:
        """The process reports its load or its cached blocks."""

    def passed_on(self, service: WorkerService, live: LiveRequest) -> None:
        """The service has computed the prompt and the first token of a request that goes on elsewhere, and
        has it no longer.
        """


@dataclass(frozen=True, slots=True)
class Membership:
    """What the services of one owner share. key: of the digests of cached blocks, 32 bytes."""

    owner: Owner
    lock: AbstractContextManager[Any]
    numbers: Iterator[int]
    key: bytes


class WorkerService:
    """A Service whose engine runs in a worker process. begin() starts the process and waits until the model
    is loaded.

    files: all files of the model.
    sandbox: the limits that hold in the current process.
    widths: sizes of the vocabulary and of a hidden row, which bound the answers.
    stamps: of the files that its owner opened; every process must open the same.
    engine: where the process runs; None: on this host.
    member: None for a service of its own.
    patient: whether a host that has never been reached is tried until it can be; of a fleet's members alone,
    where others answer meanwhile.
    """

    patient = False

    def __init__(
        self,
        path: Path,
        options: Options,
        limits: SchedulerLimits | None = None,
        files: abc.Sequence[Path] = (),
        stamps: abc.Sequence[abc.Sequence[int]] = (),
        engine: RemoteEngine | None = None,
        member: Membership | None = None,
    ) -> None:
        self.path, self.options, self.limits = path, options, limits or options.limits
        self.cache, self.widths = Cache(context=0), (0, 0)
        self.block_bytes = 0  # of a block of KV cache in all layers, known with the cache
        self.hardware = ""  # that computes: names, kernels and threads of its devices; known with the cache
        self.notes: list[str] = []
        self.restarts = 0
        self._past: EngineStats | None = None  # what the lost processes have counted
        self._told: EngineStats | None = None  # the last statistics of all processes
        self._ended = Counter[str]()  # requests by how they ended here
        self._member, self._owner = member, member and member.owner
        self._lock = member.lock if member else threading.RLock()
        self._process: Process | RemoteProcess | None = None
        self._ready = False
        self._closed = threading.Event()  # no other process is begun
        self._cause = ""  # why the host could not be had; "": it was
        self._broken: SatchelError | None = None
        self._live: dict[int, LiveRequest] = {}
        self._numbers: dict[RequestHandle, int] = {}
        self._calls: dict[int, PendingCall] = {}
        self._step: list[int] = []
        self._stamps, self._folder = [list(stamp) for stamp in stamps], folder()
        self._engine = engine
        self._sandbox = policy_of(files or (path,), options) if options.sandbox and not engine else None
        self.sandbox, self._outside = "", False
        self._ready_at = 0.0
        self._dog, self._hung = self._watchdog(), ""
        self._host = ""  # why the process left, where the host of a device was lost
        self._over = threading.Event()
        self._blame, self._count = Blame(), member.numbers if member else count(1)
        self._loading: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="satchel-worker", daemon=True)

    @property
    def host(self) -> str:
        """The host of its engine; "": this one."""
        return str(self._engine.address) if self._engine else ""

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
        if self._closed.is_set():
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
            self.adopt(LiveRequest(handle))
        return handle

    def adopt(self, live: LiveRequest) -> None:
        """Takes a request, which may have a part of its answer. The caller has checked it."""
        with self._lock:
            live.number = next(self._count)
            self._live[live.number], self._numbers[live.handle] = live, live.number
            self._send_due()

    def adopt_call(self, call: PendingCall) -> None:
        """Takes a call, which other processes may have had."""
        with self._lock:
            call.number = next(self._count)
            self._calls[call.number] = call
            self._send_due()

    def release(self) -> tuple[list[LiveRequest], list[PendingCall]]:
        """Gives all requests and calls back, for others to go on with; the process drops them."""
        with self._lock:
            requests, calls = list(self._live.values()), list(self._calls.values())
            works: list[LiveRequest | PendingCall] = [*requests, *calls]
            for work in works:
                if work.sent and self._process:
                    self._process.send({"cancel": work.number})
            self._live.clear()
            self._numbers.clear()
            self._calls.clear()
            self._put_back(requests, calls)
        return requests, calls

    @staticmethod
    def _put_back(requests: abc.Iterable[LiveRequest], calls: abc.Iterable[PendingCall]) -> None:
        """Marks what a process had as not sent."""
        for live in requests:
            live.displace()
        for call in calls:
            call.resend()

    @property
    def slots(self) -> int:
        """Sequences that run together."""
        return self.cache.slots

    @property
    def capacity(self) -> int:
        """Tokens of KV cache."""
        return self.cache.capacity

    @property
    def work(self) -> int:
        """Number of requests and calls that it has."""
        return len(self._live) + len(self._calls)

    @property
    def requests(self) -> abc.Collection[LiveRequest]:
        """Its requests; the lock is held."""
        return self._live.values()

    @property
    def ready(self) -> bool:
        """Whether the current process has loaded the model."""
        return self._ready

    @property
    def broken(self) -> SatchelError | None:
        """Why no process is begun any more."""
        return self._broken

    def cancel(self, handle: RequestHandle) -> None:
        """Ends the request at once for its caller, and notifies the process."""
        with self._lock:
            number = self._numbers.get(handle)
            if number is None:
                return
            self._live[number].cancelled = True
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
        call = call_of(method, args, how, self.widths)
        with self._lock:
            self._check_open()
            self.adopt_call(call)

        def check() -> None:
            if not worth():
                raise DeviceError(f"{method}: {self.trouble}")

        try:
            return call.wait(check)
        except BaseException:
            self.forget(call)
            raise

    def forget(self, call: PendingCall) -> None:
        """Drops a call whose caller no longer waits."""
        with self._lock:
            if self._calls.pop(call.number, None) and call.sent and self._process:
                self._process.send({"cancel": call.number})
            self._blame.forget(call.number)
            self._send_due()

    def stats(self) -> EngineStats:
        """Statistics since the load, over all processes. What a process counted after the last call is lost
        with it, but for the requests that ended: they are counted here, for a process also ends parts of
        requests that go on.
        """
        restarts, asked = self.restarts, None
        if not self.trouble:
            with suppress(DeviceError):
                asked = self._call_while(lambda: not self.trouble, "stats")
        self._check_open()
        with self._lock:
            if asked is None or restarts != self.restarts:
                now = StatsCollector(KVTraffic(())).snapshot(len(self._live), 0, (0, 0, 0))
                found = now.after(self._told)
            else:
                found = self._told = asked.after(self._past)
            return replace(found, requests=dict(self._ended), worker_restarts=self.restarts)

    def tell_to_close(self) -> None:
        """Begins to close; close() waits for the end."""
        with self._lock:
            self._closed.set()
            if self._process:
                self._process.send({"close": 1})

    def close(self) -> None:
        """Cancels everything in flight and ends the process."""
        self.tell_to_close()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(PATIENCE)
            self.kill()
            self._thread.join()

    def kill(self) -> None:
        """Ends the process at once, and starts no other."""
        with self._lock:
            self._closed.set()
            if self._process:
                self._process.kill()

    def _check_open(self) -> None:
        if self._closed.is_set():
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
                if self._owner and not self._closed.is_set():
                    self._hand_over(str(self._broken))
                self._end_all(End("error", self._broken) if self._broken else End("cancelled"))
            self._loading.put(None)
            self._over.set()

    def _run_processes(self) -> None:
        """Runs one process after another."""
        failed, pause = 0, FIRST_PAUSE
        while not (self._closed.is_set() or self._broken):
            try:
                process = self._begun()
            except SatchelError as error:
                with self._lock:
                    self._broken = error
                break
            with self._lock:
                self._process = process
                self._dog, self._hung, self._host = self._watchdog(), "", ""
                process.send(self._opening())
                if self._closed.is_set():
                    process.kill()
            self._listen(process)
            died = process.reap()
            with self._lock:
                died = f"{self._hung} and {died}" if self._hung else died
                failed = failed + 1 if self._useless() else 0
                self._outside = (process.killed or bool(self._host)) and not self._hung
                self._lost(died, failed)
            if failed and self._engine and not self._broken:  # the host is away, or another program has it
                self._pause(pause)
                pause = min(2 * pause, LAST_PAUSE)
            else:
                pause = FIRST_PAUSE

    def _pause(self, seconds: float) -> None:
        """Waits for so long, or until the service is closed."""
        self._closed.wait(seconds)

    def _begun(self) -> Process | RemoteProcess:
        """A new process, here or on the host of the engine."""
        if self._engine:
            return self._engine.process()
        return Process(self._folder, self._sandbox, self.options.cpus)

    def _opening(self) -> Message:
        """The first message to a process."""
        told = {"open": str(self.path), "options": encode(self.options), "beat": BEAT}
        told["again"] = bool(self.restarts)
        return {**told, "key": self._member.key.hex()} if self._member else told

    def _listen(self, process: Process | RemoteProcess) -> None:
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
                put_all(self._taken(message["tokens"]))
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
            elif "load" in message or "blocks" in message:
                if self._owner:
                    self._owner.told(self, message)
            elif "failed" in message:
                self._broken = self._unloadable(message)

    def _unloadable(self, message: Message) -> SatchelError:
        """Why the model cannot be loaded, or cannot be loaded again."""
        error = fault(message["failed"])
        if not self.restarts:
            return error
        return type(error)(f"the worker process was lost, and the model cannot be loaded again: {error}")

    def _opened(self, message: Message) -> None:
        if message["version"] != wire_version():
            self._broken = DeviceError(
                f"{self.path}: the worker process is of another version of Satchel than this one, which was"
                " installed or changed meanwhile: start the program again"
            )
            if self._process:
                self._process.kill()
            return
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
        self.sandbox, self.block_bytes = message["sandbox"], int(message["block_bytes"])
        self.hardware = str(message["hardware"])
        # Later processes get the same context, regardless of free memory.
        self.options = replace(self.options, context=self.cache.context)
        self._loading.put(None)
        self._send_due()
        if self._owner:
            self._owner.opened(self)

    def _note_step(self, rows: list[list[Any]]) -> None:
        self._step = [row[0] for row in rows]
        for number, computed, cached, started in rows:
            if live := self._live.get(number):
                live.computed(computed, cached, started)

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

    def _taken(
        self, rows: abc.Iterable[tuple[int, list[Any]]]
    ) -> Iterator[tuple[RequestHandle, abc.Sequence[int | Sampled]]]:
        """The tokens of each request in flight, with its handle."""
        for number, tokens in rows:
            if live := self._live.get(number):
                yield live.handle, live.take(tokens)

    def _take_end(self, message: Message) -> None:
        number, finish, error = message["end"], message["finish"], message["error"]
        live = self._live.get(number)
        if live is None:
            return
        live.note_facts(message["facts"], self.restarts > 0)
        part = finish == "length" and live.handle.seq.generated == live.until
        if part and live.onward is not None and self._owner and not live.complete(self.cache):
            del self._live[number], self._numbers[live.handle]
            live.pass_on()
            self._owner.passed_on(self, live)
        elif part and not live.complete(self.cache):
            live.sent = False  # it has finished its trial alone
            self._blame.survived(number)
        else:
            self._end(number, End(finish, fault(error) if error else None))
        self._send_due()

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
            if self._owner:
                self._owner.ended(self, call)

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
        seq = live.handle.seq
        until = seq.request.max_tokens
        if alone:
            until = min(until, seq.generated + self._blame.trial(number))
        if live.onward is not None:
            until = min(until, seq.generated + 1)
        return {"submit": number, "request": encode(live.rest(until))}

    def _useless(self) -> bool:
        """Whether the process ended by itself: during the load, or soon after it while idle."""
        if self._host and self._ready:
            return False
        had_work = self._step or any(a.sent and not a.bare for a in self._calls.values())
        return not (self._ready and (had_work or time.monotonic() - self._ready_at > YOUNG))

    def _lost(self, died: str, failed: int) -> None:
        """Handles the end of the process, expected or not."""
        loaded, self._process, self._ready = self._ready, None, False
        if self._closed.is_set() or self._broken:
            return
        had = loaded or self._engine is None  # else the host could not be had, and no process was lost
        self.restarts += had
        self._past = self._told
        again = not had and died == self._cause
        self._cause = "" if had else died
        if not again:
            LOG.error("the worker process %s; requests in its step: %s", died, self._step)
        # The host of a fleet's member may be away for long; others answer meanwhile.
        waits = self._engine is not None and self._owner is not None
        loads_first = not self.cache.context and not (waits and self.patient)
        if (failed >= LOADS and not waits) or (failed and loads_first):
            when = "as soon as it had loaded" if loaded else "while it loaded"
            often = f", {failed} times in a row: load it again" if failed > 1 else ""
            self._broken = ProcessLost(f"{self.path}: the worker process {died} {when} the model{often}")
            return
        if self._owner:
            self._hand_over(died, again)
            return
        step = self._last_step()
        guilty = None if self._host else self._blame.died(step)  # another host's loss is no request's fault
        if guilty in self._live:
            self._end(guilty, End("error", self._refusal(guilty, died)))
        elif guilty is not None:
            refusal = self._refusal(guilty, died)
            self._calls.pop(guilty).fail(refusal)
        self._resend()

    def _last_step(self) -> list[int]:
        """Numbers of what the lost process was computing: the requests of its step, and all calls."""
        calls = [n for n, a in self._calls.items() if a.sent and not a.bare]
        step, self._step = [*(n for n in self._step if n in self._live), *calls], []
        return step

    def _hand_over(self, died: str, again: bool = False) -> None:
        """Gives all work to the owner of several services."""
        works: dict[int, LiveRequest | PendingCall] = {**self._live, **self._calls}
        step = [works[n] for n in self._last_step()]
        requests, calls = list(self._live.values()), list(self._calls.values())
        self._live.clear()
        self._numbers.clear()
        self._calls.clear()
        self._put_back(requests, calls)
        if self._owner:
            self._owner.lost(self, LostWork(died, again, self._outside, step, requests, calls))

    def _resend(self) -> None:
        """Marks everything that the process had not finished for the next one."""
        for number, live in list(self._live.items()):
            finish = live.complete(self.cache)
            if finish:  # all its tokens came, but not its end
                self._end(number, End(finish))
        self._put_back(self._live.values(), self._calls.values())

    def _refusal(self, number: int, died: str) -> DeviceError:
        work = self._live.get(number) or self._calls[number]
        return DeviceError(
            f"request {work}: the worker process {died} twice while it alone ran; it is refused,"
            " other requests go on"
        )

    def _end(self, number: int, end: End) -> None:
        live = self._live.pop(number)
        del self._numbers[live.handle]
        self._blame.forget(number)
        self._ended[end.finish] += 1
        live.end(end)
        if self._owner:
            self._owner.ended(self, live)

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
