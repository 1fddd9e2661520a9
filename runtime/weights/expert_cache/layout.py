"""Which experts a device can cache, and where their bytes lie there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from satchel.formats.gguf import GGUF
from satchel.runtime.compiler.context import ExpertPart
from satchel.runtime.compiler.split_experts import part_table, rest_table
from satchel.runtime.device.device import Device
from satchel.runtime.plan import WeightPlace, align_up
from satchel.runtime.weights.packing import PackedWeight, Places, first_of

BUFFER = "weights.expert_cache"
CACHED = ".cached"  # suffix of a tensor's cached experts


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """One layer of the expert cache."""

    device: str
    count: int  # experts that `device` caches
    experts: int  # experts of the layer
    tensors: tuple[str, ...]  # their names

    @property
    def part(self) -> ExpertPart:
        return ExpertPart(self.count, CACHED)


@dataclass(frozen=True, slots=True)
class ExpertCacheLayout:
    """Layers of the expert cache, by label."""

    host: str  # the device that has all experts
    layers: Mapping[str, CachedLayer]
    share: float = 0.0  # expected fraction of a token's experts that are cached

    @property
    def parts(self) -> dict[str, ExpertPart]:
        return {label: layer.part for label, layer in self.layers.items()}

    @property
    def weights(self) -> dict[str, str]:
        """Device of each tensor that the split graph has in addition."""
        found: dict[str, str] = {}
        for label, layer in self.layers.items():
            found[rest_table(label, layer.part)] = self.host
            found[part_table(label, layer.part)] = layer.device
            found |= {name + CACHED: layer.device for name in layer.tensors}
        return found

    def without(self, labels: Collection[str]) -> ExpertCacheLayout:
        """The layout without these layers."""
        return replace(self, layers={label: x for label, x in self.layers.items() if label not in labels})

    def packed(self, device: Device, whole: Mapping[str, PackedWeight]) -> dict[str, PackedWeight]:
        """Cached tensors that the device packs. whole: the weights that it packs as a whole; of these, those
        with packed experts that lie one after another.
        """
        found: dict[str, PackedWeight] = {}
        for layer in (x for x in self.layers.values() if x.device == device.name):
            for name in (n for n in layer.tensors if n in whole and whole[n].stack == layer.experts):
                if (first := first_of(device, whole[name], layer.count)) is not None:
                    found[name + CACHED] = first
        return found

    def add_places(self, gguf: GGUF, device: str, packed: Mapping[str, PackedWeight], places: Places) -> int:
        """Adds the places of the device's cached experts, in one buffer, and gives its bytes; 0: it caches
        none.
        """
        at = 0
        for label, layer in self.layers.items():
            if device == self.host:
                places.places[rest_table(label, layer.part)] = WeightPlace(BUFFER, at)
                at = align_up(at + 4 * layer.experts)
            if device == layer.device:
                places.places[part_table(label, layer.part)] = WeightPlace(BUFFER, at)
                at = align_up(at + 4 * layer.experts)
                for name in layer.tensors:
                    form = packed.get(name + CACHED)
                    places.places[name + CACHED] = WeightPlace(BUFFER, at, form.size if form else 0)
                    at = align_up(at + (form.size if form else plain_bytes(gguf, name, layer)))
        if at:
            places.buffers[BUFFER] = at
        return at


def plain_bytes(gguf: GGUF, name: str, layer: CachedLayer) -> int:
    """Bytes of a tensor's cached experts in the file's format."""
    return gguf.tensors[name].nbytes // layer.experts * layer.count
