"""Requests run by a worker process, with a Service's face. When the process is lost, a new one is begun and
is given each request with the tokens that it has already: random numbers are a function of (seed, position),
so the answer goes on as it would have. The request that ends processes is found, named and refused.
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

from satchel.quant import DeviceError, ModelError, RequestError, SatchelError
from satchel.quant.threads import begin
from satchel.runtime.arch import Cache
from satchel.runtime.detail import Sampled, token_of
from satchel.runtime.errand import current
from satchel.runtime.kv import Miss
from satchel.runtime.log import LOG
from satchel.runtime.options import Options
from satchel.runtime.sandbox.policy import policy_of
from satchel.runtime.scheduler import Request, SchedulerLimits, Sequence
from satchel.runtime.scheduler.scheduler import check
from satchel.runtime.stats import EngineStats, Meter, Traffic
from satchel.runtime.ticket import End, Ticket
from satchel.runtime.watchdog import BEAT, Beat, Watchdog, ticking
from satchel.runtime.worker.asked import Asked
from satchel.runtime.worker.blame import Blame
from satchel.runtime.worker.expected import most_bytes
from satchel.runtime.worker.process import PATIENCE, Process, folder
from satchel.runtime.worker.wire import Message, decode, decode_error, encode

LOADS = 3  # processes in a row that may end while they load, or soon after with nothing to do
YOUNG = 2.0  # seconds of "soon"
POLL = 0.1  # seconds between looks whether the asker still waits


@dataclass(slots=True, eq=False)
class Entry:
    """A request under way. got: tokens of its answer, nll_bits: of each, as the engine reported it. sent: the
    process has it, until so many tokens. begun: by a process that was lost.
    """

    ticket: Ticket
    got: list[int] = field(default_factory=list)
    nll_bits: list[float] = field(default_factory=list)
    sent: bool = False
    until: int = 0
    begun: bool = False


class WorkerService:
    """begin() starts the process and waits until the model is loaded. files: all of the model's. sandbox:
    what holds of it in the process at hand. widths: of its vocabulary and of a hidden row, by which it is
    known how long answers may be. stamps: of the files that its owner opened; every process must have opened
    the same.
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
        self._lock = threading.RLock()
        self._process: Process | None = None
        self._ready = self._closed = False
        self._broken: SatchelError | None = None
        self._live: dict[int, Entry] = {}
        self._numbers: dict[Ticket, int] = {}
        self._asked: dict[int, Asked] = {}
        self._step: list[int] = []
        self._stamps, self._folder = [list(stamp) for stamp in stamps], folder()
        self._sandbox = policy_of(files or (path,), options) if options.sandbox else None
        self.sandbox = ""
        self._ready_at = 0.0
        self._dog, self._hung = self._watchdog(), ""
        self._over = threading.Event()
        self._blame, self._count = Blame(), count(1)
        self._loading: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="satchel-worker", daemon=True)

    @property
    def pid(self) -> int:
        """The process at hand; 0 between two."""
        process = self._process
        return process.pid if process else 0

    def begin(self, progress: abc.Callable[[int, int], object] | None) -> None:
        """Loads the model in the process; progress is called in this thread. Nothing stays where it fails."""
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
        """Why no request can be answered now; "" where they are."""
        if self._broken:
            return str(self._broken)
        if self._closed:
            return f"{self.path}: the model was closed"
        if not self._ready:
            return "the worker process is loading the model" + (" again" if self.restarts else "")
        return self._dog.trouble

    def submit(self, request: Request) -> Ticket:
        """Queues a request. RequestError where the queue is full, or the request can never run, or holds what
        cannot be sent to another process.
        """
        encode(request)
        ticket = Ticket(self, Sequence(request, time.monotonic()))
        with self._lock:
            self._check_open()
            waiting = max(0, len(self._live) - self.cache.slots)
            queued = (entry.ticket.seq.client for entry in self._live.values())
            check(request, waiting, self.limits, self.cache.block, self.cache.pool, queued)
            number = next(self._count)
            self._live[number], self._numbers[ticket] = Entry(ticket), number
            self._send_due()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ends the request at once as far as the caller sees; the process hears of it too."""
        with self._lock:
            number = self._numbers.get(ticket)
            if number is None:
                return
            if self._live[number].sent and self._process:
                self._process.send({"cancel": number})
            else:
                self._end(number, End("cancelled"))

    def ask(self, verb: str, *args: Any, **how: Any) -> Any:
        """What a verb of the worker's model gives. Where the process is lost meanwhile, the next is asked;
        DeviceError where the question is what ends them. Stopping the errand that asks ends it.
        """
        return self._asked_while(lambda: True, verb, *args, **how)

    def _asked_while(self, worth: abc.Callable[[], bool], verb: str, *args: Any, **how: Any) -> Any:
        """As ask(); DeviceError as soon as it is not worth waiting any more."""
        errand = current()
        asked = Asked(verb, args, how, most_bytes(verb, args, how, *self.widths))
        errand.check()
        with self._lock:
            self._check_open()
            number = next(self._count)
            self._asked[number] = asked
            self._send_due()
        try:
            while not asked.done.wait(POLL):
                errand.check()
                if not worth():
                    raise DeviceError(f"{verb}: {self.trouble}")
        except BaseException:
            self._forget(number)
            raise
        return asked.result()

    def _forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        with self._lock:
            asked = self._asked.pop(number, None)
            if asked and asked.sent and self._process:
                self._process.send({"cancel": number})
            self._blame.forget(number)
            self._send_due()

    def stats(self) -> EngineStats:
        """Of the process at hand: counting begins anew with each, and between two there is nothing."""
        found = Meter(Traffic(())).snapshot(len(self._live), 0, (0, 0, 0))
        if not self.trouble:
            with suppress(DeviceError):
                found = self._asked_while(lambda: not self.trouble, "stats")
        self._check_open()
        return replace(found, worker_restarts=self.restarts)

    def close(self) -> None:
        """Cancels what is under way and ends the process."""
        with self._lock:
            self._closed = True
            if self._process:
                self._process.send({"close": 1})
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(PATIENCE)
            self.kill()
            self._thread.join()

    def kill(self) -> None:
        """Ends the process at once, and begins no other."""
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
        """Ends a process that gives no sign of life: what it had goes on as after a crash."""
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
        """The thread that begins processes and hears them; whatever ends it, nobody waits for it for ever."""
        try:
            self._run_processes()
        except Exception as error:
            LOG.exception("%s: the worker process was not heard any more", self.path.name)
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
        """One after the other."""
        failed = 0
        while not (self._closed or self._broken):
            with self._lock:
                try:
                    process = self._process = Process(self._folder, self._sandbox)
                except SatchelError as error:
                    self._broken = error
                    break
                self._dog, self._hung = self._watchdog(), ""
                process.send({"open": str(self.path), "options": encode(self.options), "beat": BEAT})
                if self._closed:
                    process.kill()
            self._listen(process)
            died = process.reap()
            with self._lock:
                died = f"{self._hung} and {died}" if self._hung else died
                failed = failed + 1 if self._useless() else 0
                self._lost(died, failed)

    def _listen(self, process: Process) -> None:
        """Until the process is gone. One that says what none of ours says is ended."""
        try:
            while (got := process.read()) is not None:
                self._hear(*got)
        except Exception as error:  # whatever it sent: this thread must live
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
                if not self._ready_at:  # nobody watches a later load
                    done, total = message["progress"]
                    self._loading.put((done, total))
            elif "ready" in message:
                self._opened(message)
            elif "answer" in message or "part" in message:
                self._answered(message, data)
            elif "log" in message:
                level, text = message["log"]
                LOG.log(level, "%s", text)
            elif "failed" in message:
                self._broken = self._unloadable(message)

    def _unloadable(self, message: Message) -> SatchelError:
        """Why there is no model any more, or never was."""
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
        # A later process has the same context, whatever memory is free then.
        self.options = replace(self.options, context=self.cache.context)
        self._loading.put(None)
        self._send_due()

    def _note_step(self, rows: list[list[Any]]) -> None:
        self._step = [row[0] for row in rows]
        for number, computed, cached, started in rows:
            if entry := self._live.get(number):
                seq = entry.ticket.seq
                seq.num_computed_tokens = computed
                if seq.started < 0:
                    seq.cached, seq.started = cached, started

    def _note_turn(self, number: int) -> None:
        """A piece of an errand begins."""
        self._step = []
        asked = self._asked.get(number)
        if asked is None:
            return
        asked.turns += 1
        if number == self._blame.alone and asked.turns > self._blame.trial(number):
            self._blame.survived(number)
            self._send_due()

    def _take(self, number: int, tokens: list[Any]) -> None:
        entry = self._live.get(number)
        if entry is None:
            return
        seq = entry.ticket.seq
        for item in map(decode, tokens):
            seq.first = seq.first if seq.first >= 0 else time.monotonic()
            entry.got.append(token_of(item))
            entry.nll_bits.append(item.nll_bits if isinstance(item, Sampled) else 0.0)
            seq.ids.append(token_of(item))
            entry.ticket.put(item)

    def _take_end(self, message: Message) -> None:
        number, finish, error = message["end"], message["finish"], message["error"]
        entry = self._live.get(number)
        if entry is None:
            return
        self._note_facts(entry, message["facts"])
        if finish == "length" and len(entry.got) == entry.until and not self._complete(entry):
            entry.sent = False  # it gave what it had to give alone
            self._blame.survived(number)
        else:
            self._end(number, End(finish, fault(error) if error else None))
        self._send_due()

    def _note_facts(self, entry: Entry, facts: Message) -> None:
        """What the process says of a sequence; a sequence that began anew keeps when it first did."""
        seq = entry.ticket.seq
        known = {name: decode(value) for name, value in facts.items()}
        used = known.get("used")
        if used is not None:
            used.replayed, used.steps = seq.used.replayed, used.steps + seq.used.steps
            used.weight_bytes += seq.used.weight_bytes
            used.kv_bytes += seq.used.kv_bytes
        kept = ("started", "first", "cached", "miss") if entry.begun else ()
        if known.get("miss") == Miss.COLD and self.restarts:
            known["miss"] = Miss.LOST
        for name, value in known.items():
            if name not in kept:
                setattr(seq, name, value)

    def _answered(self, message: Message, data: bytes) -> None:
        number = int(message["answer"] if "answer" in message else message["part"])
        asked = self._asked.get(number)
        if asked is None:
            return
        if "answer" in message:
            asked.answered(message)
        else:
            asked.part(data)
        if asked.done.is_set():
            del self._asked[number]
            self._blame.forget(number)
            self._send_due()

    def _send_due(self) -> None:
        """Sends the requests that the process at hand may have and has not."""
        if not (self._ready and self._process):
            return
        alone = self._blame.alone
        for number, entry in list(self._live.items()):
            if not entry.sent and alone in (None, number):
                self._process.send(self._submitted(number, entry, alone is not None))
        for number, asked in self._asked.items():
            if not asked.sent and (asked.bare or alone in (None, number)):
                asked.sent = True
                self._process.send({"ask": number, **asked.message}, asked.descriptor)

    def _submitted(self, number: int, entry: Entry, alone: bool) -> Message:
        """The message that gives the process what is left of a request."""
        request, got = entry.ticket.seq.request, len(entry.got)
        entry.until = (
            min(request.max_tokens, got + self._blame.trial(number)) if alone else request.max_tokens
        )
        entry.sent = True
        given, bits = tuple(entry.got), tuple(entry.nll_bits)
        rest = replace(request, max_tokens=entry.until, given=given, nll_bits=bits)
        return {"submit": number, "request": encode(rest)}

    def _useless(self) -> bool:
        """Whether the process ended by itself: it did not load, or had just done so and nothing to do."""
        had_work = self._step or any(a.sent and not a.bare for a in self._asked.values())
        return not (self._ready and (had_work or time.monotonic() - self._ready_at > YOUNG))

    def _lost(self, died: str, failed: int) -> None:
        """The process is gone, whether it was to be so or not."""
        loaded, self._process, self._ready = self._ready, None, False
        if self._closed or self._broken:
            return
        self.restarts += 1
        LOG.error("the worker process %s; requests in its step: %s", died, self._step)
        if failed >= LOADS or (failed and not self.cache.context):
            when = "as soon as it had loaded" if loaded else "while it loaded"
            often = f", {failed} times in a row: load it again" if failed > 1 else ""
            self._broken = DeviceError(f"{self.path}: the worker process {died} {when} the model{often}")
            return
        errands = [n for n, a in self._asked.items() if a.sent and not a.bare]
        step, self._step = [*(n for n in self._step if n in self._live), *errands], []
        guilty = self._blame.died(step)
        if guilty in self._live:
            self._end(guilty, End("error", self._refusal(guilty, died)))
        elif guilty is not None:
            refusal = self._refusal(guilty, died)
            self._asked.pop(guilty).fail(refusal)
        self._replay()

    def _replay(self) -> None:
        """All that the process had, and did not end, is the next one's."""
        for number, entry in list(self._live.items()):
            finish = self._complete(entry)
            if finish:  # all its tokens came, the word of its end did not
                self._end(number, End(finish))
            entry.ticket.seq.used.replayed += entry.sent
            entry.sent, entry.begun = False, entry.ticket.seq.started >= 0
        for asked in self._asked.values():
            asked.resend()

    def _complete(self, entry: Entry) -> str:
        """How an answer that lacks no token ended; "" for one that goes on."""
        seq = entry.ticket.seq
        if entry.got and seq.ids[-1] in seq.request.stop_ids:
            return "stop"
        return "length" if len(entry.got) >= seq.request.max_tokens or self._full(seq) else ""

    def _full(self, seq: Sequence) -> bool:
        return len(seq.ids) > min(self.cache.context, self.cache.pool * self.cache.block)

    def _refusal(self, number: int, died: str) -> DeviceError:
        if entry := self._live.get(number):
            request = entry.ticket.seq.request
            client = request.client or request.user
            whose = f" of user {client!r}" if client else ""
            what = f"{whose} ({len(request.ids)} prompt tokens, {len(entry.got)} of its answer)"
        else:
            what = f" ({self._asked[number].verb})"
        return DeviceError(
            f"request {number}{what}: the worker process {died} twice while it alone ran; it is refused,"
            " other requests go on"
        )

    def _end(self, number: int, end: End) -> None:
        entry = self._live.pop(number)
        del self._numbers[entry.ticket]
        self._blame.forget(number)
        entry.ticket.seq.finish = end.finish
        entry.ticket.put(end)

    def _end_all(self, end: End) -> None:
        for number in list(self._live):
            self._end(number, end)
        for asked in self._asked.values():
            asked.fail(end.error or RequestError(f"{self.path}: the model was closed: load it again"))
        self._asked.clear()


def fault(told: list[Any]) -> SatchelError:
    """What a process told of an error, as one for people."""
    error = decode_error(told)
    return error if isinstance(error, SatchelError) else DeviceError(str(error))
