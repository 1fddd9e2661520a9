"""A device that another host serves, with Device's face. Memory, plans and runs are messages to the server of
`satchel device` there (runtime/net/server.py); the host reads weights from its own copy of the model's
file.

What has no answer (writes, runs, frees) is sent and not waited for; an error of it comes with the next
answer, as one of a run that a GPU has queued. The connection carries a sign of life in both directions all
the time. When it ends, everything raises LinkLost: what the device held is gone.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from satchel.errors import DeviceError, ModelError, RequestError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.device.device import (
    ABI,
    DETERMINISTIC,
    PROFILE,
    WEIGHT,
    Backend,
    Buffer,
    Device,
    Exec,
    Info,
    KernelOverride,
    bytes_at,
    no_overrides,
)
from satchel.runtime.device.lost import DeviceLost, DeviceUnreachable, LinkLost
from satchel.runtime.graph import Array
from satchel.runtime.net.address import NetName
from satchel.runtime.net.key import read_key
from satchel.runtime.net.link import Link, LinkDeadlines, LinkError, Message, WrongKey, greet
from satchel.runtime.net.tables import write_segment
from satchel.runtime.plan import Segment

PART = 16 << 20  # most bytes of a value in one frame
TIMEOUT_NAME = "SATCHEL_DEVICE_TIMEOUT_MS"  # silence after which a host is lost
ERRORS: dict[str, type[SatchelError]] = {k.__name__: k for k in (DeviceError, ModelError, RequestError)}
NO_WEIGHTS = (
    "weights are not sent over the network: adapters, control vectors, prefetched weights and the expert "
    "cache need a device of this host"
)
Progress = Callable[[int, int], None]
Reply = tuple[Message, memoryview]


def deadlines() -> LinkDeadlines:
    """Those of this process: SATCHEL_DEVICE_TIMEOUT_MS is how long a host may be silent."""
    usual = LinkDeadlines()
    told = os.environ.get(TIMEOUT_NAME, "")
    if not told:
        return usual
    if not (told.isascii() and told.isdecimal() and int(told)):
        raise RequestError(f"{TIMEOUT_NAME} is {told!r:.40}: expected milliseconds")
    return LinkDeadlines(beat=int(told) / 1000 / usual.missed, missed=usual.missed)


class NetBackend(Backend):
    """The backend of a device of another host: it has no library here."""

    def __init__(self, name: NetName, key: str) -> None:
        """key: path of the key file; "": none was given."""
        self.name, self.path, self.score, self.table = name.backend, f"{name.address}/{name.backend}", 1, None
        self.choose_kernels = no_overrides
        self.address, self._key = name.address, key

    def count(self) -> int:
        return 1

    def make_device(self, index: int, options: Mapping[str, int]) -> Device:
        return NetDevice(self, index, options)

    def link(self, device: str) -> Link:
        """A new connection. Raises DeviceUnreachable if nobody answers, RequestError for a key that is
        refused.
        """
        if not self._key:
            raise RequestError(
                f"device {device}: no key: give the file of the key that {self.address.host} has, "
                "--device-key-file FILE"
            )
        key, wait = read_key(Path(self._key)), deadlines()
        try:
            sock = socket.create_connection(self.address, wait.handshake)
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            told = (
                f"{self.address.host} port {self.address.port}: {why}; start `satchel device --listen` there"
            )
            raise DeviceUnreachable(device, told) from None
        try:
            return greet(sock, key, wait)
        except WrongKey as error:
            sock.close()
            told = f"{error}: both hosts need the same key file, and this one has {self._key}"
            raise RequestError(f"device {device}: {told}") from None
        except LinkError as error:
            sock.close()
            raise DeviceUnreachable(device, str(error)) from None


class NetDevice(Device):
    """An open device of another host."""

    backend: NetBackend

    def __init__(self, backend: NetBackend, index: int, options: Mapping[str, int]) -> None:
        self.backend, self.index, self._open = backend, index, True
        self.name = str(NetName(backend.address, backend.name, index))
        self.profiled = bool(options["flags"] & PROFILE)
        self.deterministic = bool(options["flags"] & DETERMINISTIC)
        self.overrides_of = no_overrides(self)  # the host has its own
        self._waiting: deque[SimpleQueue[Reply | DeviceError]] = deque()
        self._sending, self._ended = threading.Lock(), threading.Event()
        self._lost = ""  # why the connection ended
        self._packed: dict[tuple[int, ...], int] = {}
        self._link = backend.link(self.name)
        try:
            begin(threading.Thread(target=self._receive, name=f"satchel-{self.name}", daemon=True))
            begin(threading.Thread(target=self._beat, name="satchel-beat", daemon=True))
            asked: dict[str, Any] = {"device": backend.name, "index": index, "abi": str(ABI), **options}
            told, _ = self.ask("open", **asked)
        except BaseException:
            self.close()
            raise
        self._can_wrap, self._measures = bool(told["can_wrap"]), bool(told["measures"])

    def _receive(self) -> None:
        try:
            while True:
                message, data = self._link.receive()
                if "progress" in message:
                    self._waiting[0].put((message, data))
                elif "beat" not in message:
                    self._waiting.popleft().put((message, data))
        except LinkError as error:
            self._lose(str(error))
        except IndexError:
            self._lose("it answered what was not asked")

    def _beat(self) -> None:
        beat = deadlines().beat
        while not self._ended.wait(beat):
            with suppress(LinkError):  # _receive() notices
                self._link.send({"beat": 1})

    def _lose(self, reason: str) -> None:
        """Ends the connection; whoever waits gets an error."""
        self._ended.set()
        self._link.close()
        with self._sending:
            self._lost = self._lost or reason
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for replies in waiting:
            replies.put(LinkLost(self.name, self._lost))

    def _send(self, message: Message, data: bytes | memoryview) -> None:
        """Sends a message. The lock is held."""
        if self._lost:
            raise LinkLost(self.name, self._lost)
        try:
            self._link.send(message, data)
        except LinkError as error:
            raise LinkLost(self.name, str(error)) from None

    def tell(self, do: str, data: bytes | memoryview = b"", **values: Any) -> None:
        """Sends a message that has no answer."""
        with self._sending:
            self._send({"do": do, **values}, data)

    def ask(
        self,
        do: str,
        data: bytes | memoryview = b"",
        progress: Progress | None = None,
        **values: Any,
    ) -> Reply:
        """Sends a message and waits for its answer. Raises the host's error."""
        replies: SimpleQueue[Reply | DeviceError] = SimpleQueue()
        with self._sending:
            self._waiting.append(replies)
            try:
                self._send({"do": do, "ask": 1, **values}, data)
            except BaseException:
                with suppress(ValueError):
                    self._waiting.remove(replies)
                raise
        while True:
            got = replies.get()
            if isinstance(got, DeviceError):
                raise got
            if "error" in got[0]:
                raise self._error(got[0]["error"])
            if "progress" not in got[0]:
                return got
            if progress is not None:
                progress(*got[0]["progress"])

    def _error(self, told: Any) -> SatchelError:
        """The host's error, with the device's name in front."""
        try:
            kind, reason = map(str, told)
        except (TypeError, ValueError):
            kind, reason = "", f"an error that cannot be read: {told!r:.60}"
        if kind == DeviceLost.__name__:
            return DeviceLost(self.name, reason)
        return ERRORS.get(kind, DeviceError)(f"device {self.name}: {reason}")

    def info(self) -> Info:
        """What the host tells. free memory: what a model may take there. The memory is apart, whatever the
        device is.
        """
        return Info(*self.ask("info")[0]["info"])

    @property
    def driver(self) -> int:
        """Bytes that the device's driver takes."""
        return int(self.ask("driver")[0]["bytes"])

    @property
    def can_wrap(self) -> bool:
        """Whether the host's device reads the file that the host has mapped."""
        return self._can_wrap

    @property
    def can_pin(self) -> bool:
        return False

    @property
    def has_choices(self) -> bool:
        return False

    @property
    def measures(self) -> bool:
        return self._measures

    def alloc(self, size: int, usage: int) -> Buffer:
        if usage == WEIGHT:
            raise RequestError(f"device {self.name}: {NO_WEIGHTS}")
        told, _ = self.ask("alloc", size=size, usage=usage)
        return NetBuffer(self, told["buffer"], size)

    def wrap(self, memory: Any) -> Buffer:
        raise RequestError(f"device {self.name}: {NO_WEIGHTS}")

    def packed(self, format: int, stack: int, rows: int, columns: int) -> int:
        asked = (format, stack, rows, columns)
        if asked not in self._packed:
            self._packed[asked] = int(self.ask("packed", weight=list(asked))[0]["bytes"])
        return self._packed[asked]

    def measure(self, what: str, size: int = 0) -> float | None:
        found = self.ask("measure", what=what, size=size)[0]["rate"]
        return None if found is None else float(found)

    def refusal(self, segment: Segment) -> str:
        message, data = write_segment(segment)
        return str(self.ask("refusal", data, **message)[0]["why"])

    def kernels(self, segment: Segment, step: int) -> tuple[str, ...]:
        return ()

    def add_kernel(self, image: bytes, entry: str) -> int:
        raise DeviceError(f"kernel {entry}: {self.name} takes no kernels but its own")

    def compile(
        self, segment: Segment, buffers: Sequence[Buffer], overrides: Sequence[KernelOverride] | None = None
    ) -> Exec:
        message, data = write_segment(segment)
        told, _ = self.ask("compile", data, **message, handles=[b.handle for b in buffers])
        return NetExec(self, told["exec"], tuple(buffers), len(segment.step_table))

    def load(self, model: Message, weights: Message, progress: Progress | None) -> dict[str, Buffer]:
        """Has the host read weights of a model's file: its buffers by name.

        model: path and identity of the file; weights: names and packed forms, as bind_there() of
        runtime/weights/there.py gives both. Raises ModelError where the host has no such file.
        """
        told, _ = self.ask("load", progress=progress, model=model, **weights)
        return {name: NetBuffer(self, handle, size) for name, (handle, size) in told["buffers"].items()}

    def speed(self, model: Message, repack: bool, activations: int) -> Any:
        """The numbers of the device's Speed with a model (runtime/placement/predict.py), which the host
        measures or knows. model: as of load().
        """
        return self.ask("speed", model=model, repack=repack, activations=activations)[0]["speed"]

    def close(self) -> None:
        """Ends the connection, with which the host frees everything."""
        self._open = False
        self._lose("it was closed")


