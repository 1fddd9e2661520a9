"""How a model is divided among devices of which some are groups (a pipeline of groups): each group divides
the layers that it has among its members, other devices compute theirs whole.

Invariant: a value that goes from one device to another is whole, so any member of a group may give it, and
each may take it.

The graph of rank r has member r of each group. Of a group with fewer members it has one that another rank has
too: equal work, which is in the plan once (runtime/compiler/joined.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from satchel.runtime.graph import Node
from satchel.runtime.shard.sharding import Sharding

Home = Callable[[Node], str]  # the device or group that computes a node of the undivided graph


@dataclass(frozen=True, slots=True)
class Division:
    """The same for all graphs of a model."""

    home: Home
    members: Mapping[str, tuple[str, ...]]  # names of each group's members, by its own
    shardings: Mapping[str, Sharding]  # of the groups that have a part of the model

    @property
    def ranks(self) -> int:
        return max(map(len, self.members.values()), default=1)

    def number(self, group: str, rank: int) -> int:
        """Which member of a group the graph of this rank has."""
        return rank % len(self.members[group])

    def device(self, name: str, rank: int) -> str:
        """What the graph of this rank has of a device or group."""
        return self.members[name][self.number(name, rank)] if name in self.members else name
