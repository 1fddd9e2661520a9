"""Engine: runs a model step by step on a batch of slots. Each bucket has a plan, compiled at its first use; a
step is one C call.

A slot is one sequence, of which the KV cache has `length(slot)` tokens. The engine is not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.compiler import compile
from satchel.runtime.compiler.expand import expandable
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.compiler.stages import host_ids, stages
from satchel.runtime.device.device import HOST_MEMORY, Device
from satchel.runtime.device.group import GroupDevice, members_of
from satchel.runtime.engine.batch_entry import LAST, BatchEntry
from satchel.runtime.engine.finite import check_logits
from satchel.runtime.engine.group_check import checked
from satchel.runtime.engine.host_sampling import Sampled, token_of, undrawn
from satchel.runtime.engine.host_sampling_steps import HostSampledStep, HostSamplingSteps
from satchel.runtime.engine.lanes import LaneProgram, StageThreads
from satchel.runtime.engine.program import DeviceMemory, Program
from satchel.runtime.engine.sharded import UNDIVIDED, CacheRoom, DividedStates, divided_model
from satchel.runtime.engine.states import States, keys_and_values
from satchel.runtime.engine.step_rows import StepRows
from satchel.runtime.engine.watchdog import Pulse
from satchel.runtime.graph import Array, Node
from satchel.runtime.kv import Copy, Miss, Pages
from satchel.runtime.kv.host import HostTier
from satchel.runtime.layers.arch import SEGMENT_IDS, WITH_ADAPTERS, Cache, Forward, windows_of
from satchel.runtime.plan import Bucket, Plan
from satchel.runtime.sampling import NONE
from satchel.runtime.sampling.record import record
from satchel.runtime.weights.packing import of_device
from satchel.runtime.weights.residency import Residency

MAX_TOKENS = 512
LONG = 384  # tokens of one sequence in a step from which on keys and values are made of latents


@dataclass(slots=True)
class Timing:
    """Totals over all steps, and the times of the last one."""

    steps: int = 0
    inside: float = 0.0  # seconds inside C calls
    total: float = 0.0  # seconds of whole steps
    weight_bytes: int = 0  # bytes of weights that the steps read
    last: float = 0.0  # seconds of the last step
    ended: float = 0.0  # perf_counter time at which it ended; a step launched earlier waited until then
    devices: Mapping[str, float] = field(default_factory=dict)  # seconds of the last step by device

    def add(self, program: Program, inside: float, started: float, ran: float) -> None:
        """Counts a step of this program, which has just ended. inside: seconds of its C calls. started, ran:
        perf_counter times at which the host and the device began.
        """
        now, ahead = time.perf_counter(), ran < self.ended
        self.steps += 1
        self.inside += inside
        self.weight_bytes += program.weight_bytes
        # Turns of other steps lie between those of a step in a lane.
        self.last = program.worked or now - max(ran, self.ended)
        # The host saw only the end of a step that was launched ahead.
        several = program.seconds and (program.worked or not ahead)
        self.devices = program.seconds if several else {program.device: self.last}
        self.total += now - max(started, self.ended)
        self.ended = now


@dataclass(frozen=True, slots=True)
class Launched:
    """A step under way."""

    program: Program
    rows: int  # tokens that it samples
    started: float  # perf_counter time at which the host began
    ran: float  # the same of the device
    inside: float  # seconds of the C call
    slots: Sequence[int]  # of a pipeline: those of the tokens that it samples
    host_sampled: HostSampledStep | None = None  # its second half, if rows wait for the host


def bucket_of(n: int, most: int) -> int:
    """The smallest power of two that holds n, at most `most`."""
    return min(most, 1 << max(0, n - 1).bit_length())


def _works_apart(devices: Sequence[Device]) -> bool:
    """A device with memory of its own works while the host does something else; where there are several, what
    crosses between them waits.
    """
    return [not d.info().flags & HOST_MEMORY and not d.profiled for d in devices] == [True]


class Engine:
    """A model on its devices, of which some may be groups. residency: how its weights reach them. wanted: the
    device or group on which a node of the graph is to run, the first where it is not given. host_cache: bytes
    of host memory for blocks of the KV cache that its own memory has no room for. source: the model's name in
    errors, its file's path. lanes: steps that may be under way on a pipeline; 0: as many as it has stages.
    room: whether groups divide their caches by blocks.

    stages: the devices of a pipeline in order; () where the model is on one device, or passes one repeatedly.
    groups: the groups of devices that have a part of the model, by name.
    division: how these divide it; None where no device is a group.
    """

    def __init__(
        self,
        forward: Forward,
        cache: Cache,
        devices: Sequence[Device],
        residency: Residency,
        wanted: Callable[[Node], str] | None = None,
        batch: int = MAX_TOKENS,
        activations: int = 0,
        host_cache: int = 0,
        source: str = "the model",
        lanes: int = 0,
        room: CacheRoom = UNDIVIDED,
    ) -> None:
        self.forward, self.cache, self.batch, self.residency = forward, cache, batch, residency
        self.timing, self.pulse, self.source = Timing(), Pulse(), source
        self._lengths = [0] * cache.slots
        self._rows = StepRows.of(())  # those of the last step
        home = wanted or (lambda node: devices[0].name)
        self._divided = divided_model(devices, forward, residency, home, activations, room)
        targets, self._contexts, self.division = self._divided
        self._optimized: dict[tuple[str, int, bool], Optimized] = {}
        # Which form a token takes hangs on what stands beside it, which `deterministic` rules out.
        deterministic = any(d.deterministic for d in devices)
        self._long = LONG if not deterministic and expandable(forward.roots("tokens")) else 0
        self._host_sampling = HostSamplingSteps(self)
        self.stages: tuple[str, ...] = ()
        if residency.variant(batch) == 1 and not any(d.profiled for d in devices):
            self.stages = stages(self.optimized("tokens"))
        if self.stages:
            self._optimized.clear()  # its steps get their token ids from the host
        self._last = [0] * cache.slots if self.stages else []  # the token that each slot sampled last
        tokens = self.optimized("tokens")
        self._contexts = tuple(
            replace(c, homes=m.assignment.homes) for c, m in zip(self._contexts, tokens.all, strict=True)
        )
        self.pages = Pages(cache, windows_of(forward.roots("tokens")))
        if self.pages.groups[-1].window and batch > cache.batch:
            raise RequestError(f"a step of {batch} tokens is more than the cache was made for: {cache.batch}")
        self._states = state_layout(tokens)
        on = {name: m.assignment.device for m in tokens.all for name in m.assignment.device.values()}
        used = [d for device in devices for d in members_of(device) if d.name in on]
        known = set(self.division.shardings if self.division else ())
        self.groups = {d.name: d for d in devices if isinstance(d, GroupDevice) and d.name in known}
        self.packed = {d.name: of_device(targets[d.name].packed, on[d.name], d.name) for d in used}
        self._weights = residency.load(used, self.packed)
        self._memory = {d.name: DeviceMemory(d, self._states[d.name][""]) for d in used}
        self._programs: dict[tuple[Bucket, str], Program] = {}
        self.overlaps = _works_apart([self.device_of(name) for name in self.devices])
        self._threads = StageThreads(self._by_stage()) if self.stages else None
        self.lanes = (lanes or len(self.stages)) if self.stages else 1
        self.weighs_lanes = not lanes  # whether fewer are used where that is faster
        self.states = self._all_states(tokens)
        self.tier = HostTier(host_cache, self.pages, self.states) if host_cache else None
        self.moved = tokens.assignment.moved

    def _by_stage(self) -> dict[str, DeviceMemory]:
        """The memory of each device, of a group the first member's."""
        return {name: self._memory[members_of(self.device_of(name))[0].name] for name in self.devices}

    def _all_states(self, tokens: Optimized) -> States:
        held, division = {name: m.state for name, m in self._memory.items()}, self.division
        if division is None:
            self.residency.attach(keys_and_values(tokens.roots, self._states, held), self.cache.block)
            return States(held, tokens.roots, self._states, self.cache, self._threads)
        whole = self.forward.roots("tokens")
        return DividedStates(held, tokens.ranks, whole, self._states, division, self.cache, self._threads)

    def optimized(self, output: str, tokens: int = 1) -> Optimized:
        """The graph of an output of Forward.roots() after the passes, for buckets of so many tokens;
        WITH_ADAPTERS before the output for one with adapters.
        """
        long = self._long if 0 < self._long <= tokens else 0  # it may hold a long stretch of a prompt
        key = output, self.residency.variant(tokens), long > 0
        if key not in self._optimized:
            contexts = [replace(self.residency.context(c, tokens), long=long) for c in self._contexts]
            roots = self.forward.roots(output)
            roots = host_ids(roots) if self.stages else roots
            self._optimized[key] = self._divided.optimized(roots, contexts)
        return self._optimized[key]

    def plan(self, bucket: Bucket, output: str = "tokens") -> Plan:
        weights = self.residency.steps(bucket.tokens, self._weights).devices
        return compile(self.optimized(output, bucket.tokens), bucket, weights, self._states, checked())

    def program(self, tokens: int, rows: int, output: str = "tokens") -> Program:
        """The program of the bucket that holds these tokens and rows. While a step of it is under way,
        another program of the same bucket.
        """
        key = (Bucket(bucket_of(tokens, self.batch), bucket_of(rows, self.batch)), output)
        if key not in self._programs:
            with self.pulse.within("compile"):
                self._programs[key] = self.make_program(self.plan(*key))
        found, most = self._programs[key], max(2, self.lanes)
        for _ in range(1, most):
            if not found.busy:
                break
            found = self._second(found)
        if found.busy:
            raise ValueError(f"{most} steps are under way: collect the first one")
        return found

    def _second(self, first: Program) -> Program:
        """The next program of a bucket."""
        if first.second is None:
            with self.pulse.within("compile"):
                first.second = self.make_program(first.plan, first.beside or first)
        return first.second

    def has(self, entries: Sequence[BatchEntry]) -> bool:
        """Whether the program of a step with one sampled token per entry is compiled already."""
        bucket = bucket_of(len(entries), self.batch)
        output = "host_sampling" if self._rows_of(entries).host_sampled else "tokens"
        return (Bucket(bucket, bucket), output) in self._programs

    def make_program(self, plan: Plan, first: Program | None = None) -> Program:
        """A program that runs a plan of this engine; the caller closes it. first: its other program."""
        weights = self.residency.steps(plan.bucket.tokens, self._weights)
        if self._threads is not None:
            self._threads.quiet()
            return LaneProgram(plan, self._memory, weights, first, self.groups, self._threads)
        return Program(plan, self._memory, weights, first, self.groups)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that have a part of the model, groups in place of their members."""
        stage = {m.name: name for name, group in self.groups.items() for m in group.members}
        return tuple(dict.fromkeys(stage.get(name, name) for name in self._memory))

    def device_of(self, name: str) -> Device:
        """The device of that name; KeyError where it has no part of the model."""
        return self.groups[name] if name in self.groups else self._memory[name].device

    @property
    def vocabulary(self) -> int:
        """Width of the logits."""
        return self.forward.logits.width

    def length(self, slot: int) -> int:
        """Number of the slot's tokens in the KV cache."""
        return self._lengths[slot]

    def rewind(self, slot: int, length: int) -> int:
        """Drops the slot's tokens after the first `length`; gives the number that is left.

        It is smaller than `length` where layers cannot go back that far. Layers with a window can go back by
        the tokens of the last step and REWIND more; further back, nothing is left if they have freed what
        the next token would see. Layers with a recurrent state go back to where the slot was before the last
        `speculated` tokens.
        """
        if not 0 <= length <= self._lengths[slot]:
            raise RequestError(f"slot {slot} has {self._lengths[slot]} tokens, it cannot go back to {length}")
        length = self.pages.reach(slot, length)
        self._copy(self.pages.release(slot, length))
        self._lengths[slot] = length
        return length

    def begin(self, slot: int, ids: Sequence[int], salt: str = "") -> tuple[int, Miss]:
        """Empties the slot and gives it the longest cached prefix of `ids`. Returns the length of that prefix
        and why it is no longer.
        """
        self.rewind(slot, 0)
        cached, why = self.pages.adopt(slot, ids, salt)
        if self.tier is not None:
            cached, why = self.tier.bring(slot, ids, salt, cached, why)
        if cached:
            self.states.write_tokens(slot, ids[:cached])
        self._lengths[slot] = cached
        return cached, why

    def fork(self, source: int, slot: int, ids: Sequence[int]) -> None:
        """Copies the tokens `ids` of slot `source` to another slot; the two share full blocks."""
        self.rewind(slot, 0)
        length = self._lengths[source]
        self._copy(self.pages.fork(source, slot, length))
        self.states.write_tokens(slot, ids[:length])
        self._lengths[slot] = length

    def _copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self.states.copy_block(copy.old, copy.new, copy.group)

    def publish(self, slot: int, ids: Sequence[int], salt: str = "") -> None:
        """Puts the slot's blocks of `ids` into the prefix cache."""
        self.pages.publish(slot, ids[: self._lengths[slot]], salt)

    def sample(self, entries: Sequence[BatchEntry]) -> Sequence[int | Sampled]:
        """step(), with token bitmasks filled beside the forward pass even if the device is the host."""
        if self.stages or not self._rows_of(entries).host_sampled:
            return self.step(entries)
        started = time.perf_counter()
        step = self._host_sampling.fill(entries)
        items, ran = self._host_sampling.run(step)
        self.advance(entries)
        self.timing.add(step.program, step.inside, started, ran)
        return items

    def step(self, entries: Sequence[BatchEntry]) -> list[int | Sampled]:
        """Computes the entries, at most `batch` tokens, and gives the sampled tokens in order. A row with
        host_sampling gives a Sampled, as does a row without a token, whose Sampled has the error.
        """
        step = self.launch(entries, alone=True)
        self.launch_sampling(step)
        return self.collect(step)

    def launch(self, entries: Sequence[BatchEntry], *, alone: bool = False) -> Launched:
        """Starts a step without waiting for its tokens, which collect() gives. If `overlaps`, a second step
        may be launched meanwhile, with LAST as token ids; steps are collected in order. If rows have
        host_sampling, this starts the forward pass alone; launch_sampling() must come before anything else.
        On a pipeline up to `lanes` steps may be under way, of sequences of which none waits for a token of
        another step.

        alone: no step is launched before this one is collected. Otherwise a bucket gets the programs of all
        steps that may be under way with its first, so that no later step compiles one: of a pipeline one for
        each lane, of one device two for steps that sample each of their tokens.
        """
        started = time.perf_counter()
        of = self._rows_of(entries)
        rows = len(of.sampled)
        half = self._host_sampling.fill(entries) if of.host_sampled else None
        program = self.fill(entries, rows, "tokens", every=False) if half is None else half.program
        if not alone and program.beside is None:
            self._make_others(program)
        ran = time.perf_counter()
        if half is None:
            program.run()
        elif half.fixed and (self.overlaps or self.stages):
            self._host_sampling.run_at_once(half)
        else:
            program.run_forward()
        program.busy = True
        self.advance(entries)
        inside = time.perf_counter() - ran
        slots = [e.slot for e in of.entries for _ in range(e.rows)] if self.stages else ()
        return Launched(program, rows, started, ran, inside, slots, half)

    def prepare(self, tokens: int, rows: int) -> None:
        """Makes the programs of steps of so many tokens and rows, as the first launch() of one would."""
        self._make_others(self.program(tokens, rows))

    def _make_others(self, program: Program) -> None:
        """Makes the programs that may be under way beside the first one of a bucket."""
        last, bucket = program, program.plan.bucket
        decodes = bucket.tokens == bucket.rows
        for _ in range(1, self.lanes if self.stages else 2 if self.overlaps and decodes else 1):
            last = self._second(last)

    def launch_sampling(self, step: Launched, ended: Collection[int] = ()) -> None:
        """Starts the sampling that launch() left out, once. The tokens of the step before must have been
        collected. ended: slots whose sequences ended with them, whose samples are not used.
        """
        if step.host_sampled is not None:
            self._host_sampling.sample(step.host_sampled, ended)

    def collect(self, step: Launched) -> list[int | Sampled]:
        """Waits for a step and gives its tokens, as step() does."""
        before, step.program.busy = time.perf_counter(), False
        if (half := step.host_sampled) is not None:
            items = self._host_sampling.collect(half)
            self.timing.add(step.program, step.inside + half.inside, step.started, step.ran)
            self._keep_last(step, items)
            return items
        found = step.program.read(np.empty(max(1, step.rows), np.int32))
        tokens: list[int | Sampled] = found[: step.rows].tolist()
        inside = step.inside + time.perf_counter() - before
        self.timing.add(step.program, inside, step.started, step.ran)
        self._keep_last(step, tokens)
        if NONE in tokens:
            return [undrawn(self.source) if t == NONE else t for t in tokens]
        return tokens

    def _keep_last(self, step: Launched, items: Sequence[int | Sampled]) -> None:
        for slot, item in zip(step.slots, items, strict=False):
            self._last[slot] = token_of(item)

    def _host_ids(self, of: StepRows) -> list[int]:
        """The tokens of a step, with what LAST stands for."""
        return [
            i if i != LAST else e.past[-1] if e.past else self._last[e.slot]
            for e in of.entries
            for i in e.ids
        ]

    def logits(self, entries: Sequence[BatchEntry]) -> Array:
        """Computes the entries; gives the logits after each token: (tokens, V) float32."""
        total = sum(len(e.ids) for e in entries)
        program = self.fill(entries, total, "logits", every=True)
        program.run()
        self.advance(entries)
        found = program.read(np.empty(program.output_shape(), np.float32))
        check_logits(found, self.source)
        return found

    def fill(self, entries: Sequence[BatchEntry], rows: int, output: str, *, every: bool) -> Program:
        """Writes the step block of the program that fits."""
        self.residency.between_steps(self.idle)
        of = self._rows_of(entries)
        total, lengths = of.total, self._lengths
        if not 0 < total <= self.batch:
            raise RequestError(f"a step takes 1 to {self.batch} tokens, got {total}")
        starts = [lengths[slot] for slot in of.slots]
        self._make_room(of, starts)
        program = self.program(total, max(1, rows), WITH_ADAPTERS + output if of.adapted else output)
        fields = program.fields
        # One assignment per field: an assignment costs as much as some thirty numbers.
        fields["pos"][:total] = of.positions(starts)
        if program.rows is not of.mark:
            self._fill_rows(program, of, every=every)
        if self.stages and LAST in of.ids:
            fields["ids"][:total] = self._host_ids(of)
        for name, table in self.pages.tables.items():
            fields[name][:] = table
        program.counts[0], program.counts[1] = total, total if every else rows
        return program

    def _rows_of(self, entries: Sequence[BatchEntry]) -> StepRows:
        if not self._rows.are(entries):
            self._rows = StepRows.of(entries)
        return self._rows

    def _make_room(self, of: StepRows, starts: Sequence[int]) -> None:
        """Gives the slots the blocks that the step writes."""
        ends = of.ends(starts)
        for slot, end in self.pages.short(of.slots, ends):
            self.pages.reserve(slot, end)
        if of.speculated or self.pages.moving:
            for e, start, end in zip(of.entries, starts, ends, strict=True):
                if e.speculated:
                    self._copy(self.pages.keep(e.slot))
                self.pages.advance(e.slot, start, end)

    def idle(self) -> bool:
        """Whether no step is under way."""
        return not any(p.busy for first in self._programs.values() for p in first.all)

    def _fill_rows(self, program: Program, of: StepRows, *, every: bool) -> None:
        """Writes what follows from the entries alone: tokens, slots, which rows are sampled and how."""
        fields, total = program.fields, of.total
        fields["ids"][:total] = of.ids
        fields["slot"][:total] = of.token_slots
        if SEGMENT_IDS in fields:
            fields[SEGMENT_IDS][:total] = [k for e in of.entries for k in e.segment_ids or (0,) * len(e.ids)]
        if of.adapted:
            for e, part in of.parts():
                fields["adapter_scales"][part] = e.adapter_scales or 0.0
        if every:
            fields["rows"][:total] = range(total)
        else:
            fields["rows"][: len(of.sampled)] = of.sampled
            known = program.sampled
            for row, sampling in enumerate(of.samplings):  # plans that sample nothing have no records
                if row >= len(known) or sampling is not known[row]:
                    fields["params"][row] = record(sampling)
            program.sampled = of.samplings
        program.rows = of.mark

    def advance(self, entries: Sequence[BatchEntry]) -> None:
        """Counts the entries' tokens as cached."""
        of, lengths = self._rows_of(entries), self._lengths
        for slot, n in zip(of.slots, of.counts, strict=True):
            lengths[slot] += n

    def release(self) -> None:
        """Frees programs and states; the devices and their weights stay, for another engine to use."""
        self._host_sampling.close()
        for program in self._programs.values():
            program.close()
        self._programs.clear()
        self.residency.close()
        for memory in self._memory.values():
            memory.state.close()

    def close(self) -> None:
        """Frees programs, buffers and devices."""
        self.release()
        for group in self.groups.values():
            group.close()
        for memory in self._memory.values():
            memory.close()
        self._memory.clear()