class NetBuffer(Buffer):
    """Memory of a device of another host."""

    device: NetDevice

    def __init__(self, device: NetDevice, handle: Any, size: int) -> None:
        self.device, self.handle, self.size = device, handle, size

    @property
    def memory(self) -> None:
        return None

    def write(self, offset: int, data: Any) -> None:
        """Sends the bytes, and does not wait."""
        given = memoryview(data)
        view = np.frombuffer(given, np.uint8).data if given.nbytes else given
        for at in range(0, len(view), PART):
            self.device.tell("write", view[at : at + PART], buffer=self.handle, offset=offset + at)

    def pack(self, offset: int, format: int, matrices: tuple[int, int, int], data: Any) -> None:
        raise RequestError(f"device {self.device.name}: {NO_WEIGHTS}")

    def copy(self, to: int, offset: int, size: int) -> None:
        self.device.tell("copy", buffer=self.handle, to=to, offset=offset, size=size)

    def read_into(self, offset: int, out: Array) -> None:
        target = out.reshape(-1).view(np.uint8).data
        for at in range(0, len(target), PART):
            size = min(PART, len(target) - at)
            _, data = self.device.ask("read", buffer=self.handle, offset=offset + at, size=size)
            if len(data) != size:
                raise DeviceError(f"device {self.device.name}: read {len(data):,} of {size:,} bytes")
            target[at : at + size] = data

    def close(self) -> None:
        if self.handle is not None:
            with suppress(DeviceLost):
                self.device.tell("free", buffer=self.handle)
            self.handle = None


class NetExec(Exec):
    """A segment ready to run on a device of another host."""

    device: NetDevice

    def __init__(self, device: NetDevice, handle: Any, buffers: tuple[Buffer, ...], n_steps: int) -> None:
        self.device, self.handle, self.buffers, self.n_steps = device, handle, buffers, n_steps

    def run(self, block: Any, size: int) -> None:
        """Sends the step block, and does not wait."""
        self.device.tell("run", bytes_at(block, size), exec=self.handle)

    def wait(self, timeout_ms: int = 0xFFFFFFFF) -> None:
        self.device.ask("wait", exec=self.handle, timeout=timeout_ms)

    def times(self) -> list[int]:
        return [int(ns) for ns in self.device.ask("times", exec=self.handle)[0]["times"]]

    def close(self) -> None:
        if self.handle is not None:
            with suppress(DeviceLost):
                self.device.tell("release", exec=self.handle)
            self.handle, self.buffers = None, ()
