"""What the passes know beside the graph: the devices, what the placement wants, the form of the plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from satchel.runtime.graph import Node
from satchel.runtime.plan import ONE, Bucket
from satchel.runtime.shard.division import Division


class CompileTarget(Protocol):
    """A device as the passes see it."""

    name: str

    @property
    def expands(self) -> bool:
        """Whether the expanded form of MLA is its faster one for long runs of a prompt."""

    def refusal(self, node: Node, bucket: Bucket = ONE) -> str:
        """The reason why it cannot compute a node in a step of this bucket, or ""."""

    def is_custom(self, node: Node, bucket: Bucket) -> bool:
        """Whether a kernel of the user computes the node: it is not fused with its neighbours."""


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """The experts of a layer that a second device has."""

    count: int
    suffix: str  # of the names of its tensors and of its slot table


@dataclass(frozen=True, slots=True)
class Context:
    """What the passes know beside the graph."""

    targets: tuple[CompileTarget, ...]  # in order of preference
    wanted: Callable[[Node], str]  # the device that the placement wants for a node
    activations: int = 8  # bits of the activations of quantized weights: 8 (the format's own) or 16
    # A device without 16-bit products is an error; otherwise it takes the format's activations.
    demanded: bool = True
    # Devices of states that an earlier graph has placed, by name.
    homes: Mapping[str, str] = field(default_factory=dict)
    streamed: Collection[str] = ()  # devices that run layer by layer
    long: int = 0  # tokens from which on a prompt takes the expanded form of MLA; 0: never
    # Experts that a second device has beside the layer's own, by layer label.
    expert_parts: Mapping[str, ExpertPart] = field(default_factory=dict)
    # How groups of devices divide the model, and the rank that this graph is for.
    division: Division | None = None
    rank: int = 0
    # Devices that are members of groups: no node goes there, or leaves, but as wanted.
    members: Collection[str] = ()

    def target(self, name: str) -> CompileTarget:
        return next(t for t in self.targets if t.name == name)

    def order(self, name: str) -> tuple[CompileTarget, ...]:
        """The devices to try for a node that is wanted on this one. No other device has the part of a group's
        member.
        """
        others = (t for t in self.targets if t.name != name and t.name not in self.members)
        return (self.target(name), *(() if name in self.members else others))
