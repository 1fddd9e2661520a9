"""Runs a model step by step for any number of slots: a plan per bucket, made at first use, and one C call a
step.

A slot is one sequence; `length(slot)` tokens of it are in the KV cache. The engine is not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from satchel.quant import RequestError
from satchel.runtime.arch import KINDS, MIXED, Cache, Forward, Scales, windows_of
from satchel.runtime.compiler import Context, Optimized, compile, optimize
from satchel.runtime.compiler.expand import expandable
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.detail import Detail, Sampled
from satchel.runtime.detailed import DetailedSteps
from satchel.runtime.device import HOST_MEMORY, Device
from satchel.runtime.finite import check_logits, damaged
from satchel.runtime.graph import Array, Node, Type
from satchel.runtime.hot.experts import HotExperts, HotOffer
from satchel.runtime.kv import Copy, Miss, Pages
from satchel.runtime.kv.host import HostTier
from satchel.runtime.lending import Lender, Offer
from satchel.runtime.packing import Held, Packed, of_device, packable, packed_by
from satchel.runtime.plan import Bucket, Plan
from satchel.runtime.program import DeviceMemory, Pager, Program
from satchel.runtime.sampling import NONE, Sampling
from satchel.runtime.sampling.record import record
from satchel.runtime.states import States
from satchel.runtime.watchdog import Pulse
from satchel.runtime.weights import DeviceWeights

MAX_TOKENS = 512
LONG = 384  # tokens of one sequence in a step from which on keys and values are made of latents
LAST = -1  # a token id that stands for "what this slot sampled last"


@dataclass(frozen=True, slots=True)
class Feed:
    """What one slot brings to a step: tokens for the positions that follow, and whether tokens are sampled:
    one after each of the last `samples` of them. detail: what the host does about that token; past: then all
    tokens up to it. scales: of adapters and control vectors; see runtime/extras.py. kinds: of each token's
    sentence, for encoders that tell them apart; (): all of the first. guessed: rewind() may be asked to take
    tokens of this step back, or of later ones that are guessed on.
    """

    slot: int
    ids: Sequence[int]
    sampling: Sampling | None = None
    samples: int = 1
    detail: Detail | None = None
    past: Sequence[int] = ()
    scales: Scales = ()
    kinds: Sequence[int] = ()
    guessed: bool = False

    @property
    def rows(self) -> int:
        """Tokens that are sampled."""
        return self.samples if self.sampling is not None else 0


@dataclass(slots=True)
class Timing:
    """Seconds spent inside C calls and in all of step(), over `steps` steps; bytes of weights that they read;
    seconds of the last step, by device too. ended: perf_counter time at which it was done: one that was
    launched before that had to wait for it.
    """

    steps: int = 0
    inside: float = 0.0
    total: float = 0.0
    weight_bytes: int = 0
    last: float = 0.0
    ended: float = 0.0
    devices: Mapping[str, float] = field(default_factory=dict)

    def add(self, program: Program, inside: float, started: float, ran: float) -> None:
        """A step of this program was done, which began at perf_counter time `started`, the device's part of
        it at `ran`.
        """
        now = time.perf_counter()
        self.steps += 1
        self.inside += inside
        self.weight_bytes += program.weight_bytes
        self.last = now - max(ran, self.ended)
        self.devices = program.seconds or {program.device: self.last}
        self.total += now - max(started, self.ended)
        self.ended = now


@dataclass(frozen=True, slots=True)
class Launched:
    """A step under way: `rows` tokens will be sampled. started, ran: perf_counter times at which the host and
    the device began; inside: seconds of the C call.
    """

    program: Program
    rows: int
    started: float
    ran: float
    inside: float


def bucket_of(n: int, most: int) -> int:
    """The smallest power of two that holds n, at most `most`."""
    return min(most, 1 << max(0, n - 1).bit_length())


def _works_apart(devices: Sequence[Device]) -> bool:
    """A device with memory of its own works while the host does something else; where there are several, what
    crosses between them waits.
    """
    return [not d.info().flags & HOST_MEMORY and not d.profiled for d in devices] == [True]


def _targets(
    devices: Sequence[Device], types: Mapping[str, Type], in_file: Collection[str], hot: HotOffer | None
) -> dict[str, DeviceTarget]:
    """The devices with the weights of these types that they keep in their own order; in_file: names of those
    that keep none so.
    """
    found = {d.name: DeviceTarget(d, {} if d.name in in_file else packed_by(d, types)) for d in devices}
    if hot is not None:
        for target in found.values():
            target.packed = {**target.packed, **hot.hot.packed(hot.gguf, target.device, types)}
    return found


Bind = Callable[[Device, Mapping[str, Packed]], DeviceWeights]


@dataclass(frozen=True, slots=True)
class Lent:
    """How steps of `least` tokens and more go, for which the CPU's weights are lent to another device."""

    lender: Lender
    context: Context
    memory: Mapping[str, DeviceMemory]
    least: int

    @property
    def pagers(self) -> Mapping[str, Pager]:
        return {self.lender.loan.device: self.lender}


