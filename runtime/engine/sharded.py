"""A model on devices of which some may be groups: how it is divided, what the passes know of each rank, and
its states as those of one model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from satchel.runtime.compiler import Trace, optimize_ranks
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.memory import nbytes
from satchel.runtime.compiler.optimized import NO_GROUPS, Optimized
from satchel.runtime.compiler.shard import GroupTraits, prepared, rank_of, shardings_of, state_ranges
from satchel.runtime.device.device import Buffer, Device
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.engine.lanes import StageThreads
from satchel.runtime.engine.states import TOKENS, Layouts, Paged, States, grouped, paged_formats
from satchel.runtime.graph import LEAVES, Array, Node, Roots, toposort
from satchel.runtime.layers.arch import WITH_ADAPTERS, Cache, Forward
from satchel.runtime.plan import Bucket
from satchel.runtime.shard.division import Division, Home
from satchel.runtime.shard.pieces import Range
from satchel.runtime.weights.packing import packable, packable_in
from satchel.runtime.weights.residency import Residency, Targets

ROOM = 1.1  # memory of a member, over its weights and caches: the scratch of steps
# The outputs that read all weights.
WEIGHTED = ("tokens", "logits", WITH_ADAPTERS + "tokens", WITH_ADAPTERS + "logits")


class DividedModel(NamedTuple):
    """A model on its devices, as the compiler sees it."""

    targets: Targets  # the devices, and the members of groups
    contexts: tuple[Context, ...]  # of each rank; one where no device is a group
    division: Division | None = None  # None: no device is a group

    def optimized(self, roots: Roots, contexts: Sequence[Context], trace: Trace | None = None) -> Optimized:
        """A graph of the model after the passes. contexts: these ones, changed for the graph."""
        return optimize_ranks(self.division.members if self.division else NO_GROUPS, roots, contexts, trace)


class CacheRoom(NamedTuple):
    """Whether a group divides caches by blocks (context parallelism): "on", "off", or "auto": if a member
    lacks the room for them otherwise. free: bytes that the model may take of each member, by its name.
    """

    mode: str = "off"
    free: Mapping[str, int] = MappingProxyType({})


UNDIVIDED = CacheRoom()


def outputs_of(forward: Forward) -> Iterator[str]:
    """The names of all outputs that may run."""
    names = ("tokens", "logits", "host_sampling", "scores", "hidden")
    for name in names if forward.causal else ("tokens", "logits", "hidden"):
        yield name
        if forward.with_adapters is not None:
            yield WITH_ADAPTERS + name


def unlike(members: Sequence[Device]) -> bool:
    """Whether devices differ in name or kernels, so that their results may differ in the last bits."""
    return len({(info.name, info.variant, info.image) for info in (d.info() for d in members)}) > 1


def divided_model(
    devices: Sequence[Device],
    forward: Forward,
    residency: Residency,
    home: Home,
    activations: int,
    room: CacheRoom = UNDIVIDED,
    outputs: Sequence[str] = (),
) -> DividedModel:
    """home: the device, or the group, on which a node is wanted. activations: as of Context; 0: the model's
    own. room: whether groups divide their caches by blocks. outputs: those that are compiled, "tokens" among
    them; (): all that may run.
    """
    groups = {d.name: d for d in devices if isinstance(d, GroupDevice)}
    plain = [d for d in devices if d.name not in groups]
    targets = residency.targets(plain, packable(forward))
    bits = activations or forward.activations
    if not groups:
        return DividedModel(targets, (Context(tuple(targets.values()), home, bits, activations > 0),))
    graphs = {name: prepared(forward.roots(name)) for name in outputs or outputs_of(forward)}
    division = _division(graphs, home, groups, room)
    contexts = []
    for rank in range(division.ranks):
        mine = [g.members[rank] for g in groups.values() if rank < len(g.members)]
        ranks = {name: rank_of(graphs[name], division, rank) for name in WEIGHTED if name in graphs}
        plain_roots = (roots for name, roots in ranks.items() if not name.startswith(WITH_ADAPTERS))
        targets |= residency.targets(mine, packable_in(tuple(chain.from_iterable(plain_roots))))
        adapted = [roots for name, roots in ranks.items() if name.startswith(WITH_ADAPTERS)]
        for name, read in _read(chain.from_iterable(adapted), division, rank).items():
            residency.reads(name, {leaf.name for leaf in read if leaf.op == "weight"})
        contexts.append(
            Context(
                tuple(targets[division.device(d.name, rank)] for d in devices),
                lambda node, rank=rank: division.device(home(node), rank),  # type: ignore[misc]
                bits,
                activations > 0,
                division=division,
                rank=rank,
                members=frozenset(chain.from_iterable(division.members.values())),
            )
        )
    return DividedModel(targets, tuple(contexts), division)


def _division(
    graphs: Mapping[str, Roots], home: Home, groups: Mapping[str, GroupDevice], room: CacheRoom
) -> Division:
    """How each group divides the layers that it has: its caches by blocks where that is wanted."""
    traits = {name: _traits(group) for name, group in groups.items()}
    members = {name: tuple(d.name for d in group.members) for name, group in groups.items()}
    found = Division(home, members, shardings_of(graphs.values(), home, traits))
    short = set(found.shardings) if room.mode == "on" else set[str]()
    if room.mode == "auto":
        short = set(_short(graphs["tokens"], found, room.free))
    by_blocks = {name: traits[name]._replace(blocks=True) for name in traits if name in short}
    more = shardings_of(graphs.values(), home, by_blocks) if by_blocks else {}
    return replace(found, shardings={**found.shardings, **more})


def _short(roots: Roots, division: Division, free: Mapping[str, int]) -> Iterator[str]:
    """The groups of which a member lacks the room for its weights and caches."""
    group_of = {member: name for name, members in division.members.items() for member in members}
    for rank in range(division.ranks):
        for device, held in _read(rank_of(roots, division, rank), division, rank).items():
            size = sum(nbytes(leaf.type, Bucket(1, 1)) for leaf in held if leaf.op in ("weight", "state"))
            if ROOM * size > free[device]:
                yield group_of[device]


def _traits(group: GroupDevice) -> GroupTraits:
    return GroupTraits(group.shares or (1.0,) * len(group.members), unlike(group.members))


def _read(roots: Iterable[Node], division: Division, rank: int) -> Mapping[str, set[Node]]:
    """Leaves of a rank's graphs on each group's member: weights and pieces of them, states, and others."""
    found: dict[str, set[Node]] = {}
    for node in toposort(roots):
        group = division.home(node) if node.op not in LEAVES else ""
        if group in division.members:
            read = found.setdefault(division.device(group, rank), set())
            read.update(s for s in node.src if s.op in LEAVES)
    return found


class HeadsPart(NamedTuple):
    """The part of a block that one device has: bytes of the block as one device has it, and their place."""

    at: Paged
    start: int
    stop: int
    first: bool  # the first device with these bytes, which is asked for them


class BlocksPart(NamedTuple):
    """A cache whose blocks are dealt among the N members of a group: block b is block b // N of member
    b % N.
    """

    places: Sequence[Paged]  # of each member
    start: int  # bytes of the block as one device has it
    stop: int

    def of(self, block: int) -> Paged:
        """The device of a block, its place there, and its size."""
        number, member = divmod(block, len(self.places))
        device, start, size = self.places[member]
        return Paged(device, start + size * number, size)


class DividedStates(States):
    """States of a model that groups divide. A block is read and written as one device has it, heads in the
    model's order, so that saved states do not depend on the devices.

    ranks: the graph of each rank. whole: the roots before all passes. Otherwise as of States.
    """

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        ranks: Sequence[Optimized],
        whole: Roots,
        layouts: Layouts,
        division: Division,
        cache: Cache,
        lanes: StageThreads | None = None,
    ) -> None:
        self.buffers, self.cache, self._lanes = buffers, cache, lanes
        self.formats = paged_formats(whole)
        self._tables = [Paged(device, at[TOKENS], 0) for device, at in layouts.items() if TOKENS in at]
        self._stage_of = {m: name for name, members in division.members.items() for m in members}
        places, ranges = _places(ranks, layouts), state_ranges(whole, division)
        dealt = frozenset[str]().union(*(own.blocks for own in division.shardings.values()))
        self._parts: list[list[HeadsPart]] = []
        self._dealt: list[list[BlocksPart]] = []
        sizes, paged = list[int](), list[tuple[Paged, ...]]()
        for group in grouped(whole):
            parts, blocks_parts, whole_parts, at = list[HeadsPart](), list[BlocksPart](), list[Paged](), 0
            for name, type in group:
                blocks, heads = type.shape[0], type.shape[1]
                assert isinstance(blocks, int)
                size = nbytes(type, Bucket(1, 1)) // blocks
                each = size // heads if name in ranges and isinstance(heads, int) else size
                if name in dealt:
                    blocks_parts.append(BlocksPart(places[name], at, at + size))
                else:
                    parts += _heads(places[name], ranges.get(name, ()), at, each)
                whole_parts.append(Paged("", at, size))  # as a block is read: no device holds it so
                at += size
            self._parts.append(parts)
            self._dealt.append(blocks_parts)
            paged.append(tuple(whole_parts))
            sizes.append(at)
        self.paged, self.block_bytes = tuple(paged), tuple(sizes)

    def copy_block(self, old: int, new: int, group: int = 0) -> None:
        self._quiet()
        for device, start, size in (part.at for part in self._parts[group]):
            self.buffers[device].copy(start + size * new, start + size * old, size)
        for dealt in self._dealt[group]:
            (device, source, size), (other, target, _) = dealt.of(old), dealt.of(new)
            if device == other:
                self.buffers[device].copy(target, source, size)
            else:  # through host memory: a buffer copies within itself alone
                data = np.empty(size, np.uint8)
                self.buffers[device].read_into(source, data)
                self.buffers[other].write(target, data)

    def read_block(self, block: int, out: Array, group: int = 0) -> None:
        self._quiet()
        for (device, start, size), begin, end, first in self._parts[group]:
            if first:
                self.buffers[device].read_into(start + size * block, out[begin:end])
        for dealt in self._dealt[group]:
            device, at, _ = dealt.of(block)
            self.buffers[device].read_into(at, out[dealt.start : dealt.stop])

    def write_block(self, block: int, data: Array, group: int = 0) -> None:
        self._quiet()
        for (device, start, size), begin, end, _ in self._parts[group]:
            self.buffers[device].write(start + size * block, data[begin:end])
        for dealt in self._dealt[group]:
            device, at, _ = dealt.of(block)
            self.buffers[device].write(at, data[dealt.start : dealt.stop])

    def write_tokens(self, slot: int, ids: Sequence[int]) -> None:
        values = np.asarray(ids, np.int32)
        for device, start, _ in self._tables:
            at = start + 4 * slot * (self.cache.context + 1)
            write = partial(self.buffers[device].write, at, values)
            if self._lanes is None:
                write()
            else:  # no step under way has this slot
                self._lanes.alone(self._stage_of.get(device, device), write)


def _places(ranks: Sequence[Optimized], layouts: Layouts) -> Mapping[str, Sequence[Paged]]:
    """Where each paged state lies: on the members of its group in their order, or on the one device."""
    found: dict[str, dict[str, Paged]] = {}
    for rank in ranks:
        for name, type in chain.from_iterable(grouped(rank.roots)):
            device, blocks = rank.assignment.homes[name], type.shape[0]
            assert isinstance(blocks, int)
            place = Paged(device, layouts[device][name], nbytes(type, Bucket(1, 1)) // blocks)
            found.setdefault(name, {}).setdefault(device, place)
    return {name: tuple(places.values()) for name, places in found.items()}


def _heads(places: Sequence[Paged], ranges: Sequence[Range], at: int, each: int) -> Iterator[HeadsPart]:
    """The parts of a state's block, which begins at a byte of the blocks of all layers. ranges: heads of each
    place; (): each has all. each: bytes of a head, or of what is not divided.
    """
    done = 0
    for place, mine in zip(places, ranges or [Range(0, 1)] * len(places), strict=True):
        yield HeadsPart(place, at + mine.start * each, at + mine.stop * each, mine.stop > done)
        done = max(done, mine.stop)
