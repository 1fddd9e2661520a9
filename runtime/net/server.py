"""Serves the devices of this host to programs on others (`satchel device`). A connection has one device,
which is opened for it and closed with it.

Each session has three threads: one reads messages, one does what they say, one sends signs of life. Messages
are done in their order, so that what a client sends without waiting stands where it was sent.

Invariants: a client has no memory of the host but the buffers that it made: sizes and offsets of every
message are checked here, tables of plans by the backend. Weights are read from files of this host and never
written or read by a client.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import DeviceError, ModelError, RequestError, SatchelError
from satchel.errors.threads import begin
from satchel.formats.gguf import GGUF, open_gguf
from satchel.runtime.device.device import ABI, HOST_MEMORY, MEASURE, WEIGHT, Buffer, Device, Exec, pointer
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.kv.identity import weights_identity
from satchel.runtime.log import LOG
from satchel.runtime.net.address import Address
from satchel.runtime.net.key_server import CLIENT, KeyServer
from satchel.runtime.net.link import MOST_DATA, Link, LinkDeadlines, LinkError, Message
from satchel.runtime.net.tables import MOST_SIZE, USAGES, number, numbers, read_segment, text
from satchel.runtime.placement.devices import driver_bytes, free_bytes
from satchel.runtime.placement.options import PlacementOptions
from satchel.runtime.placement.speeds import speed_of
from satchel.runtime.plan import Segment
from satchel.runtime.weights.packing import PackedWeight
from satchel.runtime.weights.there import read_packed
from satchel.runtime.weights.weights import bind

QUEUED = 256 << 20  # bytes of messages that wait; then the client waits
MOST = 1 << 40  # the largest number of a weight's shape
KINDS = (DeviceLost, DeviceError, ModelError, RequestError)
Reply = tuple[Message, bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Lent:
    """What a host serves. devices: names such as cuda:0. folders: where models lie; (): by the path that a
    client gives, or where `named` finds a file of its name.
    """

    devices: Sequence[str]
    folders: Sequence[Path] = ()
    named: Callable[[str], Sequence[Path]] = lambda name: ()

    def find(self, path: Path) -> list[Path]:
        """Where a client's file may lie here."""
        if self.folders:
            return [folder / path.name for folder in self.folders]
        return [path, *self.named(path.name)]


class DeviceServer(KeyServer):
    """Serves devices to clients that hold the key."""

    def __init__(self, address: Address, key: bytes, lent: Lent, deadlines: LinkDeadlines = CLIENT) -> None:
        self._lent = lent
        super().__init__(address, key, deadlines)

    def session(self, link: Link, peer: str) -> DeviceSession:
        return DeviceSession(link, self._lent, peer, self._deadlines)


