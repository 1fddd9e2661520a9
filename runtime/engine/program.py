"""A plan ready to run: buffers bound, execs compiled, and the step block as numpy arrays to fill in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from satchel.errors import DeviceError
from satchel.quant import FORMATS
from satchel.runtime.compiler.memory import KEPT, stride_of
from satchel.runtime.device.device import (
    CONST,
    HOST_MEMORY,
    OUT,
    SAMPLING,
    STATE,
    Buffer,
    Device,
    Exec,
    PinnedMemory,
    pointer,
)
from satchel.runtime.device.group import GroupDevice, GroupExec
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.engine.group_check import GroupCheck
from satchel.runtime.graph import Array, Dim
from satchel.runtime.ops import OPS
from satchel.runtime.plan import COUNTS_BYTES, DeviceTransfer, Plan, Segment
from satchel.runtime.sampling import Sampling
from satchel.runtime.weights.residency import StepWeights

NO_GROUPS: Mapping[str, GroupDevice] = MappingProxyType({})
LOCKED = 1 << 20  # bytes of values that cross devices from which on their pages are locked


class DeviceMemory:
    """A device, and its memory for the states of a model, which all plans share."""

    def __init__(self, device: Device, state_bytes: int) -> None:
        self.device = device
        try:
            self.state = device.alloc(max(state_bytes, 64), STATE)
        except DeviceLost:
            raise
        except DeviceError as error:
            less = "a smaller context (-c), fewer slots (-np) or a quantized cache (-ctk q8_0 -ctv q8_0)"
            raise DeviceError(f"{error}: there is no room for the KV cache; {less} needs less") from None
        self._hand: ThreadPoolExecutor | None = None

    @property
    def hand(self) -> ThreadPoolExecutor:
        """Worker thread for segments of a device that computes on the host, so that the caller can go on."""
        if self._hand is None:
            self._hand = ThreadPoolExecutor(1, f"satchel-{self.device.name}")
        return self._hand

    def close(self) -> None:
        if self._hand is not None:
            self._hand.shutdown()
        self.device.close()


class Program:
    """One compiled plan with its buffers. The step block is one block of memory that never moves.

    fields: the plan's inputs by name, as views of the step block with the bucket's full shape.
    counts: the step block's counts (8), int32.
    seconds: time per device in the last run, spent by the host on it and waiting for it; only with several
    devices.
    busy: a step was launched and its output is not read yet.
    rows: the `mark` of the StepRows that its fields hold; None: none yet.
    sampled: the sampling records that the field params holds; [] if it holds others.
    fixed: the `mark` of the StepRows whose host-side sampling its fields hold for every step, and the bytes
    of the step block up to there.
    worked: seconds of the turns of its last run, where several steps are under way; 0: it ran alone.
    beside: a program of the same plan whose buffers this one shares, except for those of the usages `apart`.
    One may run while the other's output is unread.
    second: the next program of the same plan, if there is one; closed with it.
    """

    apart: tuple[int, ...] = (OUT,)

    def __init__(
        self,
        plan: Plan,
        memory: Mapping[str, DeviceMemory],
        weights: StepWeights,
        beside: Program | None = None,
        groups: Mapping[str, GroupDevice] = NO_GROUPS,
    ) -> None:
        self.plan, self.busy, self._weights = plan, False, weights
        self.worked = 0.0
        self.rows: object = None
        self.beside = beside
        self.second: Program | None = None
        self.sampled: list[Sampling] = []
        self.fixed: tuple[object, int] = (object(), 0)
        self._layers = [(weights.pagers.get(s.device), s.steps[0].label) for s in plan.segments]
        self._pagers = tuple(weights.pagers.values())
        self._hands = {i: memory[plan.segments[i].device].hand for i in _beside(plan, memory)}
        self._begun: dict[str, Future[None]] = {}  # work of the threads, by device
        self.block = bytearray(plan.block_bytes)
        self._pointer = pointer(self.block)
        self.counts = np.frombuffer(self.block, np.int32, COUNTS_BYTES // 4)
        self.fields = {f.name: self._field(f.name) for f in plan.fields}
        # The device or group whose turn it is when a device computes.
        self._stage = {own.device: segment.device for segment in plan.segments for own in segment.all}
        self._own: dict[tuple[str, str], Buffer] = {}
        self._shared = {} if beside is None else beside.inner
        self._execs: list[tuple[Exec | GroupExec, tuple[DeviceTransfer, ...], str]] = []
        for segment in plan.segments:
            exec = self._compiled(segment, memory, groups)
            self._execs.append((exec, segment.transfers, segment.device))
        self.device, self.seconds = self._execs[0][2], dict[str, float]()
        crossing = [t for s in plan.segments for t in s.transfers]
        self._host = {t: found for t in crossing if (found := self._on_host(t))}
        copied = [t for t in crossing if t not in self._host]
        largest = max((t.rows * t.stride for t in copied if t.before < 0), default=0)
        self._bounce = np.empty(largest, np.uint8)
        self._early = {t: np.empty(t.rows * t.stride, np.uint8) for t in copied if t.before >= 0}
        self._early_of: dict[int, list[DeviceTransfer]] = {}
        for t in (t for t in crossing if t.before >= 0):
            self._early_of.setdefault(t.before, []).append(t)
        firsts = [segment.steps[0].op for segment in plan.segments]
        self._sizes = [_read_bytes(plan, segment) for segment in plan.segments]
        self._gate = next((i for i, op in enumerate(firsts) if OPS[op].waits), -1)
        self._single = self._execs[0][0] if len(self._execs) == 1 else None
        self._out = self._own[plan.output.device, plan.output.buffer]
        # All members of a group hold an output, and the host writes it on each.
        first = {s.all[0].device: s for s in plan.segments}
        self._holders = {o.device: tuple(m.device for m in first[o.device].all) for o in plan.outputs}
        self.weight_bytes, self.n_steps = plan.weight_bytes, plan.n_steps
        keeps = any(name == KEPT for _, name in self._own)
        self._check = GroupCheck(plan, self._own) if keeps else None
        self._locked = list(self._lock(memory))

    def _compiled(
        self, segment: Segment, memory: Mapping[str, DeviceMemory], groups: Mapping[str, GroupDevice]
    ) -> Exec | GroupExec:
        buffers = [
            [self._buffer(memory[own.device], own.device, b.name, b.usage, b.size) for b in own.buffers]
            for own in segment.all
        ]
        if segment.members:
            return groups[segment.device].compile_group(segment.members, buffers)
        return memory[segment.device].device.compile(segment, buffers[0])

    @property
    def all(self) -> Iterator[Program]:
        """It and the programs after it."""
        yield self
        if self.second is not None:
            yield from self.second.all

    @property
    def inner(self) -> Mapping[tuple[str, str], Buffer]:
        """Its buffers by device and name, without those of weights and states."""
        return self._own

    def _field(self, name: str) -> Array:
        field = next(f for f in self.plan.fields if f.name == name)
        shape = tuple(self.plan.bucket.size(d) for d in field.type.shape)
        if name == "params":
            return np.frombuffer(self.block, SAMPLING, shape[0], field.offset)
        dtype = FORMATS[field.type.format].dtype
        return np.frombuffer(self.block, dtype, int(np.prod(shape)), field.offset).reshape(shape)

    def _buffer(self, memory: DeviceMemory, device: str, name: str, usage: int, size: int) -> Buffer:
        if name in self._weights.devices[device].buffers:
            return self._weights.devices[device].buffers[name]
        if name == "state":
            return memory.state
        if usage not in self.apart and (device, name) in self._shared:
            return self._shared[device, name]
        if (device, name) not in self._own:
            buffer = memory.device.alloc(max(size, 64), usage)
            if usage == CONST and self.plan.consts[device]:
                buffer.write(0, self.plan.consts[device])
            self._own[device, name] = buffer
        return self._own[device, name]

    def _on_host(self, t: DeviceTransfer) -> tuple[str, Array] | None:
        """The device of a transfer whose buffer lies in host memory, and the value's place there: its other
        devices copy from and to that place. None where none does. Of a value that is read early the place is
        a target's: in the source's the next segment may write another.
        """
        ends = ((t.source, t.source_at), *t.targets)
        for device, (name, at) in ends if t.before < 0 else t.targets:
            memory = self._own[device, name].memory
            if memory is not None:
                return device, memory[at : at + t.rows * t.stride]
        return None

    def _lock(self, memory: Mapping[str, DeviceMemory]) -> Iterator[PinnedMemory]:
        """Locks the pages of values that cross, for the first device that copies from such pages itself."""
        device = next((m.device for m in memory.values() if m.device.can_pin), None)
        if device is None:
            return
        places = dict.fromkeys(
            (name, at[0])
            for t, (name, _) in self._host.items()
            for holder, at in ((t.source, t.source_at), *t.targets)
            if holder == name
        )
        for place in places:
            twice = f"values between {place[0]} and {device.name} are copied twice"
            if self._own[place].size >= LOCKED and (locked := device.pin_buffer(self._own[place], twice)):
                yield locked

    def run(self, between: Callable[[], int] | None = None) -> None:
        """Runs one step on the current fields. between: called before the segment that waits for the host; it
        may write fields and outputs, and gives run_sampling()'s `size`.
        """
        if self._single is not None:
            self._single.run(self._pointer, len(self.block))
            return
        with self._settled():
            self.run_forward()
            self.run_sampling(between() if between is not None and self._gate >= 0 else 0)

    def run_forward(self) -> None:
        """Runs the segments before the one that waits for the host; run_sampling() runs the others. Between
        the two the host may write outputs, and fields that only the others read; no other program may run.
        """
        self._reset()
        for pager in self._pagers:
            pager.begin(self.fields, int(self.counts[0]))
        self._run_segments(range(self._gate if self._gate >= 0 else len(self._execs)))

    def run_sampling(self, size: int = 0) -> None:
        """Runs the segment that waits for the host, and those after it. size: bytes of the step block that
        they read; 0: as many as they may.
        """
        if self._gate >= 0:
            self._size_sampling(size)
            self._run_segments(range(self._gate, len(self._execs)))

    def run_at_once(self, size: int) -> None:
        """Both, where nothing waits for the host in between. size: as in run_sampling()."""
        self.run_forward()
        self.run_sampling(size)

    def _reset(self) -> None:
        """Begins the times of a run."""
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def _size_sampling(self, size: int) -> None:
        """Notes how much of the step block the segments from the one on that waits for the host read."""
        for i in range(self._gate, len(self._execs)):
            self._sizes[i] = size or self.plan.block_bytes

    def end_of(self, name: str, rows: int) -> int:
        """Bytes of the step block up to the end of so many rows of a field."""
        field = next(f for f in self.plan.fields if f.name == name)
        return field.offset + rows * stride_of(field.type)

    def _run_segments(self, numbers: range) -> None:
        # Segments are asynchronous: a reader of their results waits for them.
        with self._settled():
            for i in numbers:
                for t in self._early_of.get(i, ()):
                    self._fetch(t)
                for t in self._execs[i][1]:
                    self._transfer(t)
                self._begin(i)
            for pager in self._pagers:
                pager.end()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Waits for the threads of this step before an error of the body leaves: no thread may use the
        buffers when the error is raised.
        """
        try:
            yield
        except BaseException:
            wait([*self._begun.values()])
            self._begun.clear()
            raise

    def _begin(self, i: int) -> None:
        """Begins a segment, after the previous one on its device."""
        device = self._execs[i][2]
        self._done(device)
        if i in self._hands:
            self._begun[device] = self._hands[i].submit(self._do, i)
        else:
            self._do(i)

    def _do(self, i: int) -> None:
        exec, _, device = self._execs[i]
        pager, label = self._layers[i]
        with self._timed(device):
            if pager is not None:
                pager.enter(label)
            exec.run(self._pointer, self._sizes[i])
            if pager is not None:
                pager.entered()

    def _done(self, device: str) -> None:
        """Waits for the worker thread of this device and raises its error here."""
        begun = self._begun.pop(device, None)
        if begun is not None:
            begun.result()

    @contextmanager
    def _timed(self, device: str) -> Iterator[None]:
        """Adds the time that the host spends on a device or waits for it."""
        began = time.perf_counter()
        yield
        stage = self._stage.get(device, device)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began

    def _crossing(self, t: DeviceTransfer) -> Array:
        """Host staging memory of a transfer in this step."""
        rows = t.rows if t.count < 0 else int(self.counts[t.count])
        memory = self._host[t][1] if t in self._host else self._early.get(t, self._bounce)
        return memory[: rows * t.stride]

    def _fetch(self, t: DeviceTransfer) -> None:
        bounce = self._crossing(t)
        if bounce.size:
            self._done(t.source)
            holder = self._host[t][0] if t in self._host else ""
            if holder == t.source:
                return
            if holder:
                self._done(holder)
            with self._timed(t.source):
                self._own[t.source, t.source_at[0]].read_into(t.source_at[1], bounce)

    def _transfer(self, t: DeviceTransfer) -> None:
        bounce = self._crossing(t)
        if t.before < 0:
            self._fetch(t)
        if t.picks and (picked := self._weights.picked) is not None and bounce.size:
            picked(t.picks, bounce.view(np.int32).reshape(-1, t.stride // 4))
        for target, (buffer, at) in t.targets if bounce.size else ():
            self._done(target)
            if t in self._host and self._host[t][0] == target:
                continue
            with self._timed(target):
                self._own[target, buffer].write(at, bounce)

    def wait_forward(self) -> None:
        """Waits for what run_forward() began, where run_sampling() will never follow."""
        for device in tuple(self._begun):
            self._done(device)
        for exec, _, _ in self._execs[: self._gate]:
            exec.wait()

    def read(self, out: Array, offset: int | None = None) -> Array:
        """Fills `out` with the first rows of the plan's output; waits for the step if it still runs. offset:
        byte offset of another root in the output's buffer.
        """
        for device in tuple(self._begun):
            self._done(device)
        for exec, _, device in self._execs:
            with self._timed(device) if self._single is None else nullcontext():
                exec.wait()
        if self._check is not None:
            self._check.check(range(len(self._execs)), self.counts)
        self._out.read_into(self.plan.output.offset if offset is None else offset, out)
        return out

    def output(self, index: int, row: int, out: Array, *, write: bool = False) -> Array:
        """Reads rows from `row` on of one of the plan's outputs into `out`, or writes `out` there."""
        found = self.plan.outputs[index]
        at = found.offset + row * stride_of(found.type)
        self._done(found.device)
        for device in self._holders[found.device] if write else (found.device,):
            buffer = self._buffer_of(device, found.buffer)
            if write:
                buffer.write(at, out)
            else:
                buffer.read_into(at, out)
        return out

    def _buffer_of(self, device: str, name: str) -> Buffer:
        """A buffer of its own, or of the program beside it."""
        place = (device, name)
        return self._own[place] if place in self._own else self._shared[place]

    def times(self) -> tuple[list[int], ...]:
        """Nanoseconds spent in each step so far, by segment. Raises DeviceError if the device does not count
        them.
        """
        return tuple(exec.times() for exec, _, _ in self._execs)

    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output of the last step."""
        return tuple(
            int(self.counts[d.count]) if isinstance(d, Dim) else d for d in self.plan.output.type.shape
        )

    def close(self) -> None:
        if self.second is not None:
            self.second.close()
        wait([*self._begun.values()])
        for exec, _, _ in self._execs:
            exec.close()
        for pages in self._locked:
            pages.close()
        for buffer in self._own.values():
            buffer.close()


def _read_bytes(plan: Plan, segment: Segment) -> int:
    """Bytes of the step block up to the end of the last field that the segment reads."""
    block = next(i for i, b in enumerate(segment.buffers) if b.name == "step")
    views = segment.view_table[segment.view_table["buffer"] == block]["offset"]
    read = [f for f in plan.fields if ((views >= f.offset) & (views < f.offset + f.size)).any()]
    return max((f.offset + f.size for f in read), default=COUNTS_BYTES)


def _beside(plan: Plan, memory: Mapping[str, DeviceMemory]) -> Iterator[int]:
    """Segments on the host's own device that precede a segment which does not wait for them: the other device
    can begin that one meanwhile.
    """
    host = {name for name, m in memory.items() if m.device.info().flags & HOST_MEMORY}
    for i, (segment, after) in enumerate(pairwise(plan.segments)):
        waits = {after.device, *(t.source for t in after.transfers)}
        if segment.device in host and segment.device not in waits:
            yield i
