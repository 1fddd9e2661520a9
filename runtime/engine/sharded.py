"""A model on a group of devices: how it is divided, what the passes know of each member, and its states as
those of one model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.memory import nbytes
from satchel.runtime.compiler.shard import prepared, sharding_of
from satchel.runtime.device.device import Buffer, Device
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.engine.states import Paged, States, grouped, paged_formats
from satchel.runtime.graph import Array, Roots, leaves
from satchel.runtime.layers.arch import WITH_ADAPTERS, Cache, Forward
from satchel.runtime.ops.split import Split
from satchel.runtime.plan import Bucket
from satchel.runtime.shard.pieces import Range
from satchel.runtime.shard.rank import rank_graph
from satchel.runtime.shard.sharding import Sharding
from satchel.runtime.weights.packing import packable_in
from satchel.runtime.weights.residency import Residency, Targets


class ShardedModel(NamedTuple):
    """How a model is divided among the members of a group."""

    sharding: Sharding
    targets: Targets  # the members as the compiler sees them
    contexts: tuple[Context, ...]  # of each member


ROOM = 1.1  # memory of a member, over its weights and caches: the scratch of steps


class CacheRoom(NamedTuple):
    """Whether a group divides caches by blocks (context parallelism): "on", "off", or "auto": if a member
    lacks the room for them otherwise. free: bytes that the model may take of each member.
    """

    mode: str = "off"
    free: tuple[int, ...] = ()


UNDIVIDED = CacheRoom()


def outputs_of(forward: Forward) -> Iterator[Roots]:
    """The roots of all outputs that may run."""
    names = ("tokens", "logits", "host_sampling", "scores", "hidden")
    for name in names if forward.causal else ("tokens", "logits", "hidden"):
        yield forward.roots(name)
        if forward.with_adapters is not None:
            yield forward.roots(WITH_ADAPTERS + name)


def unlike(members: Sequence[Device]) -> bool:
    """Whether devices differ in name or kernels, so that their results may differ in the last bits."""
    return len({(info.name, info.variant, info.image) for info in (d.info() for d in members)}) > 1


def divide(
    forward: Forward, shares: Sequence[float], unlike: bool = False, room: CacheRoom = UNDIVIDED
) -> Sharding:
    """How a model is divided among ranks. unlike: of Sharding."""
    outputs = tuple(outputs_of(forward))
    found = sharding_of(outputs, shares, unlike)
    if room.mode == "off" or (room.mode == "auto" and _fits(forward, found, room.free)):
        return found
    return sharding_of(outputs, shares, unlike, blocks=True)


def _fits(forward: Forward, sharding: Sharding, free: Sequence[int]) -> bool:
    """Whether each rank has room for its weights and caches."""
    whole = prepared(forward.roots("tokens"))
    for rank, room in enumerate(free):
        roots = rank_graph(whole, sharding, rank)
        held = (*leaves(roots, "weight"), *leaves(roots, "state"))
        if ROOM * sum(nbytes(leaf.type, Bucket(1, 1)) for leaf in held) > room:
            return False
    return True


def shard_model(
    group: GroupDevice,
    forward: Forward,
    residency: Residency,
    activations: int,
    room: CacheRoom = UNDIVIDED,
) -> ShardedModel:
    """activations: as of Context; 0: the model's own."""
    shares = group.shares or (1.0,) * len(group.members)
    sharding = divide(forward, shares, unlike(group.members), room)
    targets: Targets = {}
    contexts: list[Context] = []
    for rank, member in enumerate(group.members):
        roots = (rank_graph(prepared(forward.roots(name)), sharding, rank) for name in ("tokens", "logits"))
        targets |= residency.targets([member], packable_in(tuple(chain.from_iterable(roots))))
        if forward.with_adapters is not None:
            residency.reads(member.name, _adapted(forward, sharding, rank))
        contexts.append(
            Context(
                (targets[member.name],),
                lambda node, name=member.name: name,  # type: ignore[misc]
                activations or forward.activations,
                demanded=activations > 0,
                sharding=sharding,
                rank=rank,
            )
        )
    return ShardedModel(sharding, targets, tuple(contexts))


def _adapted(forward: Forward, sharding: Sharding, rank: int) -> set[str]:
    """Weights and pieces of them that a rank's graphs with adapters read."""
    found: set[str] = set()
    for name in ("tokens", "logits"):
        roots = rank_graph(prepared(forward.roots(WITH_ADAPTERS + name)), sharding, rank)
        found |= {weight.name for weight in leaves(roots, "weight")}
    return found


def state_ranges(roots: Roots, sharding: Sharding) -> Mapping[str, tuple[Range, ...]]:
    """The heads of each divided cache that every rank has, by the state's name."""
    found = sharding.infer(prepared(roots))
    divided = {name: spec for name, spec in found.states.items() if isinstance(spec, Split)}
    return {name: sharding.cuts[spec.cut].ranges for name, spec in divided.items()}


