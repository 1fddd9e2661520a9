"""Serves engines of this host to programs on others (`satchel engine`): each client gets a worker process of
its own, with the model that it names, and this server hands messages on between the two.

The client is authenticated, and is yet not trusted with the host: only files that it serves are opened, whose
weights must be those of the client's own file; the devices, the threads and the sandbox are this host's
choice; no path of its options is opened. The worker process is in the sandbox as any other.

Each session has three threads: one reads from the client, one from the process, one sends signs of life.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from satchel.errors import ModelError, RequestError, SatchelError
from satchel.errors.threads import begin
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.options import Options
from satchel.runtime.engine.watchdog import Beat, Watchdog
from satchel.runtime.kv.identity import weights_identity
from satchel.runtime.log import LOG
from satchel.runtime.net.address import Address
from satchel.runtime.net.key_server import CLIENT, KeyServer
from satchel.runtime.net.link import Link, LinkDeadlines, LinkError, Message
from satchel.runtime.net.remote_process import LOCAL, protocol
from satchel.runtime.net.server import Lent
from satchel.runtime.sandbox.policy import policy_of
from satchel.runtime.worker.process import Process, folder
from satchel.runtime.worker.wire import decode, encode, encode_error

ENGINES = 1  # clients that may have an engine at the same time, unless the server is told another number
MOST_MESSAGE = 64 << 20  # most bytes of a client's message
# Options that are this host's: what computes, and what protects the host.
HERE = ("device", "threads", "threads_batch", "gpu_memory", "sandbox", "worker")
PAUSE = 0.1  # seconds between two looks whether all clients are gone
OTHER_VERSION = "another version of Satchel runs here: install the same one on both hosts"


@dataclass(frozen=True, slots=True)
class Offered:
    """What a host offers. options: those of HERE are taken from them, whatever a client asks for."""

    lent: Lent
    options: Options
    engines: int = ENGINES


class EngineServer(KeyServer):
    """Serves engines to clients that hold the key."""

    def __init__(
        self, address: Address, key: bytes, offered: Offered, deadlines: LinkDeadlines = CLIENT
    ) -> None:
        self._offered, self._free = offered, threading.Semaphore(offered.engines)
        self._over = threading.Event()
        super().__init__(address, key, deadlines)

    def session(self, link: Link, peer: str) -> EngineSession:
        return EngineSession(link, peer, self._offered, self._deadlines, self._free)

    def _engines(self) -> list[EngineSession]:
        """Sessions that have an engine."""
        with self._lock:
            return [one for one in self.sessions if isinstance(one, EngineSession) and one.has_engine]

    @property
    def trouble(self) -> str:
        """Why an engine stands still; "" if none does."""
        return next((told for session in self._engines() if (told := session.trouble)), "")

    def report(self) -> Message:
        """What a fleet's roster is told of this host."""
        return {"engines": self._offered.engines, "busy": len(self._engines()), "trouble": self.trouble}

    def end_sessions(self) -> None:
        """Ends all sessions; their engines are free for others."""
        with self._lock:
            sessions = list(self.sessions)
        for session in sessions:
            session.end()

    def await_idle(self, seconds: float) -> bool:
        """Waits until no client has an engine, at most so many seconds."""
        end = time.monotonic() + seconds
        while self._engines():
            if time.monotonic() > end:
                return False
            self._over.wait(PAUSE)
        return True


