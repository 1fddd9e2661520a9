"""Thin wrappers over hal.h: Backend (a library), Device, Buffer and Exec. Each ends with close(), children
before parents.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from satchel import cext
from satchel.errors import DeviceError, RequestError
from satchel.formats.resource import Resource
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.graph import Array
from satchel.runtime.log import LOG
from satchel.runtime.plan import Segment, align_up

SAMPLING = cext.dtype_of("hal_sampling")
HOST_MEMORY, TEST_ONLY, EXPANDS = 1, 2, 4  # HAL_HOST_MEMORY, HAL_TEST_ONLY and HAL_EXPANDS of hal.h
MOST_KERNELS = 64  # most kernels that are listed for a step
STATE, CONST, WEIGHT, OUT, LINK, PREFETCH = 2, 1, 0, 5, 6, 7
FAST, PROFILE, DETERMINISTIC = 1, 2, 4  # HAL_FAST, HAL_PROFILE and HAL_DETERMINISTIC
# Backends whose results are batch-invariant: the bits of a row depend neither on the rest of the batch nor on
# threads or the size of a step. GPUs keep that only where they are opened with DETERMINISTIC.
DETERMINISTIC_BACKENDS = frozenset({"cpu", "remote", "cuda", "hip", "sycl", "emulated", "dry"})
MEASURE = {"read": 0, "int8": 1, "bf16": 2, "f32": 3}  # HAL_MEASURE_ of hal.h
NAME = 128  # HAL_NAME of hal.h
C = TypeVar("C", "Buffer", "Exec", "PinnedMemory")
ABI = int(cext.ABI_HASH)  # of hal.h: tables made under another one mean something else
# Structs of a segment's tables, by the names of its fields.
TABLES = {
    "step_table": cext.dtype_of("hal_step"),
    "view_table": cext.dtype_of("hal_view"),
    "op_table": cext.dtype_of("hal_op"),
}
LOST = -6  # HAL_E_LOST of hal.h
KINDS = {
    -1: "unsupported",
    -2: "out of memory",
    -3: "invalid",
    -4: "device failed",
    -5: "timed out",
    LOST: "lost",
}


class Info(NamedTuple):
    """What a device reports of itself; memory in bytes."""

    name: str
    variant: str
    memory_total: int
    memory_free: int
    allocations: int
    threads: int
    flags: int
    image: str = ""  # the compiled kernels in use, where a library has several


class KernelOverride(NamedTuple):
    """The kernel that a step takes instead of the device's default; hal_kernel_override of hal.h."""

    step: int
    name: str = ""  # one of the device's own kernels; "": a custom kernel
    kernel: int = 0  # number of a custom kernel, from add_kernel()
    groups: tuple[int, int, int] = (0, 0, 0)  # its launch grid, with threads, local and scratch
    threads: int = 0
    local: int = 0
    scratch: int = 0


OverridesOf = Callable[[Segment], Sequence[KernelOverride]]


@dataclass(frozen=True, slots=True)
class BackendLibrary:
    """A backend library that was found."""

    name: str
    path: str
    reason: str  # why it cannot be used; "": it can
    score: int  # negative if it or its driver is installed but broken
    table: Any = None


def error_text(table: Any) -> str:
    """The message of a library's last error."""
    message = table.error()
    text = str(cext.ffi.string(message).decode(errors="replace")) if message else ""
    return text or "no reason given"


def no_overrides(device: Device) -> OverridesOf:
    """Each step takes the device's default kernel."""
    return lambda segment: ()