class HeadsPart(NamedTuple):
    """The part of a block that one rank has: bytes of the block as one device has it, and their place."""

    rank: int
    at: Paged
    start: int
    stop: int
    first: bool  # the first rank with these bytes, which is asked for them


class BlocksPart(NamedTuple):
    """A cache whose blocks are dealt among the ranks: block b is block b // ranks of rank b % ranks."""

    places: tuple[Paged, ...]  # by rank
    start: int  # bytes of the block as one device has it
    stop: int

    def of(self, block: int) -> tuple[int, str, int, int]:
        """Rank and device of a block, its offset in the device's state buffer, and its size."""
        number, rank = divmod(block, len(self.places))
        device, start, size = self.places[rank]
        return rank, device, start + size * number, size


class GroupStates(States):
    """States of all ranks. A block is read and written as one device has it, heads in the model's order, so
    that saved states do not depend on the group.
    """

    def __init__(
        self, ranks: Sequence[States], roots: Sequence[Roots], whole: Roots, sharding: Sharding, cache: Cache
    ) -> None:
        self.ranks, self.cache = tuple(ranks), cache
        self.formats = paged_formats(whole)
        names = [[[name for name, _ in group] for group in grouped(own)] for own in roots]
        places = [_by_name(group_names, own.paged) for group_names, own in zip(names, ranks, strict=True)]
        ranges = state_ranges(whole, sharding)
        self._parts: list[list[HeadsPart]] = []
        self._dealt: list[list[BlocksPart]] = []
        sizes, paged = list[int](), list[tuple[Paged, ...]]()
        for group in grouped(whole):
            parts, dealt, whole_parts, at = list[HeadsPart](), list[BlocksPart](), list[Paged](), 0
            for name, type in group:
                blocks, heads = type.shape[0], type.shape[1]
                assert isinstance(blocks, int)
                size, done = nbytes(type, Bucket(1, 1)) // blocks, 0
                if name in sharding.blocks:
                    dealt.append(BlocksPart(tuple(place[name] for place in places), at, at + size))
                for rank, place in enumerate(places if name not in sharding.blocks else ()):
                    each = size // heads if name in ranges and isinstance(heads, int) else size
                    mine = ranges[name][rank] if name in ranges else Range(0, 1)
                    parts.append(
                        HeadsPart(
                            rank, place[name], at + mine.start * each, at + mine.stop * each, mine.stop > done
                        )
                    )
                    done = max(done, mine.stop)
                whole_parts.append(Paged("", at, size))  # as a block is read: no device holds it so
                at += size
            self._parts.append(parts)
            self._dealt.append(dealt)
            paged.append(tuple(whole_parts))
            sizes.append(at)
        self.paged, self.block_bytes = tuple(paged), tuple(sizes)

    def copy_block(self, old: int, new: int, group: int = 0) -> None:
        for part in self._parts[group]:
            device, start, size = part.at
            self._buffer(part.rank, device).copy(start + size * new, start + size * old, size)
        for dealt in self._dealt[group]:
            rank, device, source, size = dealt.of(old)
            other, there, target, _ = dealt.of(new)
            if rank == other:
                self._buffer(rank, device).copy(target, source, size)
            else:  # through host memory: a buffer copies within itself alone
                data = np.empty(size, np.uint8)
                self._buffer(rank, device).read_into(source, data)
                self._buffer(other, there).write(target, data)

    def read_block(self, block: int, out: Array, group: int = 0) -> None:
        for part in self._parts[group]:
            if part.first:
                device, start, size = part.at
                self._buffer(part.rank, device).read_into(start + size * block, out[part.start : part.stop])
        for dealt in self._dealt[group]:
            rank, device, at, _ = dealt.of(block)
            self._buffer(rank, device).read_into(at, out[dealt.start : dealt.stop])

    def write_block(self, block: int, data: Array, group: int = 0) -> None:
        for part in self._parts[group]:
            device, start, size = part.at
            self._buffer(part.rank, device).write(start + size * block, data[part.start : part.stop])
        for dealt in self._dealt[group]:
            rank, device, at, _ = dealt.of(block)
            self._buffer(rank, device).write(at, data[dealt.start : dealt.stop])

    def _buffer(self, rank: int, device: str) -> Buffer:
        return self.ranks[rank].buffers[device]

    def write_tokens(self, slot: int, ids: Sequence[int]) -> None:
        for rank in self.ranks:
            rank.write_tokens(slot, ids)


def _by_name(names: Sequence[Sequence[str]], paged: Sequence[Sequence[Paged]]) -> dict[str, Paged]:
    return {
        name: place
        for group, places in zip(names, paged, strict=True)
        for name, place in zip(group, places, strict=True)
    }
