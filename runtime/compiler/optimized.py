"""What the passes give: a graph, and the device of each of its nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from satchel.runtime.compiler.context import CompileTarget
from satchel.runtime.graph import Node, Roots

NO_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """Result of placement."""

    roots: Roots  # the graph with its copies
    device: dict[Node, str]  # of every node that is not a leaf
    moved: tuple[str, ...]  # nodes that are not on their wanted device
    homes: dict[str, str] = field(default_factory=dict)  # the device of each state, by name
    streamed: Collection[str] = ()  # devices that run layer by layer


@dataclass(frozen=True, slots=True)
class Optimized:
    """A graph after the passes, and the device of each node."""

    roots: Roots
    assignment: DeviceAssignment
    targets: tuple[CompileTarget, ...]
    # Of groups of devices: the names of each one's members, and the graph of each rank, of which the one
    # above is the first's.
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_GROUPS)
    ranks: tuple[Optimized, ...] = ()

    @property
    def all(self) -> tuple[Optimized, ...]:
        """The graphs of single ranks that it stands for."""
        return self.ranks or (self,)

    def stage(self, device: str) -> str:
        """The group that a device is a member of, or the device."""
        return next((name for name, members in self.groups.items() if device in members), device)
