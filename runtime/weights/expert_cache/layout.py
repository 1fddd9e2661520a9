"""Which experts a device may cache, and where their bytes lie there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from satchel.formats.gguf import GGUF
from satchel.quant import FORMATS
from satchel.runtime.compiler.expert_cache import CACHED, UNCACHED, table_name
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Type
from satchel.runtime.plan import ALIGN, WeightPlace, align_up
from satchel.runtime.weights.packing import PackedWeight, Places

BUFFER = "weights.expert_cache"


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """`device` caches `count` of a layer's `experts`; tensors: their names."""

    device: str
    count: int
    experts: int
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpertCacheLayout:
    """Layers by label; host: the device that has all of their experts. share: of a token's experts, how many
    are expected to be cached.
    """

    host: str
    layers: Mapping[str, CachedLayer]
    share: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        return {label: layer.count for label, layer in self.layers.items()}

    @property
    def weights(self) -> dict[str, str]:
        """The device of each tensor that the split graph has besides."""
        found: dict[str, str] = {}
        for label, layer in self.layers.items():
            found[table_name(label, UNCACHED)] = self.host
            found[table_name(label, CACHED)] = layer.device
            found |= {name + CACHED: layer.device for name in layer.tensors}
        return found

    def of(self, device: str) -> Iterator[tuple[str, CachedLayer]]:
        return ((label, layer) for label, layer in self.layers.items() if layer.device == device)

    def packed(self, gguf: GGUF, device: Device, types: Mapping[str, Type]) -> dict[str, PackedWeight]:
        """What of it the device keeps in its own order, of tensors of these types: where it keeps all
        experts so, one behind the other.
        """
        found: dict[str, PackedWeight] = {}
        for _, layer in self.of(device.name):
            for name in (n for n in layer.tensors if n in types and len(gguf.tensors[n].shape) == 3):
                info = gguf.tensors[name]
                number, (experts, rows, columns) = FORMATS[info.format].id, info.shape
                each, rest = divmod(device.packed(number, experts, rows, columns), experts)
                size = device.packed(number, layer.count, rows, columns)
                if each and not rest and each % ALIGN == 0 and size == each * layer.count:
                    found[name + CACHED] = PackedWeight(number, layer.count, rows, columns, size)
        return found

    def add_places(self, gguf: GGUF, device: str, packed: Mapping[str, PackedWeight], places: Places) -> int:
        """Adds where the device has its part, in one buffer, and gives its bytes; 0: it has none."""
        at = 0
        for label, layer in self.layers.items():
            if device == self.host:
                places.places[table_name(label, UNCACHED)] = WeightPlace(BUFFER, at)
                at = align_up(at + 4 * layer.experts)
            if device == layer.device:
                places.places[table_name(label, CACHED)] = WeightPlace(BUFFER, at)
                at = align_up(at + 4 * layer.experts)
                for name in layer.tensors:
                    form = packed.get(name + CACHED)
                    places.places[name + CACHED] = WeightPlace(BUFFER, at, form.size if form else 0)
                    at = align_up(at + (form.size if form else plain_bytes(gguf, name, layer)))
        if at:
            places.buffers[BUFFER] = at
        return at


def plain_bytes(gguf: GGUF, name: str, layer: CachedLayer) -> int:
    """Of a tensor's experts that are held, as the file has them."""
    return gguf.tensors[name].nbytes // layer.experts * layer.count
