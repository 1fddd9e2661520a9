"""The numba backend: the function table of hal.h filled from Python, for machines without a C compiler. It is
slow.

A handle is the address of a cffi handle whose object NumbaBackend.alive keeps until its closing call. No
exception may cross into C: an entry turns it into a code, and error() gives its text.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from satchel.runtime.backends.numba_steps import NumbaMemory, Operands, Work, Workers, view_of, work_of
from satchel.runtime.device.processors import cores
from satchel.runtime.graph import Array

UNSUPPORTED, NO_MEMORY, INVALID, FAILED = -1, -2, -3, -4
HOST_MEMORY = 1
CODES: tuple[tuple[type[BaseException], int], ...] = (
    (NotImplementedError, UNSUPPORTED),
    (MemoryError, NO_MEMORY),
    (ValueError, INVALID),
    (TypeError, INVALID),
)
KEPT = 4  # decoded weights are cached in up to 1/4 of the machine's memory

# A struct does not keep its callbacks alive, so this maps each struct to them.
_CALLBACKS: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class NumbaDevice:
    workers: Workers
    allocations: int = 0


@dataclass(slots=True)
class NumbaBuffer:
    device: NumbaDevice
    memory: NumbaMemory
    keep: Any


@dataclass(frozen=True, slots=True)
class NumbaExec:
    device: NumbaDevice
    step: NumbaMemory
    steps: tuple[tuple[Work, Operands], ...]


def memory_of_machine() -> tuple[int, int]:
    """(total, free) bytes; 0 if the system does not tell."""
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    if "SC_PHYS_PAGES" not in names or "SC_AVPHYS_PAGES" not in names:
        return 0, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")


class NumbaBackend:
    """The entries of hal_backend, one method each, on Python objects behind opaque handles."""

    def __init__(self, ffi: Any) -> None:
        self.ffi = ffi
        self.alive: dict[int, Any] = {}
        self.local = threading.local()
        self.name = ffi.new("char[]", b"numba")

    def handle(self, kind: str, value: object) -> Any:
        """A new handle of the value, valid until drop()."""
        made = self.ffi.new_handle(value)
        self.alive[int(self.ffi.cast("uintptr_t", made))] = made
        return self.ffi.cast(f"hal_{kind} *", made)

    def value(self, handle: Any) -> Any:
        address = int(self.ffi.cast("uintptr_t", handle))
        if address not in self.alive:
            raise ValueError("the handle is not open")
        return self.ffi.from_handle(self.alive[address])

    def drop(self, handle: Any) -> Any:
        """Closes a handle; gives its value."""
        value = self.value(handle)
        del self.alive[int(self.ffi.cast("uintptr_t", handle))]
        return value

    def fail(self, error: BaseException) -> int:
        """Stores the message for error(); gives the code."""
        text = f"{type(error).__name__}: {error}".encode(errors="replace")
        self.local.error = self.ffi.new("char[]", text)
        return next((code for kind, code in CODES if isinstance(error, kind)), FAILED)

    # entries, in the order of hal.h

    def score(self) -> int:
        return 1

    def count(self) -> int:
        return 1

    def open(self, index: int, options: Any, out: Any) -> int:
        if index:
            raise ValueError(f"there is one numba device, 0; asked for {index}")
        threads = options.threads if options and options.threads > 0 else cores()
        pool = ThreadPoolExecutor(threads, "satchel-numba")
        device = NumbaDevice(Workers(pool, threads, memory_of_machine()[0] // KEPT))
        out[0] = self.handle("device", device)
        return 0

    def close(self, device: Any) -> None:
        self.drop(device).workers.pool.shutdown()

    def info(self, device: Any, out: Any) -> None:
        found: NumbaDevice = self.value(device)
        out.name, out.variant = b"numba (no C kernels: slow)", b"numba"
        out.memory_total, out.memory_free = memory_of_machine()
        out.allocations, out.threads, out.flags = found.allocations, found.workers.threads, HOST_MEMORY

    def alloc(self, device: Any, describe: Any, out: Any) -> int:
        return self.buffer(device, np.zeros(describe.size, np.uint8), None, out)

    def wrap(self, device: Any, host: Any, size: int, out: Any) -> int:
        view = self.ffi.buffer(host, size)
        return self.buffer(device, np.frombuffer(view, np.uint8), view, out)

    def buffer(self, device: Any, data: Array, keep: Any, out: Any) -> int:
        owner: NumbaDevice = self.value(device)
        owner.allocations += 1
        out[0] = self.handle("buffer", NumbaBuffer(owner, NumbaMemory(data), keep))
        return 0

    def free(self, buffer: Any) -> None:
        found: NumbaBuffer = self.drop(buffer)
        found.memory.forget(found.device.workers)

    def write(self, buffer: Any, offset: int, source: Any, size: int) -> int:
        found: NumbaBuffer = self.value(buffer)
        found.memory.forget(found.device.workers)
        self.part(found, offset, size)[:] = np.frombuffer(self.ffi.buffer(source, size), np.uint8)
        return 0

    def read(self, buffer: Any, offset: int, to: Any, size: int) -> int:
        self.ffi.memmove(to, self.part(self.value(buffer), offset, size), size)
        return 0

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, size: int) -> int:
        target: NumbaBuffer = self.value(to)
        target.memory.forget(target.device.workers)
        self.part(target, to_offset, size)[:] = self.part(self.value(source), offset, size).copy()
        return 0

    def part(self, buffer: NumbaBuffer, offset: int, size: int) -> Array:
        if offset + size > len(buffer.memory.data):
            raise ValueError(f"bytes {offset}..{offset + size} of a buffer of {len(buffer.memory.data)}")
        return buffer.memory.data[offset : offset + size]

    def supports(self, device: Any, plan: Any, step: int) -> int:
        row = plan.steps[step]
        known = work_of(self.op(plan, row)) is not None
        # Only types matter here, so every view gets memory that is large enough.
        memory = [NumbaMemory(np.broadcast_to(np.uint8(0), 1 << 62))] * plan.n_buffers
        for i in range(row.n_in + 1):
            view_of(plan.views[row.view + i], memory)
        return int(known)

    def compile(self, device: Any, plan: Any, buffers: Any, out: Any) -> int:
        owner: NumbaDevice = self.value(device)
        memory = [self.value(buffers[i]).memory for i in range(plan.n_buffers)]
        steps = tuple(self.step(owner, plan, plan.steps[i], memory) for i in range(plan.n_steps))
        owner.allocations += 1
        out[0] = self.handle("exec", NumbaExec(owner, memory[plan.step_buffer], steps))
        return 0

    def step(
        self, owner: NumbaDevice, plan: Any, row: Any, memory: list[NumbaMemory]
    ) -> tuple[Work, Operands]:
        name = self.op(plan, row)
        work = work_of(name)
        if work is None:
            raise NotImplementedError(f"numba has no op {name}")
        views = [view_of(plan.views[row.view + i], memory) for i in range(row.n_in + 1)]
        return work, Operands(views[0], tuple(views[1:]), self.arguments(name, plan, row), owner.workers)

    def op(self, plan: Any, row: Any) -> str:
        return str(self.ffi.string(plan.ops[row.op].name).decode())

    def arguments(self, name: str, plan: Any, row: Any) -> dict[str, Any]:
        """Fields of the op's argument struct; empty if the op has none."""
        size = plan.ops[row.op].arg_size
        if not size:
            return {}
        kind = self.ffi.typeof(f"arg_{name}")
        if self.ffi.sizeof(kind) != size or row.arg + size > plan.n_args:
            raise ValueError(
                f"the arguments of {name} take {self.ffi.sizeof(kind)} bytes, the plan has {size}"
            )
        struct = self.ffi.cast(self.ffi.typeof(f"arg_{name} *"), plan.args + row.arg)
        return {field: getattr(struct, field) for field, _ in kind.fields}

    def run(self, exec: Any, block: Any, size: int) -> int:
        found: NumbaExec = self.value(exec)
        if size > len(found.step.data):
            raise ValueError(f"a step block of {size} bytes, the plan takes {len(found.step.data)}")
        found.step.data[:size] = np.frombuffer(self.ffi.buffer(block, size), np.uint8)
        counts = found.step.data[:32].view(np.int32)
        with np.errstate(all="ignore"):
            for work, operands in found.steps:
                work(operands, counts)
        return 0

    def wait(self, exec: Any, timeout_ms: int) -> int:
        return 0

    def release(self, exec: Any) -> None:
        self.drop(exec)

    def error(self) -> Any:
        return getattr(self.local, "error", self.ffi.NULL)


ENTRIES = (
    "score", "count", "open", "close", "info", "alloc", "wrap", "free", "write", "read", "copy", "supports",
    "compile", "run", "wait", "release", "error",
)  # fmt: skip


def make_backend(ffi: Any) -> Any:
    """A hal_backend struct with this module's entries; optional entries that it lacks stay NULL."""
    backend = NumbaBackend(ffi)
    table = ffi.new("hal_backend *")
    types = dict(ffi.typeof("hal_backend").fields)
    callbacks = []
    for name in ENTRIES:
        callback = ffi.callback(types[name].type, guarded(backend, getattr(backend, name)))
        setattr(table, name, callback)
        callbacks.append(callback)
    table.name = backend.name
    _CALLBACKS[table] = (backend, callbacks)
    return table


def guarded(backend: NumbaBackend, entry: Callable[..., Any]) -> Callable[..., Any]:
    """The entry with exceptions turned into a code, or only stored if it returns no code."""

    def call(*args: Any) -> Any:
        try:
            return entry(*args)
        except BaseException as error:
            return backend.fail(error)

    def quiet(*args: Any) -> None:
        try:
            entry(*args)
        except BaseException as error:
            backend.fail(error)

    return quiet if entry.__name__ in ("close", "info", "free", "release") else call
