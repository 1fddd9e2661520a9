"""What the passes give: a graph, and the device of each of its nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from satchel.runtime.compiler.context import CompileTarget
from satchel.runtime.graph import Node, Roots


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
    # Of a group of devices: its name, and the graph of each member, of which the one above is the first's.
    group: str = ""
    members: tuple[Optimized, ...] = ()

    @property
    def all(self) -> tuple[Optimized, ...]:
        """The graphs of single devices that it stands for."""
        return self.members or (self,)