@dataclass(slots=True)
class Inbox:
    """Messages that wait, up to QUEUED bytes of them."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    messages: deque[tuple[Message, memoryview]] = field(default_factory=deque)
    size: int = 0
    ended: bool = False

    def put(self, message: Message, data: memoryview) -> None:
        """Waits while there is too much."""
        with self.changed:
            while self.size > QUEUED and not self.ended:
                self.changed.wait()
            self.messages.append((message, data))
            self.size += len(data)
            self.changed.notify_all()

    def get(self) -> tuple[Message, memoryview] | None:
        """The next message; None at the end, whatever waits."""
        with self.changed:
            while not (self.messages or self.ended):
                self.changed.wait()
            if self.ended:
                return None
            message, data = self.messages.popleft()
            self.size -= len(data)
            self.changed.notify_all()
            return message, data

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class DeviceSession:
    """A client and the device that was opened for it."""

    def __init__(self, link: Link, lent: Lent, peer: str, deadlines: LinkDeadlines) -> None:
        self._link, self._lent, self._peer, self._deadlines = link, lent, peer, deadlines
        self._inbox, self.over = Inbox(), threading.Event()
        self._device: Device | None = None
        self._options: dict[str, int] = {}  # with which it was opened
        self._buffers: dict[int, tuple[Buffer, int]] = {}  # with their usages
        self._execs: dict[int, Exec] = {}
        self._files: list[GGUF] = []
        self._made = 0
        self._failed: Exception | None = None  # of a message without an answer
        self._does: dict[str, Callable[[Message, memoryview], Reply]] = {
            "open": self._open,
            "info": self._info,
            "driver": lambda message, data: ({"bytes": driver_bytes(self.device)}, b""),
            "packed": self._packed,
            "measure": self._measure,
            "refusal": self._refusal,
            "alloc": self._alloc,
            "load": self._load,
            "speed": self._speed,
            "compile": self._compile,
            "run": self._run,
            "wait": self._wait,
            "times": lambda message, data: ({"times": self._exec(message).times()}, b""),
            "write": self._write,
            "copy": self._copy,
            "read": self._read,
            "free": self._free,
            "release": self._release,
        }

    def serve(self) -> None:
        """Serves until the client is gone; then frees everything."""
        try:
            begin(threading.Thread(target=self._receive, name="satchel-receive", daemon=True))
            begin(threading.Thread(target=self._beat, name="satchel-beat", daemon=True))
            while (got := self._inbox.get()) is not None:
                self._do(*got)
        except LinkError as error:
            LOG.info("%s: the connection ended: %s", self._peer, error)
        finally:
            self.end()
            self._free_all()
            self.over.set()

    def end(self) -> None:
        """Ends the session; its thread frees everything."""
        self._inbox.end()
        self._link.close()

    def _receive(self) -> None:
        try:
            while True:
                message, data = self._link.receive()
                if "beat" not in message:
                    self._inbox.put(message, data)
        except LinkError as error:
            LOG.info("%s: the connection ended: %s", self._peer, error)
        finally:
            self._inbox.end()

    def _beat(self) -> None:
        while not self.over.wait(self._deadlines.beat):
            try:
                self._link.send({"beat": 1})
            except LinkError:
                self.end()
                return

    def _free_all(self) -> None:
        for exec in self._execs.values():
            exec.close()
        for buffer, _ in self._buffers.values():
            buffer.close()
        if self._device is not None:
            self._device.close()
            LOG.info("%s: %s is free", self._peer, self._device.name)
        for file in self._files:
            file.close()

    def _do(self, message: Message, data: memoryview) -> None:
        """Does what a message says. An error of one that has no answer comes with the next answer."""
        asks = "ask" in message
        try:
            if asks and self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            reply, raw = self._does[str(message.get("do"))](message, data)
        except LinkError:
            raise
        except Exception as error:  # whatever a client sends, the session goes on
            told = error
            if not isinstance(error, SatchelError):
                told = DeviceError(f"message {message.get('do')!r:.40} failed: {error!r:.200}")
            if asks:
                self._link.send({"error": _told(told)})
            else:
                self._failed = self._failed or told
        else:
            if asks:
                self._link.send(reply, raw)

    @property
    def device(self) -> Device:
        if self._device is None:
            raise RequestError("no device is open: expected the message open first")
        return self._device

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _open(self, message: Message, data: memoryview) -> Reply:
        name, index = text(message, "device", 40), number(message, "index", 1 << 12)
        if text(message, "abi", 40) != str(ABI):
            raise DeviceError("it is of another version of Satchel: install the same one on both hosts")
        if self._device is not None:
            raise RequestError(f"{self._device.name} is open already: a connection has one device")
        whole_name = f"{name}:{index}" if index else name
        if whole_name not in self._lent.devices:
            raise RequestError(f"this host serves {', '.join(self._lent.devices)}")
        options = {key: number(message, key, 1 << 16) for key in ("threads", "threads_decode", "flags")}
        backend = find_backend(name)
        self._options = options
        device = backend.make_device(index, options)
        device.overrides_of = backend.choose_kernels(device)
        self._device = device
        LOG.info("%s: opened %s", self._peer, device.name)
        return {"can_wrap": device.can_wrap, "measures": device.measures}, b""

    def _info(self, message: Message, data: memoryview) -> Reply:
        """The device's facts. Its free memory is what a model may take, its memory apart for the client."""
        free = free_bytes(self.device, PlacementOptions())
        info = self.device.info()
        return {"info": list(info._replace(memory_free=free, flags=info.flags & ~HOST_MEMORY))}, b""

    def _packed(self, message: Message, data: memoryview) -> Reply:
        return {"bytes": self.device.packed(*numbers(message, "weight", 4, MOST))}, b""

    def _measure(self, message: Message, data: memoryview) -> Reply:
        what = text(message, "what", 20)
        if what not in MEASURE:
            raise RequestError(f"what is {what!r}: expected one of {', '.join(MEASURE)}")
        size = number(message, "size", 1 << 30)
        return {"rate": self.device.measure(what, size)}, b""

    def _segment(self, message: Message, data: memoryview) -> Segment:
        return read_segment(message, data, self.device.name)

    def _refusal(self, message: Message, data: memoryview) -> Reply:
        return {"why": self.device.refusal(self._segment(message, data))}, b""

    def _alloc(self, message: Message, data: memoryview) -> Reply:
        usage = number(message, "usage", USAGES - 1)
        if usage == WEIGHT:
            raise RequestError("weights are read from files of this host: expected the message load")
        buffer = self.device.alloc(number(message, "size", MOST_SIZE, 1), usage)
        made = self._number()
        self._buffers[made] = (buffer, usage)
        return {"buffer": made}, b""

    def _load(self, message: Message, data: memoryview) -> Reply:
        packed, gguf = read_packed(message), self._file(message)
        for name, told in packed.items():
            info = gguf.info(name)
            stack, rows, columns = (1, *info.shape)[-3:] if len(info.shape) > 1 else (0, 0, 0)
            size = self.device.packed(info.type_id, stack, rows, columns)
            if not size or told != PackedWeight(info.type_id, stack, rows, columns, size):
                raise RequestError(f"packed weight {name:.60}: {self.device.name} does not make {told} of it")

        def progress(done: int, total: int) -> None:
            self._link.send({"progress": [done, total]})

        buffers = {}
        for name, buffer in bind(gguf, self.device, packed, progress).buffers.items():
            made = self._number()
            self._buffers[made] = (buffer, WEIGHT)
            buffers[name] = [made, buffer.size]
        return {"buffers": buffers}, b""

    def _speed(self, message: Message, data: memoryview) -> Reply:
        """The device's speed with a model, as of speeds.py."""
        gguf, again = self._file(message), partial(self._again, self.device)
        bits = number(message, "activations", 16)
        found = speed_of(gguf, self.device, again, repack=bool(message.get("repack")), activations=bits)
        return {"speed": astuple(found)}, b""

    def _again(self, device: Device) -> Device:
        return device.backend.make_device(device.index, self._options)

    def _file(self, message: Message) -> GGUF:
        """The client's model file, as it lies here."""
        model = message.get("model")
        if not isinstance(model, dict):
            raise RequestError(f"model is {model!r:.60}: expected a path and an identity")
        path, identity = Path(text(model, "path")), text(model, "identity", 128)
        tried, other = [], ""
        for place in self._lent.find(path):
            tried.append(str(place))
            if not place.is_file():
                continue
            gguf = open_gguf(place)
            found = weights_identity(gguf)
            if found == identity:
                self._files.append(gguf)
                return gguf
            gguf.close()
            other = f"{place} has other weights: expected {identity[:12]}, found {found[:12]}"
        lacks = other or f"{path.name} is not on this host, where it was looked for as {', '.join(tried)}"
        raise ModelError(
            f"{lacks}: copy the client's file there, or name its folder with `satchel device --models`"
        )

    def _buffer(self, message: Message, key: str = "buffer") -> tuple[Buffer, int]:
        made = message.get(key)
        if type(made) is not int or made not in self._buffers:
            raise RequestError(f"{key} is {made!r:.40}: there is no such buffer")
        return self._buffers[made]

    def _exec(self, message: Message) -> Exec:
        made = message.get("exec")
        if type(made) is not int or made not in self._execs:
            raise RequestError(f"exec is {made!r:.40}: there is no such plan")
        return self._execs[made]

    def _compile(self, message: Message, data: memoryview) -> Reply:
        segment = self._segment(message, data)
        handles = numbers(message, "handles", len(segment.buffers), self._made)
        if not any(spec.name == "step" for spec in segment.buffers):
            raise RequestError("buffers: expected one that is called step")
        buffers = []
        for spec, handle in zip(segment.buffers, handles, strict=True):
            buffer, usage = self._buffer({"buffer": handle})
            if spec.usage != usage or spec.size > buffer.size:
                told = f"usage {spec.usage} and {spec.size:,} bytes"
                raise RequestError(
                    f"buffer {spec.name}: the plan says {told}, it has usage {usage} and {buffer.size:,}"
                )
            buffers.append(buffer)
        exec, made = self.device.compile(segment, buffers), self._number()
        self._execs[made] = exec
        return {"exec": made}, b""

    def _run(self, message: Message, data: memoryview) -> Reply:
        exec = self._exec(message)
        exec.run(pointer(data), len(data))
        return {}, b""

    def _wait(self, message: Message, data: memoryview) -> Reply:
        self._exec(message).wait(number(message, "timeout", 0xFFFFFFFF))
        return {}, b""

    def _range(self, message: Message, at: str, size: int, buffer: Buffer) -> int:
        start = number(message, at, MOST_SIZE)
        if start + size > buffer.size:
            told = f"{size:,} bytes at {start:,} of {buffer.size:,}"
            raise RequestError(f"{message.get('do')}: {told}: they are beyond the buffer's end")
        return start

    def _own(self, message: Message) -> Buffer:
        """A buffer that the client may read and write."""
        buffer, usage = self._buffer(message)
        if usage == WEIGHT:
            raise RequestError("the buffer holds weights, which no other host reads or writes")
        return buffer

    def _write(self, message: Message, data: memoryview) -> Reply:
        buffer = self._own(message)
        buffer.write(self._range(message, "offset", len(data), buffer), data)
        return {}, b""

    def _copy(self, message: Message, data: memoryview) -> Reply:
        buffer, size = self._own(message), number(message, "size", MOST_SIZE)
        buffer.copy(
            self._range(message, "to", size, buffer), self._range(message, "offset", size, buffer), size
        )
        return {}, b""

    def _read(self, message: Message, data: memoryview) -> Reply:
        buffer, size = self._own(message), number(message, "size", MOST_DATA)
        out = np.empty(size, np.uint8)
        buffer.read_into(self._range(message, "offset", size, buffer), out)
        return {}, out.data

    def _free(self, message: Message, data: memoryview) -> Reply:
        buffer, _ = self._buffer(message)
        if any(buffer in exec.buffers for exec in self._execs.values()):
            raise RequestError(f"buffer {message['buffer']}: a plan uses it: release the plan first")
        del self._buffers[message["buffer"]]
        buffer.close()
        return {}, b""

    def _release(self, message: Message, data: memoryview) -> Reply:
        exec = self._exec(message)
        del self._execs[message["exec"]]
        exec.close()
        return {}, b""


def _told(error: Exception) -> list[Any]:
    """An error's kind and text."""
    kind = next(k.__name__ for k in KINDS if isinstance(error, k))
    reason = error.reason if isinstance(error, DeviceLost) else str(error)
    return [kind, reason[:4096]]