class Engine:
    """A model on its devices. bind(device, packed) makes the weights readable there, those of `packed` in the
    device's own order; repack False: none. wanted: the device on which a node of the graph is to run, the
    first where it is not given. host_cache: bytes of host memory for blocks of the KV cache that
    its own memory has no room for. pagers: of devices that leave every weight in the file and read it
    layer by layer. offer: the CPU's weights that are lent to another device for long steps. hot: experts of
    the CPU's that another device holds too. source: the model's name in errors, its file's path.
    """

    def __init__(
        self,
        forward: Forward,
        cache: Cache,
        devices: Sequence[Device],
        bind: Bind,
        wanted: Callable[[Node], str] | None = None,
        batch: int = MAX_TOKENS,
        repack: bool = True,
        activations: int = 0,
        host_cache: int = 0,
        pagers: Mapping[str, Pager] = MappingProxyType({}),
        offer: Offer | None = None,
        hot: HotOffer | None = None,
        source: str = "the model",
    ) -> None:
        self.forward, self.cache, self.batch = forward, cache, batch
        self._memory: dict[str, DeviceMemory] = {}
        self.timing, self.pulse, self.source = Timing(), Pulse(), source
        self._lengths = [0] * cache.slots
        types = packable(forward) if repack else {}
        targets = _targets(devices, types, pagers, hot)
        self.hot = None if hot is None else HotExperts(hot)
        self._context = Context(
            tuple(targets.values()),
            wanted or (lambda node: devices[0].name),
            activations or forward.activations,
            demanded=activations > 0,
            streamed=tuple(pagers),
            hot={} if hot is None else hot.hot.counts,
        )
        self._optimized: dict[tuple[str, bool, bool], Optimized] = {}
        # Which form a token takes hangs on what stands beside it, which `deterministic` rules out.
        steady = any(d.steady for d in devices)
        self._long = LONG if not steady and expandable(forward.roots("tokens")) else 0
        self._detailed = DetailedSteps(self)
        tokens = self.optimized("tokens")
        self._context = replace(self._context, homes=tokens.placement.homes)
        self.pages = Pages(cache, windows_of(forward.roots("tokens")))
        if self.pages.groups[-1].window and batch > cache.batch:
            raise RequestError(f"a step of {batch} tokens is more than the cache was made for: {cache.batch}")
        self._states = state_layout(tokens)
        for device in (d for d in devices if d.name in tokens.placement.device.values()):
            target = targets[device.name]
            target.packed = of_device(target.packed, tokens.placement.device, device.name)
            bound = bind(device, Held(target.packed, target.packed.names, device.name in pagers))
            if self.hot is not None:
                self.hot.put(device, bound, target.packed)
            self._memory[device.name] = DeviceMemory(device, bound, self._states[device.name][""])
        self.packed = {name: targets[name].packed for name in self._memory}
        self._pagers = pagers
        self._programs: dict[tuple[Bucket, str], Program] = {}
        self._seconds: dict[tuple[Bucket, str], Program] = {}
        self.overlaps = _works_apart([m.device for m in self._memory.values()]) and not pagers
        held = {name: m.state for name, m in self._memory.items()}
        self.states = States(held, tokens.roots, self._states, cache)
        self.tier = HostTier(host_cache, self.pages, self.states) if host_cache else None
        self.moved = tokens.placement.moved
        lent = offer is not None and offer.loan.device in self._memory
        self._lent: Lent | None = self._borrow(offer, targets, types) if lent and offer else None

    def _borrow(self, offer: Offer, own: Mapping[str, DeviceTarget], types: Mapping[str, Type]) -> Lent:
        """How steps go for which weights are lent. own: the devices with what they hold themselves."""
        loan = offer.loan
        device, names = own[loan.device].device, {n for layer in loan.layers.values() for n in layer}
        packed = packed_by(device, {name: type for name, type in types.items() if name in names})
        lender = offer.taken(device, packed)
        target = DeviceTarget(device, {**own[loan.device].packed, **packed})
        targets = tuple(target if t.name == loan.device else t for t in own.values())
        context = replace(self._context, targets=targets, wanted=loan.placement, streamed=(loan.device,))
        memory = self._memory | {loan.device: lender.memory(self._memory[loan.device])}
        return Lent(lender, context, memory, loan.least)

    def optimized(self, output: str, lent: bool = False, long: bool = False) -> Optimized:
        """The graph of an output of Forward.roots() after the passes, MIXED before it for one with extras.
        lent: for steps that the CPU's weights are lent for; long: for those that may hold a long stretch of a
        prompt.
        """
        key = output, lent, long
        if key not in self._optimized:
            context = self._lent.context if lent and self._lent else self._context
            context = replace(context, long=self._long) if long else context
            self._optimized[key] = optimize(self.forward.roots(output), context)
        return self._optimized[key]

    def lends(self, tokens: int) -> bool:
        """Whether the CPU's weights are lent to another device for a bucket of so many tokens."""
        return self._lent is not None and tokens >= self._lent.least

    def plan(self, bucket: Bucket, output: str = "tokens") -> Plan:
        lent, long = self.lends(bucket.tokens), 0 < self._long <= bucket.tokens
        weights = {name: memory.weights for name, memory in self._held(lent).items()}
        return compile(self.optimized(output, lent, long), bucket, weights, self._states)

    def _held(self, lent: bool) -> Mapping[str, DeviceMemory]:
        return self._lent.memory if lent and self._lent else self._memory

    def program(self, tokens: int, rows: int, output: str = "tokens") -> Program:
        """The program of the bucket that holds so many tokens and rows; its second one, while a step of the
        first is under way.
        """
        key = (Bucket(bucket_of(tokens, self.batch), bucket_of(rows, self.batch)), output)
        if key not in self._programs:
            with self.pulse.within("compile"):
                self._programs[key] = self.again(self.plan(*key))
        first = self._programs[key]
        if not first.busy:
            return first
        if key not in self._seconds:
            self._seconds[key] = self.again(first.plan, first)
        if self._seconds[key].busy:
            raise ValueError("two steps are under way: collect the first one")
        return self._seconds[key]

    def has(self, tokens: int) -> bool:
        """Whether the program of a step that samples after each of so many tokens was made already."""
        bucket = bucket_of(tokens, self.batch)
        return (Bucket(bucket, bucket), "tokens") in self._programs

    def again(self, plan: Plan, first: Program | None = None) -> Program:
        """A plan of this engine as a program of its own, which the caller closes; first: another of it."""
        lent = self._lent if self.lends(plan.bucket.tokens) else None
        pagers = {**self._pagers, **lent.pagers} if lent else self._pagers
        picked = None if self.hot is None else self.hot.picked
        return Program(plan, self._held(lent is not None), pagers, first, picked)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that have a part of the model."""
        return tuple(self._memory)

    def device_of(self, name: str) -> Device:
        """The device of that name; KeyError where it has no part of the model."""
        held = self._memory if name in self._memory else self._held(self._lent is not None)
        return held[name].device

    @property
    def vocabulary(self) -> int:
        """Tokens that there are logits of."""
        return self.forward.logits.width

    def length(self, slot: int) -> int:
        """Tokens that the slot has in the cache."""
        return self._lengths[slot]

    def rewind(self, slot: int, length: int) -> int:
        """Forgets what the slot has after its first `length` tokens, and gives how many it has now: fewer
        where layers with a window have given back what the next token would see, then none, or where a state
        is there of a shorter beginning only. By as many tokens as were fed last, and REWIND more, layers with
        a window always go back; those with a state to what the slot had before the last `guessed` tokens.
        """
        if not 0 <= length <= self._lengths[slot]:
            raise RequestError(f"slot {slot} has {self._lengths[slot]} tokens, it cannot go back to {length}")
        length = self.pages.reach(slot, length)
        self._copy(self.pages.release(slot, length))
        self._lengths[slot] = length
        return length

    def begin(self, slot: int, ids: Sequence[int], salt: str = "") -> tuple[int, Miss]:
        """Empties the slot and takes what is known of the beginning of `ids` from other requests: how many of
        its tokens need not be fed, and why not more.
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
        """Gives a slot the tokens `ids` of another, whose full blocks the two share from now on."""
        self.rewind(slot, 0)
        length = self._lengths[source]
        self._copy(self.pages.fork(source, slot, length))
        self.states.write_tokens(slot, ids[:length])
        self._lengths[slot] = length

    def _copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self.states.copy_block(copy.old, copy.new, copy.group)

    def publish(self, slot: int, ids: Sequence[int], salt: str = "") -> None:
        """Lets other requests find what the slot has of `ids`."""
        self.pages.publish(slot, ids[: self._lengths[slot]], salt)

    def sample(self, feeds: Sequence[Feed]) -> Sequence[int | Sampled]:
        """As step(), with a Sampled for feeds that have a detail."""
        if any(f.detail is not None for f in feeds):
            return self._detailed.step(feeds)
        return self.step(feeds)

    def step(self, feeds: Sequence[Feed]) -> list[int | Sampled]:
        """Feeds tokens and gives the tokens sampled for each feed that has `sampling`, in order, whatever its
        detail; a Sampled with an error where there is none. At most `batch` tokens.
        """
        return self.collect(self.launch(feeds))

    def launch(self, feeds: Sequence[Feed]) -> Launched:
        """As step(), without waiting for the tokens, which collect() gives. Where `overlaps`, a second step
        may be launched meanwhile, which feeds LAST; steps are collected in their order.
        """
        started = time.perf_counter()
        rows = sum(f.rows for f in feeds)
        program = self.fill(feeds, rows, "tokens", every=False)
        ran = time.perf_counter()
        program.run()
        program.busy = True
        self.advance(feeds)
        return Launched(program, rows, started, ran, time.perf_counter() - ran)

    def collect(self, step: Launched) -> list[int | Sampled]:
        """Waits for a step and gives its tokens; where there is none, a Sampled with the error."""
        before, step.program.busy = time.perf_counter(), False
        found = step.program.read(np.empty(max(1, step.rows), np.int32))
        tokens: list[int | Sampled] = found[: step.rows].tolist()
        inside = step.inside + time.perf_counter() - before
        self.timing.add(step.program, inside, step.started, step.ran)
        if NONE in tokens:
            return [self.undrawn() if t == NONE else t for t in tokens]
        return tokens

    def undrawn(self) -> Sampled:
        """What stands for a token of a row whose logits are lost."""
        return Sampled(NONE, None, 0.0, damaged(self.source, "logits"))

    def logits(self, feeds: Sequence[Feed]) -> Array:
        """Feeds tokens and gives the logits after each of them: (tokens, V) float32."""
        total = sum(len(f.ids) for f in feeds)
        program = self.fill(feeds, total, "logits", every=True)
        program.run()
        self.advance(feeds)
        found = program.read(np.empty(program.output_shape(), np.float32))
        check_logits(found, self.source)
        return found

    def fill(self, feeds: Sequence[Feed], rows: int, output: str, *, every: bool) -> Program:
        """Writes the step block of the program that fits."""
        self._settle_hot()
        total = sum(len(f.ids) for f in feeds)
        if not 0 < total <= self.batch:
            raise RequestError(f"a step takes 1 to {self.batch} tokens, got {total}")
        counts, starts = [len(f.ids) for f in feeds], [self._lengths[f.slot] for f in feeds]
        ends = [start + n for start, n in zip(starts, counts, strict=True)]
        for f, end in zip(feeds, ends, strict=True):
            self.pages.reserve(f.slot, end)
        for f, start, end in zip(feeds, starts, ends, strict=True):
            if f.guessed:
                self._copy(self.pages.keep(f.slot))
            self.pages.advance(f.slot, start, end)
        mixed = any(f.scales for f in feeds)
        program = self.program(total, max(1, rows), MIXED + output if mixed else output)
        fields = program.fields
        # One assignment a field: each costs as much as some thirty of its numbers.
        fields["ids"][:total] = [i for f in feeds for i in f.ids]
        fields["pos"][:total] = [
            p for start, end in zip(starts, ends, strict=True) for p in range(start, end)
        ]
        fields["slot"][:total] = np.repeat([f.slot for f in feeds], counts)
        if KINDS in fields:
            fields[KINDS][:total] = [k for f in feeds for k in f.kinds or (0,) * len(f.ids)]
        if mixed:
            for f, first, n in zip(feeds, accumulate(counts, initial=0), counts, strict=False):
                fields["scales"][first : first + n] = f.scales or 0.0
        if every:
            fields["rows"][:total] = range(total)
        else:
            self._fill_rows(program, feeds, counts)
        for name, table in self.pages.tables.items():
            fields[name][:] = table
        program.counts[0], program.counts[1] = total, total if every else rows
        return program

    def _settle_hot(self) -> None:
        """Lets hot experts move, where no step is under way that may read them."""
        if self.hot is not None and not any(
            p.busy for p in (*self._programs.values(), *self._seconds.values())
        ):
            self.hot.between()

    def _fill_rows(self, program: Program, feeds: Sequence[Feed], counts: Sequence[int]) -> None:
        """Which tokens' rows are sampled, and how: that is often what the last step's were."""
        ends = list(accumulate(counts))
        rows = [row for f, end in zip(feeds, ends, strict=True) for row in range(end - f.rows, end)]
        program.fields["rows"][: len(rows)] = rows
        sampled = [f.sampling for f in feeds if f.sampling is not None for _ in range(f.samples)]
        if sampled != program.sampled:
            params, context = program.fields["params"], self.cache.context
            for row, sampling in enumerate(sampled):
                params[row] = record(sampling, context)
            program.sampled = sampled

    def advance(self, feeds: Sequence[Feed]) -> None:
        """Notes that these tokens are in the cache."""
        for f in feeds:
            self._lengths[f.slot] += len(f.ids)

    def release(self) -> None:
        """Frees programs and states; the devices and their weights stay, for another engine to use."""
        self._detailed.close()
        for program in (*self._seconds.values(), *self._programs.values()):
            program.close()
        self._seconds.clear()
        self._programs.clear()
        if self._lent is not None:
            self._lent.lender.close()
            self._lent = None
        if self.hot is not None:
            self.hot.close()
        for memory in self._memory.values():
            memory.state.close()

    def close(self) -> None:
        """Frees programs, buffers and devices."""
        self.release()
        for memory in self._memory.values():
            memory.close()
        self._memory.clear()
