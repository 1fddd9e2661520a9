"""What the passes ask of a device: has it this op for these formats, its weights as they will lie there?
Asked once for each combination.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from satchel.runtime.compiler.lower import probe
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Node
from satchel.runtime.weights.packing import PackedWeight


class DeviceTarget:
    """A device as the compiler sees it. packed: the weights that it keeps in its own order, by name."""

    def __init__(self, device: Device, packed: Mapping[str, PackedWeight] = MappingProxyType({})) -> None:
        self.device, self.name, self.packed = device, device.name, packed
        self._known: dict[tuple[object, ...], str] = {}

    def refusal(self, node: Node) -> str:
        forms = (s.op == "weight" and s.name in self.packed for s in node.src)
        key = (node.op, node.type, node.args, *(s.type for s in node.src), *forms)
        if key not in self._known:
            self._known[key] = self.device.refusal(probe(node, self.name, self._sizes(node)))
        return self._known[key]

    def _sizes(self, node: Node) -> dict[str, int]:
        return {s.name: self.packed[s.name].size for s in node.src if s.name in self.packed}