class EngineSession:
    """A client and its worker process."""

    def __init__(
        self, link: Link, peer: str, offered: Offered, deadlines: LinkDeadlines, free: threading.Semaphore
    ) -> None:
        self._link, self._peer, self._offered, self._deadlines = link, peer, offered, deadlines
        self._free = free  # engines that no session has
        self._process: Process | None = None
        self._stamps: list[list[int]] = []
        self._has_engine, self.over = False, threading.Event()
        self._dog = Watchdog(0, 0, deadlines.beat)

    @property
    def has_engine(self) -> bool:
        """Whether its client has one of the engines."""
        return self._has_engine and not self.over.is_set()

    @property
    def trouble(self) -> str:
        """Why its engine makes no progress; "" if it does, or is not begun yet."""
        return self._dog.trouble if self._process else ""

    def serve(self) -> None:
        begin(threading.Thread(target=self._beat, name="satchel-beat", daemon=True))
        try:
            self._serve()
        except SatchelError as error:
            LOG.info("%s: %s", self._peer, error)
            self._tell({"over": f"was refused: {error}"})
        finally:
            self.end()
            if self._has_engine:
                self._free.release()
            self.over.set()

    def end(self) -> None:
        self._link.close()
        if (process := self._process) is not None:
            process.kill()

    def _serve(self) -> None:
        hello = self._message()
        self._check(hello)
        opening = self._message()
        if "open" not in opening:
            raise RequestError(f"expected a model to open, got {list(opening)!r:.60}")
        path, options = self._model(opening, str(hello.get("identity")))
        files = [path]
        self._process = process = Process(folder(), policy_of(files, options) if options.sandbox else None)
        LOG.info("%s: an engine for %s, process %d", self._peer, path.name, process.pid)
        hearing = threading.Thread(target=self._hand_back, args=(process,), name="satchel-hear", daemon=True)
        try:
            begin(hearing)
            process.send({**opening, "open": str(path), "options": encode(options)})
            while True:
                self._hand_on(process, self._message())
        except LinkError as error:
            LOG.info("%s: the connection ended: %s", self._peer, error)
        finally:
            process.kill()
            hearing.join()

    def _check(self, hello: Message) -> None:
        """Raises RequestError for a client of another version, or while all engines are in use."""
        if hello.get("hello") != protocol():
            raise RequestError(OTHER_VERSION)
        stamps = hello.get("stamps")
        if not isinstance(stamps, list):
            raise RequestError("expected the stamps of a file, got none")
        self._stamps = stamps
        self._has_engine = self._free.acquire(blocking=False)
        if not self._has_engine:
            others = "another program has" if self._offered.engines == 1 else "other programs have"
            raise RequestError(f"{others} the engine of this host: try again later")

    def _model(self, opening: Message, identity: str) -> tuple[Path, Options]:
        """The file on this host, and the options with this host's own. Raises ModelError if there is no such
        file here, RequestError for options that this host does not take.
        """
        try:
            options, asked = decode(opening["options"]), Path(str(opening["open"]))
        except Exception as error:
            raise RequestError(f"options that cannot be read: {error}") from None
        if not isinstance(options, Options):
            raise RequestError(f"expected options, got {type(options).__name__}")
        refused = {
            "adapters": bool(options.adapters),
            "control_vectors": bool(options.control_vectors),
            "speculation with a draft model": bool(options.speculation and options.speculation.draft_model),
        }
        if wrong := next((name for name, given in refused.items() if given), ""):
            told = "not supported by an engine of another host, which opens no other file"
            raise RequestError(f"{wrong}: {told}")
        mine = {name: getattr(self._offered.options, name) for name in HERE}
        # Chats are rendered by the client, and a template may be the path of a file.
        mine |= {"engine_host": "", "engine_listen": "", "ray": "", "replicas": 1, "digests": ()}
        mine |= {"device_key": self._offered.options.device_key, "chat_template": "", "defaults": None}
        options = replace(options, **mine)
        seen: list[str] = []
        for path in self._offered.lent.find(asked):
            try:
                with open_gguf(path) as gguf:
                    if weights_identity(gguf) == identity:
                        return path, options
                seen.append(f"{path} has other weights")
            except (SatchelError, OSError) as error:
                seen.append(f"{path}: {error}")
        tried = "; ".join(seen) or "it serves no file of this name"
        raise ModelError(f"{asked.name}: not on this host: {tried}")

    def _message(self) -> Message:
        """The client's next message. Raises LinkError for one that is no JSON object or too large."""
        text, more = bytearray(), True
        while more:
            frame, data = self._link.receive()
            if "alive" in frame:
                continue
            if "hello" in frame:
                return frame
            text += data
            if len(text) > MOST_MESSAGE:
                raise LinkError(f"a message of more than {MOST_MESSAGE:,} bytes")
            more = bool(frame.get("piece"))
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LinkError(f"a message is no JSON: {error}") from None
        if not isinstance(message, dict):
            raise LinkError(f"a message is {text[:40]!a}, expected a JSON object")
        return message

    def _hand_on(self, process: Process, message: Message) -> None:
        """To the process. What would pass an open file is refused here."""
        if message.get("method") in LOCAL:
            error = RequestError("saved conversations need an engine of the program's own host")
            self._tell({"answer": message.get("ask"), "error": encode_error(error)})
        elif "open" in message:
            raise LinkError("a second model for one connection")
        else:
            process.send(message)

    def _hand_back(self, process: Process) -> None:
        """To the client, until the process ends."""
        while (got := process.read()) is not None:
            message, data = got
            self._dog.heard(Beat(*message["beat"]) if "beat" in message else None)
            if "stamps" in message:  # of this host's file; the client compares with its own
                message = {**message, "stamps": self._stamps}
            self._tell(message, data)
        told = process.reap()
        self._tell({"over": told, "killed": process.killed})
        self._link.close()

    def _tell(self, message: Message, data: bytes = b"") -> None:
        try:
            self._link.send(message, data)
        except LinkError:
            self._link.close()  # the thread that reads from the client notices

    def _beat(self) -> None:
        while not self.over.wait(self._deadlines.beat):
            if (process := self._process) is not None:
                self._dog.tick(process.unread)
            self._tell({"alive": 1})
