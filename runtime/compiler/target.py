"""Asks a device whether it supports an op with these formats and weight layouts. Each combination is asked
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from satchel.runtime.compiler.lower import probe
from satchel.runtime.compiler.memory import window
from satchel.runtime.device.device import EXPANDS, Device
from satchel.runtime.graph import Node
from satchel.runtime.plan import ONE, Bucket
from satchel.runtime.weights.packing import PackedWeight


class DeviceTarget:
    """A device as the compiler sees it. packed: bytes of the weights that it packs, by name."""

    def __init__(self, device: Device, packed: Mapping[str, PackedWeight] = MappingProxyType({})) -> None:
        self.device, self.name, self.packed = device, device.name, packed
        self._known: dict[tuple[object, ...], str] = {}

    def refusal(self, node: Node, bucket: Bucket = ONE) -> str:
        forms = (s.op == "weight" and s.name in self.packed for s in node.src)
        places = ((base.type, offset) for base, offset in map(window, node.src))
        key = (bucket, node.op, node.type, node.args, *(s.type for s in node.src), *forms, *places)
        if key not in self._known:
            self._known[key] = self.device.refusal(probe(node, self.name, self._sizes(node), bucket))
        return self._known[key]

    @property
    def expands(self) -> bool:
        return bool(self.device.info().flags & EXPANDS)

    def is_custom(self, node: Node, bucket: Bucket) -> bool:
        overrides = self.device.overrides_of(probe(node, self.name, self._sizes(node), bucket))
        return any(override.kernel for override in overrides)

    def _sizes(self, node: Node) -> dict[str, int]:
        return {s.name: self.packed[s.name].size for s in node.src if s.name in self.packed}