class Backend:
    """One library and its function table. choose_kernels: gives the kernel overrides of a device."""

    def __init__(self, found: BackendLibrary) -> None:
        self.name, self.path, self.score = found.name, found.path, found.score
        self.table = found.table
        self.choose_kernels: Callable[[Device], OverridesOf] = no_overrides

    def check_deterministic(self) -> None:
        """Raises RequestError unless it promises batch-invariant results."""
        if self.name not in DETERMINISTIC_BACKENDS:
            raise RequestError(
                f"deterministic: {self.name} does not promise answers that depend on their request alone: "
                "take the device cpu"
            )

    def count(self) -> int:
        """Number of its devices."""
        return int(self.table.count())

    def check(self, code: int, what: str) -> None:
        if code:
            raise DeviceError(f"{self.name}: {what}: {KINDS.get(code, code)}: {error_text(self.table)}")

    def open(
        self,
        index: int = 0,
        *,
        threads: int = 0,
        threads_decode: int = 0,
        fast: bool = False,
        profile: bool = False,
        deterministic: bool = False,
    ) -> Device:
        """Opens a device.

        threads: 0: the device decides.
        threads_decode: threads for steps of one token per slot; 0: the same.
        fast: products may round weights and activations to 8 bits.
        profile: each step is timed.
        deterministic: every bit of a row depends on that row alone; RequestError if the backend does not
        promise it.
        """
        if deterministic:
            self.check_deterministic()
        flags = FAST * fast | PROFILE * profile | DETERMINISTIC * deterministic
        options = {"threads": threads, "threads_decode": threads_decode, "flags": flags}
        device = self.make_device(index, options)
        device.overrides_of = self.choose_kernels(device)
        return device

    def make_device(self, index: int, options: Mapping[str, int]) -> Device:
        """Opens a device with the fields of hal_options."""
        return Device(self, index, options)


def device_name(backend: str, index: int) -> str:
    """The name of a backend's device for users: NAME or NAME:INDEX."""
    return f"{backend}:{index}" if index else backend


