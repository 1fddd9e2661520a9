"""Placement: the device of each node, from the weight that it multiplies, the state that it touches, or its
layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from satchel.runtime.compiler.place import touched
from satchel.runtime.graph import LEAVES, Node
from satchel.runtime.ops.op import op_of
from satchel.runtime.ops.split import LORA_A, LORA_B
from satchel.runtime.shard.pieces import Piece

LORA = (LORA_A, LORA_B)


@dataclass(frozen=True, slots=True)
class Placement:
    """Maps nodes to devices."""

    first: str  # the default device
    labels: Mapping[str, str] = field(default_factory=dict)  # devices of "embed", "blk.N" and "output"
    # Devices of weights that are not with their layer.
    weights: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)  # devices of states that are not with their layer

    def __call__(self, node: Node) -> str:
        """The device that computes a node, or holds it if it is a weight or a state."""
        if node.op == "weight":
            return self.weight(node.name, "")
        if node.op == "state":
            return self.states.get(node.name, self.label(node.name))
        own = next((s for s in node.src if s.op == "weight" and self._own(s.name)), None)
        if own is not None:
            return self.weight(own.name, node.name)
        state = None if node.op in LEAVES else touched(node)
        if state is not None and state.name in self.states:
            return self.states[state.name]
        made_by = op_of(node)
        if made_by is not None and made_by.follows:
            before = node.src[0]
            if before.op not in LEAVES and before.name == node.name:
                return self(before)
        return self.label(node.name)

    def label(self, label: str) -> str:
        return self.labels.get(label, self.first)

    def weight(self, name: str, label: str) -> str:
        """The device that holds a tensor for the nodes of this label."""
        return self.weights.get(self._base(name)) or self.label(label)

    def _own(self, name: str) -> bool:
        return self._base(name) in self.weights

    def _base(self, name: str) -> str:
        """The tensor of the file that a weight is a piece of, or an adapter's factor for."""
        tensor = Piece.of(name).tensor
        return next((tensor.removesuffix(end) for end in LORA if tensor.endswith(end)), tensor)
