"""Lanes: several steps under way on a pipeline, of disjoint sequences or of successive chunks of a prompt.
While one device computes a step's later layers, the device before it computes those of the next step.

A step is a chain of turns: segments of its plan that follow each other on a device. A turn brings in what
crosses to its device, runs the segments, and takes out what crosses to others, so that nothing of another
step comes in between.

A group of devices is one stage: its turn is the group's.

Invariants: each device has one thread, which takes turns in the order in which they were given, so a step
that was launched first passes every device first. While a turn is under way no other thread uses a device;
the engine's thread waits until none is (`quiet`), or has the device's thread do it (`alone`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TypeVar

import numpy as np

from satchel.runtime.compiler.memory import stride_of
from satchel.runtime.device.device import LINK, OUT
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.engine.program import DeviceMemory, Program
from satchel.runtime.graph import Array, Dim
from satchel.runtime.plan import DeviceTransfer, Plan
from satchel.runtime.weights.residency import StepWeights

TAKEN = 1 << 16  # bytes up to which an output is taken with a step's last turn
Turn = tuple[str, Callable[[], None]]  # a device, and what its thread does
T = TypeVar("T")


class StageThreads:
    """The threads of a pipeline's devices, and the chains that they have. Used by one thread alone."""

    def __init__(self, memory: Mapping[str, DeviceMemory]) -> None:
        self._memory = memory
        self._under: list[Future[None]] = []

    def begin(self, turns: Sequence[Turn]) -> Future[None]:
        """Gives turns to the devices' threads, each after the one before it has ended. The result comes with
        the last one; an error of a turn ends the chain.
        """
        self._under = [chain for chain in self._under if not chain.done()]
        done: Future[None] = Future()
        self._under.append(done)
        self._give(turns, 0, done)
        return done

    def _give(self, turns: Sequence[Turn], number: int, done: Future[None]) -> None:
        if number == len(turns):
            done.set_result(None)
            return
        try:
            self._memory[turns[number][0]].hand.submit(self._take, turns, number, done)
        except RuntimeError as error:  # the interpreter ends, and its threads with it
            done.set_exception(error)

    def _take(self, turns: Sequence[Turn], number: int, done: Future[None]) -> None:
        try:
            turns[number][1]()
        except BaseException as error:
            done.set_exception(error)
        else:
            self._give(turns, number + 1, done)

    def alone(self, device: str, function: Callable[[], T]) -> T:
        """Has a device's thread call a function, after the turns that it has; gives the result. For memory
        that no step under way reads or writes.
        """
        return self._memory[device].hand.submit(function).result()

    def quiet(self) -> None:
        """Waits until no turn is under way. Errors stay with their steps."""
        wait(self._under)


class LaneProgram(Program):
    """A plan of a pipeline, one of several that may be under way: see Program. Its run methods return while
    the devices compute. What crosses devices lies in its own memory, scratch is shared with `beside`.
    """

    apart = (OUT, LINK)

    def __init__(
        self,
        plan: Plan,
        memory: Mapping[str, DeviceMemory],
        weights: StepWeights,
        beside: Program | None,
        groups: Mapping[str, GroupDevice],
        lanes: StageThreads,
    ) -> None:
        super().__init__(plan, memory, weights, beside, groups)
        self._lanes, self._single = lanes, None
        self._chain: Future[None] | None = None
        self._taken: dict[int, Array] = {}  # outputs of the last run, by number
        self._early = {t: np.empty(t.rows * t.stride, np.uint8) for s in plan.segments for t in s.transfers}
        self._leaving = _leaving(plan)

    def _on_host(self, t: DeviceTransfer) -> None:
        """Stages work at the same time: no value goes where the stage before may still read."""

    def run_at_once(self, size: int) -> None:
        self._reset()
        self._size_sampling(size)
        with self._settled():
            self._run_segments(range(len(self._execs)))

    def _reset(self) -> None:
        super()._reset()
        self.worked = 0.0

    def _run_segments(self, numbers: range) -> None:
        self._done()  # the sampling follows the forward pass
        self._taken.clear()
        by_device = groupby(numbers, lambda i: self._execs[i][2])
        self._chain = self._lanes.begin([(d, partial(self._turn, d, tuple(part))) for d, part in by_device])

    def _turn(self, device: str, numbers: Iterable[int]) -> None:
        """Segments that follow each other on a device: the sampling, in a turn of its own, would come behind
        the layers of the next step.
        """
        began = time.perf_counter()
        for i in numbers:
            self._segment(i)
        seconds = time.perf_counter() - began
        self.seconds[device] = self.seconds.get(device, 0.0) + seconds
        self.worked += seconds

    def _segment(self, i: int) -> None:
        """One segment, with what crosses to it and from it."""
        exec, arriving, device = self._execs[i]
        for t in arriving:
            value = self._crossing(t)
            for target, (buffer, at) in t.targets if value.size else ():
                self._own[target, buffer].write(at, value)
        exec.run(self._pointer, self._sizes[i])
        exec.wait()  # a failed run is known before anything of it goes on
        if self._check is not None:
            self._check.check([i], self.counts)
        for t in self._leaving[i]:
            if (value := self._crossing(t)).size:
                self._own[t.source, t.source_at[0]].read_into(t.source_at[1], value)
        if i == len(self._execs) - 1:
            self._take(device)

    def _take(self, device: str) -> None:
        """Reads the small outputs of a step, so that they need not wait for the device's next turn."""
        for number, out in enumerate(self.plan.outputs):
            first = out.type.shape[0]
            rows = int(self.counts[first.count]) if isinstance(first, Dim) else first
            if self._stage[out.device] == device and 0 < (size := rows * stride_of(out.type)) <= TAKEN:
                self._taken[number] = np.empty(size, np.uint8)
                self._buffer_of(out.device, out.buffer).read_into(out.offset, self._taken[number])

    def _done(self, device: str = "") -> None:
        """Waits for what runs, and raises its error."""
        if self._chain is not None:
            self._chain.result()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self._chain is not None:
                wait([self._chain])
            raise

    def wait_forward(self) -> None:
        self._done()

    def read(self, out: Array, offset: int | None = None) -> Array:
        self._done()
        taken, flat = self._taken.get(0), out.reshape(-1).view(np.uint8)
        if offset is None and taken is not None and flat.size <= taken.size:
            flat[:] = taken[: flat.size]
            return out
        start = self.plan.output.offset if offset is None else offset
        self._lanes.alone(self._stage[self.plan.output.device], partial(self._out.read_into, start, out))
        return out

    def output(self, index: int, row: int, out: Array, *, write: bool = False) -> Array:
        self._done()
        at, taken = row * stride_of(self.plan.outputs[index].type), self._taken.get(index)
        if not write and taken is not None and at + out.nbytes <= taken.size:
            out.reshape(-1).view(np.uint8)[:] = taken[at : at + out.nbytes]
            return out
        whole = partial(super().output, index, row, out, write=write)
        return self._lanes.alone(self._stage[self.plan.outputs[index].device], whole)

    def close(self) -> None:
        if self._chain is not None:
            wait([self._chain])
        super().close()


def _leaving(plan: Plan) -> tuple[tuple[DeviceTransfer, ...], ...]:
    """What is taken out with each segment: values that later segments on other devices read."""
    found: list[list[DeviceTransfer]] = [[] for _ in plan.segments]
    for number, segment in enumerate(plan.segments):
        for t in segment.transfers:
            end = number if t.before < 0 else t.before
            found[max(i for i in range(end) if plan.segments[i].all[0].device == t.source)].append(t)
    return tuple(map(tuple, found))