class Device(Resource):
    """An open device. It makes buffers and execs, which must be closed before it; close() closes those that
    are left.
    """

    def __init__(self, backend: Backend, index: int, options: Mapping[str, int]) -> None:
        self.backend, self.index, self._open = backend, index, True
        self.name = device_name(backend.name, index)
        self.profiled = bool(options["flags"] & PROFILE)
        self.deterministic = bool(options["flags"] & DETERMINISTIC)
        self.overrides_of = no_overrides(self)  # kernel overrides of a plan
        asked = cext.ffi.new("hal_options *", dict(options))
        out = cext.ffi.new("hal_device **")
        backend.check(backend.table.open(index, asked, out), f"device {index} cannot be opened")
        self.handle = out[0]
        self._children: weakref.WeakSet[Buffer | Exec | PinnedMemory] = weakref.WeakSet()

    def check(self, code: int, what: str) -> None:
        """Raises DeviceError for a code other than 0, DeviceLost if the device is lost."""
        if code == LOST:
            raise DeviceLost(self.name, f"{what}: {error_text(self.backend.table)}")
        self.backend.check(code, what)

    def info(self) -> Info:
        raw = cext.ffi.new("hal_info *")
        self.backend.table.info(self.handle, raw)
        name, variant, image = (
            cext.ffi.string(text).decode(errors="replace") for text in (raw.name, raw.variant, raw.image)
        )
        numbers = (raw.memory_total, raw.memory_free, raw.allocations, raw.threads, raw.flags)
        total, free, allocations, threads, flags = (int(n) for n in numbers)
        return Info(name, variant, total, free, allocations, threads, flags, image)

    @property
    def can_wrap(self) -> bool:
        return bool(self.backend.table.wrap)

    def alloc(self, size: int, usage: int) -> Buffer:
        """A zeroed buffer of `size` bytes."""
        out = cext.ffi.new("hal_buffer **")
        describe = cext.ffi.new("hal_bufdesc *", {"size": size, "usage": usage, "align": 0})
        self.check(self.backend.table.alloc(self.handle, describe, out), f"cannot allocate {size:,} bytes")
        return self._adopt(Buffer(self, out[0], size, None))

    def wrap(self, memory: Any) -> Buffer:
        """A read-only buffer over host memory, kept alive as long as the buffer is."""
        view = cext.ffi.from_buffer("uint8_t[]", memory)
        out = cext.ffi.new("hal_buffer **")
        self.check(self.backend.table.wrap(self.handle, view, len(view), out), "cannot use host memory")
        return self._adopt(Buffer(self, out[0], len(view), view))

    @property
    def can_pin(self) -> bool:
        return bool(self.backend.table.pin)

    def pin(self, memory: Any, start: int, size: int, writable: bool = False) -> PinnedMemory:
        """Page-locks bytes of host memory (anything with a buffer): until close(), buffers are written from
        where it lies, and read to where it lies if it is writable. Raises DeviceError where the driver does
        not lock these pages.
        """
        if not self.can_pin:
            raise DeviceError(f"{self.name}: it locks no host memory")
        view = cext.ffi.from_buffer("uint8_t[]", memory)
        code = self.backend.table.pin(self.handle, view + start, size, writable)
        self.check(code, "host memory cannot be locked")
        return self._adopt(PinnedMemory(self, view + start, view))

    def pin_buffer(self, buffer: Buffer, otherwise: str) -> PinnedMemory | None:
        """Page-locks another device's buffer in host memory, which has pages of its own. None where it lies
        elsewhere, and, with a warning, where the driver does not lock them. otherwise: what that means.
        """
        memory = buffer.memory
        if memory is None:
            return None
        try:
            return self.pin(memory, 0, align_up(buffer.size, PAGESIZE), writable=True)
        except DeviceLost:
            raise
        except DeviceError as error:
            LOG.warning("%s: %s", otherwise, error)
            return None

    def packed(self, format: int, stack: int, rows: int, columns: int) -> int:
        """Bytes of a stack of (rows, columns) matrices of this format in the device's packed layout; 0: it is
        not packed.
        """
        table = self.backend.table
        if not (table.packed and table.pack):
            return 0
        return int(table.packed(self.handle, format, stack, rows, columns))

    def measure(self, what: str, size: int = 0) -> float | None:
        """Measures a peak rate per second: "read": bytes read from `size` bytes of memory; "int8", "bf16",
        "f32": multiply-adds of such operands. None if the device has no such measurement.
        """
        out = cext.ffi.new("double *")
        code = self.backend.table.measure(self.handle, MEASURE[what], size, out) if self.measures else -1
        if code != -1:
            self.check(code, f"{what} cannot be measured")
        return None if code else float(out[0])

    @property
    def measures(self) -> bool:
        return bool(self.backend.table.measure)

    def refusal(self, segment: Segment) -> str:
        """Why the device cannot run a step of this segment; "" if it can run all."""
        plan, _keep = plan_struct(segment, 0, self.overrides_of(segment))
        for i in range(len(segment.step_table)):
            if self.backend.table.supports(self.handle, plan, i) != 1:
                return error_text(self.backend.table)
        return ""

    @property
    def has_choices(self) -> bool:
        """Whether some steps can have several kernels: without it `kernels` is always empty."""
        return bool(self.backend.table.kernels)

    def kernels(self, segment: Segment, step: int) -> tuple[str, ...]:
        """Names of the device's own kernels for a step, the default first."""
        if not self.has_choices:
            return ()
        plan, _keep = plan_struct(segment, 0)
        names = cext.ffi.new("char[]", NAME * MOST_KERNELS)
        n = int(self.backend.table.kernels(self.handle, plan, step, names, MOST_KERNELS))
        self.check(min(n, 0), "the kernels of a step")
        return tuple(cext.ffi.string(names + NAME * i).decode() for i in range(min(n, MOST_KERNELS)))

    def add_kernel(self, image: bytes, entry: str) -> int:
        """Loads a custom kernel; gives its number. image: see add_kernel of hal.h."""
        if not self.backend.table.add_kernel:
            raise DeviceError(f"kernel {entry}: {self.backend.name} takes no kernels but its own")
        out = cext.ffi.new("uint32_t *")
        code = self.backend.table.add_kernel(self.handle, cext.ffi.from_buffer(image), entry.encode(), out)
        self.check(code, "a kernel was refused")
        return int(out[0])

    def compile(
        self, segment: Segment, buffers: Sequence[Buffer], overrides: Sequence[KernelOverride] | None = None
    ) -> Exec:
        """A segment ready to run. overrides: its kernel overrides; None: those of `overrides_of`."""
        step = next(i for i, b in enumerate(segment.buffers) if b.name == "step")
        plan, _keep = plan_struct(
            segment, step, self.overrides_of(segment) if overrides is None else overrides
        )
        handles = cext.ffi.new("hal_buffer *[]", [b.handle for b in buffers])
        out = cext.ffi.new("hal_exec **")
        self.check(self.backend.table.compile(self.handle, plan, handles, out), "the plan was refused")
        return self._adopt(Exec(self, out[0], tuple(buffers), len(segment.step_table)))

    def _adopt(self, child: C) -> C:
        self._children.add(child)
        return child

    def close(self) -> None:
        if not self._open:
            return
        for child in sorted(self._children, key=lambda c: not isinstance(c, Exec)):
            child.close()
        self._open = False
        self.backend.table.close(self.handle)


