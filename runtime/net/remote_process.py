"""A worker process on another host, with the face of runtime/worker/process.py: messages to it go over a link
to `satchel engine` there (runtime/net/engine_server.py), which starts it and hands them on.

Nothing here blocks a caller: the connection is made, and everything is sent, by a thread of its own. A host
that is not reached is tried again for a while, because it may be starting.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from satchel.errors import RequestError
from satchel.errors.threads import begin
from satchel.formats.gguf import GGUF
from satchel.runtime.api.recovering import reconnecting
from satchel.runtime.device.device import ABI
from satchel.runtime.kv.identity import weights_identity
from satchel.runtime.net.address import Address, read_address
from satchel.runtime.net.device import deadlines
from satchel.runtime.net.key import read_key
from satchel.runtime.net.link import Link, LinkError, Message, WrongKey, greet
from satchel.runtime.worker.rpc_methods import METHODS
from satchel.runtime.worker.wire import CARRIED

PORT = 8094  # where `satchel engine` listens
PIECE = 1 << 20  # bytes of a message that go in one frame
LOCAL = frozenset({"save_state", "restore_state"})  # methods that pass an open file


def protocol() -> str:
    """A digest of what is sent: of two programs with one digest, each understands the other's messages."""
    kinds = {name: [f.name for f in fields(k)] for name, k in CARRIED.items() if is_dataclass(k)}
    text = json.dumps([str(ABI), sorted(METHODS), sorted(CARRIED), kinds], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """Where the engine of a model runs, and what its files must be.

    identity: of the weights, see runtime/kv/identity.py. stamps: of the files here, which the program expects
    from a worker process.
    """

    address: Address
    key: bytes
    identity: str
    stamps: Sequence[Sequence[int]]

    def process(self) -> RemoteProcess:
        """A new worker process there."""
        return RemoteProcess(self)


def remote_engines(hosts: str, key_file: str, gguf: GGUF) -> list[RemoteEngine]:
    """The engines of a model at these hosts, HOST or HOST:PORT with commas between; [] for "". Raises
    RequestError for an address or a key file that cannot be used.
    """
    if not hosts:
        return []
    addresses = [read_address(host, usual=PORT) for host in hosts.split(",")]
    if not key_file:
        told = "give the file of the key that the hosts have, --device-key-file FILE"
        raise RequestError(f"engine_host {hosts}: no key: {told}")
    key, identity = read_key(Path(key_file)), weights_identity(gguf)
    return [RemoteEngine(address, key, identity, gguf.stamps) for address in addresses]


class RemoteProcess:
    """A worker process of another host. Any thread may send; one reads."""

    pid = 0  # it has none here

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._link: Link | None = None
        self._outbox: SimpleQueue[Message | None] = SimpleQueue()
        self._connected, self._ended = threading.Event(), threading.Event()
        self._why, self._reading = "", False
        self.killed = True  # its end was no request's fault, unless the host tells otherwise
        begin(threading.Thread(target=self._run, name="satchel-remote", daemon=True))

    def send(self, message: Message, descriptor: int = -1) -> None:
        """Sends a message without blocking. A descriptor stays here: the host refuses what needs one."""
        self._outbox.put(message)

    def read(self) -> tuple[Message, bytes] | None:
        """The next message; None at the end of the connection, or where there is none to be had."""
        self._connected.wait()
        self._reading = True
        try:
            while self._link is not None:
                message, data = self._link.receive()
                if "over" in message:
                    self.killed = bool(message.get("killed"))
                    self._end(str(message["over"]))
                    return None
                if "alive" not in message:
                    return message, bytes(data)
        except LinkError as error:
            self._end(f"was lost: {error}")
        finally:
            self._reading = False
        return None

    @property
    def unread(self) -> bool:
        """Whether the host has sent bytes that are not read yet; thread-safe."""
        return not self._reading or (self._link is not None and self._link.unread)

    def kill(self) -> None:
        """Ends the connection; the host then ends the process."""
        self._end("was ended")

    def reap(self) -> str:
        """Waits until nothing more is sent; gives the cause of the end."""
        self._end("was ended")
        self._outbox.put(None)
        return f"on {self._engine.address} {self._why}"

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self._ended.set()
        if self._link is not None:
            self._link.close()
        self._connected.set()

    def _run(self) -> None:
        """Connects, then sends what there is, and signs of life between."""
        try:
            self._link = self._connect()
            self._connected.set()
            if self._link is not None:
                self._send_all(self._link)
        except LinkError as error:
            self._end(f"was lost: {error}")
        except Exception as error:  # whoever waits must hear of it
            self._end(f"could not be asked: {error}")

    def _connect(self) -> Link | None:
        """The link, with what this program expects told; None if there is none to be had."""
        address, wait = self._engine.address, deadlines()
        why = ""
        for _ in reconnecting():
            if self._ended.is_set():
                return None
            try:
                sock = socket.create_connection(address, wait.handshake)
            except OSError as error:
                why = error.strerror or str(error) or type(error).__name__
                continue
            try:
                link = greet(sock, self._engine.key, wait)
            except LinkError as error:
                sock.close()
                why = str(error)
                if isinstance(error, WrongKey):
                    break
                continue
            engine = self._engine
            link.send(
                {"hello": protocol(), "identity": engine.identity, "stamps": [list(s) for s in engine.stamps]}
            )
            return link
        self._end(f"could not be reached ({why}; start `satchel engine --listen` there)")
        return None

    def _send_all(self, link: Link) -> None:
        beat = deadlines().beat
        while not self._ended.is_set():
            try:
                message = self._outbox.get(timeout=beat)
            except Empty:
                link.send({"alive": 1})
                continue
            if message is None:
                return
            send_whole(link, message)


def send_whole(link: Link, message: Message) -> None:
    """Sends a message of any size in frames of PIECE bytes."""
    text = memoryview(json.dumps(message, separators=(",", ":")).encode())
    for at in range(0, len(text), PIECE):
        link.send({"piece": int(at + PIECE < len(text))}, text[at : at + PIECE])
