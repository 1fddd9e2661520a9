"""A plan ready to run on its devices: buffers bound, execs compiled, and the step block as numpy fields to
fill in.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from satchel.quant import FORMATS
from satchel.runtime.device import CONST, SAMPLING, STATE, Buffer, Device, Exec, pointer
from satchel.runtime.graph import Array, Dim
from satchel.runtime.plan import COUNTS_BYTES, Plan, Transfer
from satchel.runtime.weights import DeviceWeights


class DeviceMemory:
    """What a device keeps for a model whatever the plan: its weights and its states."""

    def __init__(self, device: Device, weights: DeviceWeights, state_bytes: int) -> None:
        self.device, self.weights = device, weights
        self.state = device.alloc(max(state_bytes, 64), STATE)

    def close(self) -> None:
        self.device.close()


class Program:
    """One compiled plan. Fields of the step block are views into one block of memory that never moves.

    counts (8) int32; every input of the plan by name in `fields`, with the bucket's full shape.
    """

    def __init__(self, plan: Plan, memory: Mapping[str, DeviceMemory]) -> None:
        self.plan = plan
        self.block = bytearray(plan.block_bytes)
        self._pointer = pointer(self.block)
        self.counts = np.frombuffer(self.block, np.int32, COUNTS_BYTES // 4)
        self.fields = {f.name: self._field(f.name) for f in plan.fields}
        self._own: dict[tuple[str, str], Buffer] = {}
        self._execs: list[tuple[Exec, tuple[Transfer, ...], str]] = []
        for segment in plan.segments:
            device = memory[segment.device]
            buffers = [self._buffer(device, segment.device, b.name, b.usage, b.size) for b in segment.buffers]
            self._execs.append((device.device.compile(segment, buffers), segment.transfers, segment.device))
        self._single = self._execs[0][0] if len(self._execs) == 1 else None
        self._out = self._own[plan.output.device, "out"]
        self.weight_bytes, self.n_steps = plan.weight_bytes, plan.n_steps

    def _field(self, name: str) -> Array:
        field = next(f for f in self.plan.fields if f.name == name)
        shape = tuple(self.plan.bucket.size(d) for d in field.type.shape)
        if name == "params":
            return np.frombuffer(self.block, SAMPLING, shape[0], field.offset)
        dtype = FORMATS[field.type.format].dtype
        return np.frombuffer(self.block, dtype, int(np.prod(shape)), field.offset).reshape(shape)

    def _buffer(self, memory: DeviceMemory, device: str, name: str, usage: int, size: int) -> Buffer:
        if name in memory.weights.buffers:
            return memory.weights.buffers[name]
        if name == "state":
            return memory.state
        if (device, name) not in self._own:
            buffer = memory.device.alloc(max(size, 64), usage)
            if usage == CONST and self.plan.consts[device]:
                buffer.write(0, self.plan.consts[device])
            self._own[device, name] = buffer
        return self._own[device, name]

    def run(self) -> None:
        """One step over what the fields hold now."""
        if self._single is not None:
            self._single.run(self._pointer, len(self.block))
            return
        for exec, transfers, _ in self._execs:
            for t in transfers:
                self._transfer(t)
            exec.run(self._pointer, len(self.block))
            exec.wait()

    def _transfer(self, t: Transfer) -> None:
        rows = t.rows if t.count < 0 else int(self.counts[t.count])
        if rows:
            bounce = np.empty(rows * t.stride, np.uint8)
            self._own[t.source, t.source_at[0]].read_into(t.source_at[1], bounce)
            self._own[t.target, t.target_at[0]].write(t.target_at[1], bounce)

    def read(self, out: Array, offset: int | None = None) -> Array:
        """Fills `out` with the first rows of the plan's output, waiting for the step if it still runs.

        offset: of another root in the output's buffer.
        """
        for exec, _, _ in self._execs:
            exec.wait()
        self._out.read_into(self.plan.output.offset if offset is None else offset, out)
        return out

    def times(self) -> tuple[list[int], ...]:
        """Nanoseconds spent in each step so far, by segment; DeviceError where they are not counted."""
        return tuple(exec.times() for exec, _, _ in self._execs)

    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output of the step that ran last."""
        return tuple(
            int(self.counts[d.count]) if isinstance(d, Dim) else d for d in self.plan.output.type.shape
        )

    def close(self) -> None:
        for exec, _, _ in self._execs:
            exec.close()
        for buffer in self._own.values():
            buffer.close()