class Buffer:
    """Memory of a device."""

    def __init__(self, device: Device, handle: Any, size: int, keep: Any) -> None:
        self.device, self.handle, self.size, self._keep = device, handle, size, keep
        self._table = device.backend.table

    @property
    def memory(self) -> Array | None:
        """Its bytes (uint8) where they lie in host memory, until close(); None: they lie elsewhere."""
        if not self._table.host:
            return None
        at = cext.ffi.buffer(self._table.host(self.handle), self.size)
        return np.frombuffer(at, np.uint8)

    def write(self, offset: int, data: Any) -> None:
        """Copies bytes (anything with a buffer) to the offset."""
        view = cext.ffi.from_buffer(data)
        self.device.check(self._table.write(self.handle, offset, view, len(view)), "write")

    def pack(self, offset: int, format: int, matrices: tuple[int, int, int], data: Any) -> None:
        """Packs a weight in the device's layout, from its bytes in the file's; matrices: stack, rows,
        columns. Releases the interpreter lock.
        """
        source = cext.ffi.from_buffer(data)
        code = self._table.pack(self.handle, offset, format, *matrices, source)
        self.device.check(code, "a weight cannot be packed")

    def copy(self, to: int, offset: int, size: int) -> None:
        """Copies bytes within the buffer, from `offset` to `to`; the ranges must not overlap."""
        if self._table.copy:
            code = self._table.copy(self.handle, to, self.handle, offset, size)
            self.device.check(code, "copy")
            return
        bounce = np.empty(size, np.uint8)
        self.read_into(offset, bounce)
        self.write(to, bounce)

    def read_into(self, offset: int, out: Array) -> None:
        """Fills a contiguous array from the offset, after pending work."""
        target = cext.ffi.from_buffer(out, require_writable=True)
        self.device.check(self._table.read(self.handle, offset, target, out.nbytes), "read")

    def view(self, offset: int, size: int) -> Array:
        """Bytes (uint8) from the offset: where they lie in host memory, otherwise a copy."""
        if (memory := self.memory) is not None:
            return memory[offset : offset + size]
        out = np.empty(size, np.uint8)
        self.read_into(offset, out)
        return out

    def close(self) -> None:
        if self.handle is not None:
            self._table.free(self.handle)
            self.handle, self._keep = None, None


class PinnedMemory:
    """Host memory that is page-locked for a device. close() waits for what is sent from it."""

    def __init__(self, device: Device, at: Any, keep: Any) -> None:
        self.device, self._at, self._keep = device, at, keep

    def close(self) -> None:
        if self._keep is not None:
            self.device.backend.table.unpin(self.device.handle, self._at)
            self._at = self._keep = None


