"""Runs a model step by step for any number of slots: a plan per bucket, made at first use, and one C call a
step.

A slot is one sequence; `length(slot)` tokens of it are in the KV cache. The engine is not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from satchel.quant import RequestError
from satchel.runtime.arch import Cache, Forward
from satchel.runtime.compiler import Context, Optimized, compile, optimize
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device import Device
from satchel.runtime.graph import Array
from satchel.runtime.kv import Pages
from satchel.runtime.packing import Packed, of_device, packable, packed_by
from satchel.runtime.plan import Bucket, Plan
from satchel.runtime.program import DeviceMemory, Program
from satchel.runtime.sampling import Sampling
from satchel.runtime.weights import DeviceWeights

MAX_TOKENS = 512
LAST = -1  # a token id that stands for "what this slot sampled last"


@dataclass(frozen=True, slots=True)
class Feed:
    """What one slot brings to a step: tokens for the positions that follow, and whether a token is sampled
    after them.
    """

    slot: int
    ids: Sequence[int]
    sampling: Sampling | None = None


@dataclass(slots=True)
class Timing:
    """Seconds spent inside the C call and in all of step(), over `steps` steps."""

    steps: int = 0
    inside: float = 0.0
    total: float = 0.0


def bucket_of(n: int, most: int) -> int:
    """The smallest power of two that holds n, at most `most`."""
    return min(most, 1 << max(0, n - 1).bit_length())


Bind = Callable[[Device, Mapping[str, Packed]], DeviceWeights]


class Engine:
    """A model on its devices. bind(device, packed) makes the weights readable there, those of `packed` in the
    device's own order; repack False: none.
    """

    def __init__(
        self,
        forward: Forward,
        cache: Cache,
        devices: Sequence[Device],
        bind: Bind,
        wanted: Callable[[str], str] | None = None,
        batch: int = MAX_TOKENS,
        repack: bool = True,
        activations: int = 8,
    ) -> None:
        self.forward, self.cache, self.batch = forward, cache, batch
        self._memory: dict[str, DeviceMemory] = {}
        self.pages, self.timing = Pages(cache), Timing()
        self._lengths = [0] * cache.slots
        types = packable(forward) if repack else {}
        targets = {d.name: DeviceTarget(d, packed_by(d, types)) for d in devices}
        self._context = Context(
            tuple(targets.values()), wanted or (lambda label: devices[0].name), activations
        )
        self._optimized: dict[str, Optimized] = {}
        tokens = self.optimized("tokens")
        self._states = state_layout(tokens.roots)
        for device in (d for d in devices if d.name in tokens.placement.device.values()):
            target = targets[device.name]
            target.packed = of_device(target.packed, tokens.placement.device, device.name)
            bound = bind(device, target.packed)
            self._memory[device.name] = DeviceMemory(device, bound, self._states[""])
        self.packed = {name: targets[name].packed for name in self._memory}
        self._programs: dict[tuple[Bucket, str], Program] = {}
        self.moved = tokens.placement.moved

    def optimized(self, output: str) -> Optimized:
        """The graph of one kind of output after the passes: "tokens" or "logits"."""
        if output not in self._optimized:
            self._optimized[output] = optimize(self.forward.roots(output), self._context)
        return self._optimized[output]

    def plan(self, bucket: Bucket, output: str = "tokens") -> Plan:
        weights = {name: memory.weights for name, memory in self._memory.items()}
        return compile(self.optimized(output), bucket, weights, self._states)

    def program(self, tokens: int, rows: int, output: str = "tokens") -> Program:
        """The program of the bucket that holds so many tokens and rows."""
        key = (Bucket(bucket_of(tokens, self.batch), bucket_of(rows, self.batch)), output)
        if key not in self._programs:
            self._programs[key] = Program(self.plan(*key), self._memory)
        return self._programs[key]

    def length(self, slot: int) -> int:
        """Tokens that the slot has in the cache."""
        return self._lengths[slot]

    def rewind(self, slot: int, length: int) -> None:
        """Forgets what the slot has after its first `length` tokens."""
        if not 0 <= length <= self._lengths[slot]:
            raise RequestError(f"slot {slot} has {self._lengths[slot]} tokens, it cannot go back to {length}")
        self.pages.release(slot, length)
        self._lengths[slot] = length

    def step(self, feeds: Sequence[Feed]) -> list[int]:
        """Feeds tokens and gives the token sampled for each feed that has `sampling`, in order. At most
        `batch` tokens.
        """
        started = time.perf_counter()
        rows = sum(f.sampling is not None for f in feeds)
        program = self._fill(feeds, rows, "tokens", every=False)
        out = np.empty(max(1, rows), np.int32)
        before = time.perf_counter()
        program.run()
        tokens: list[int] = program.read(out)[:rows].tolist()
        done = time.perf_counter()
        self._advance(feeds)
        self.timing.steps += 1
        self.timing.inside += done - before
        self.timing.total += time.perf_counter() - started
        return tokens

    def logits(self, feeds: Sequence[Feed]) -> Array:
        """Feeds tokens and gives the logits after each of them: (tokens, V) float32."""
        total = sum(len(f.ids) for f in feeds)
        program = self._fill(feeds, total, "logits", every=True)
        program.run()
        self._advance(feeds)
        return program.read(np.empty(program.output_shape(), np.float32))

    def _fill(self, feeds: Sequence[Feed], rows: int, output: str, *, every: bool) -> Program:
        """Writes the step block of the program that fits."""
        total = sum(len(f.ids) for f in feeds)
        if not 0 < total <= self.batch:
            raise RequestError(f"a step takes 1 to {self.batch} tokens, got {total}")
        for f in feeds:
            self.pages.reserve(f.slot, self._lengths[f.slot] + len(f.ids))
        program = self.program(total, max(1, rows), output)
        fields, at, row = program.fields, 0, 0
        for f in feeds:
            n, start = len(f.ids), self._lengths[f.slot]
            fields["ids"][at : at + n] = f.ids
            fields["pos"][at : at + n] = range(start, start + n)
            fields["slot"][at : at + n] = f.slot
            if every:
                fields["rows"][at : at + n] = range(at, at + n)
            elif f.sampling is not None:
                fields["rows"][row] = at + n - 1
                fields["params"][row] = record(f.sampling, self.cache.context)
                row += 1
            at += n
        fields["table"][:] = self.pages.table
        program.counts[0], program.counts[1] = total, total if every else row
        return program

    def _advance(self, feeds: Sequence[Feed]) -> None:
        for f in feeds:
            self._lengths[f.slot] += len(f.ids)

    def release(self) -> None:
        """Frees programs and states; the devices and their weights stay, for another engine to use."""
        for program in self._programs.values():
            program.close()
        self._programs.clear()
        for memory in self._memory.values():
            memory.state.close()

    def close(self) -> None:
        """Frees programs, buffers and devices."""
        self.release()
        for memory in self._memory.values():
            memory.close()
        self._memory.clear()


def record(sampling: Sampling, context: int) -> tuple[float | int, ...]:
    """A hal_sampling as a tuple in the struct's order."""
    last = context if sampling.repeat_last_n < 0 else min(sampling.repeat_last_n, context)
    return (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repeat_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.top_k,
        last,
        sampling.seed or 0,
    )