class Exec:
    """A segment ready to run. It keeps its buffers alive. run() may return before the work is done; wait()
    waits for it.
    """

    def __init__(self, device: Device, handle: Any, buffers: tuple[Buffer, ...], n_steps: int) -> None:
        self.device, self.handle, self.buffers, self.n_steps = device, handle, buffers, n_steps
        self._run: Callable[[Any, Any, int], int] = device.backend.table.run

    def run(self, block: Any, size: int) -> None:
        """block: the step block as a cffi pointer."""
        code = self._run(self.handle, block, size)
        if code:
            self.device.check(code, "a step failed")

    def wait(self, timeout_ms: int = 0xFFFFFFFF) -> None:
        self.device.check(self.device.backend.table.wait(self.handle, timeout_ms), "waiting for a step")

    def times(self) -> list[int]:
        """Nanoseconds spent in each step since compile(), if the device was opened with `profile`."""
        table = self.device.backend.table
        if not (table.times and self.device.profiled):
            reason = "open it with profile" if table.times else "it cannot"
            raise DeviceError(f"{self.device.name} does not count the time of steps: {reason}")
        out = cext.ffi.new("uint64_t[]", self.n_steps)
        self.device.check(table.times(self.handle, out, self.n_steps), "times of the steps")
        return list(out)

    def close(self) -> None:
        if self.handle is not None:
            self.device.backend.table.release(self.handle)
            self.handle, self.buffers = None, ()


def pointer(memory: Any) -> Any:
    """A cffi pointer to host memory that does not move, such as a bytearray."""
    return cext.ffi.from_buffer("uint8_t[]", memory)


def bytes_at(memory: Any, size: int) -> memoryview:
    """The first bytes behind a cffi pointer."""
    return memoryview(cext.ffi.buffer(memory, size))


def include() -> Path:
    """Folder of the headers for custom kernels and backends."""
    return cext.include()


def read_arg(op: str, raw: bytes) -> dict[str, Any]:
    """An op's arguments, decoded from a plan's table."""
    return cext.unpack_arg(op, raw)


def plan_struct(
    segment: Segment, step_buffer: int, overrides: Sequence[KernelOverride] = ()
) -> tuple[Any, list[Any]]:
    """The hal_plan of a segment's tables, and the objects that must outlive it."""
    describe = np.zeros(len(segment.buffers), cext.dtype_of("hal_bufdesc"))
    describe["size"] = [b.size for b in segment.buffers]
    describe["usage"] = [b.usage for b in segment.buffers]
    args = np.frombuffer(segment.args or b"\0" * 8, np.uint8)
    table = np.zeros(len(overrides), cext.dtype_of("hal_kernel_override"))
    for row, override in zip(table, overrides, strict=True):
        for name, value in override._asdict().items():
            row[name] = value.encode() if isinstance(value, str) else value
    arrays = {
        "overrides": ("hal_kernel_override", table),
        "steps": ("hal_step", segment.step_table),
        "views": ("hal_view", segment.view_table),
        "buffers": ("hal_bufdesc", describe),
        "ops": ("hal_op", segment.op_table),
    }
    keep: list[Any] = [args, describe]
    plan = cext.ffi.new("hal_plan *")
    for name, (struct, array) in arrays.items():
        setattr(plan, name, cext.ffi.cast(f"{struct} *", cext.ffi.from_buffer(array)))
        setattr(plan, f"n_{name}", len(array))
        keep.append(array)
    plan.args = cext.ffi.cast("uint8_t *", cext.ffi.from_buffer(args))
    plan.n_args, plan.step_buffer = len(segment.args), step_buffer
    return plan, keep


def open_device(
    backend: Backend,
    threads: int,
    threads_batch: int,
    *,
    fast: bool = False,
    profile: bool = False,
    deterministic: bool = False,
    index: int = 0,
) -> Device:
    """Opens a backend's device with the numbers of threads for decoding and for prompts, as in Options."""
    if threads_batch and not threads:
        with backend.open() as usual:
            threads = usual.info().threads
    return backend.open(
        index,
        threads=threads_batch or threads,
        threads_decode=threads if threads_batch else 0,
        fast=fast,
        profile=profile,
        deterministic=deterministic,
    )
