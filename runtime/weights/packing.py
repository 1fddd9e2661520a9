"""Decides which weights a device packs in its own layout, and where each tensor of the file then lies.

The decision depends on types alone, so a dry run and a load agree, and a probe asks for what the plan will
hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from satchel.formats.gguf import GGUF
from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.graph import LEAVES, Dim, Node, Roots, Type, toposort
from satchel.runtime.layers.arch import Forward
from satchel.runtime.ops.op import op_of
from satchel.runtime.plan import ALIGN, WeightPlace, align_up

PACKED_BUFFER = "weights.packed"
ALIGNMENT = 32  # bytes; a tensor aligned so in its file can be read in place


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in a device's packed layout: `stack` matrices of (rows, columns)."""

    format: int  # GGUF's number
    stack: int
    rows: int
    columns: int
    size: int  # packed bytes


class PackedWeights(dict[str, PackedWeight]):
    """The weights that a device packs, by name.

    names: all weights that the device reads; None: every one of the file.
    streamed: they are read on demand, not when the model is loaded.
    """

    def __init__(
        self, packed: Mapping[str, PackedWeight], names: frozenset[str] | None = None, streamed: bool = False
    ) -> None:
        super().__init__(packed)
        self.names, self.streamed = names, streamed

    def without(self, names: frozenset[str]) -> PackedWeights:
        """The same without these weights. ValueError where it has every weight of the file."""
        if self.names is None:
            raise ValueError("weights without names: which are left is not known")
        left = {name: found for name, found in self.items() if name not in names}
        return PackedWeights(left, self.names - names, self.streamed)

    def reads(self, name: str) -> bool:
        return self.names is None or name in self.names


@dataclass(slots=True)
class Places:
    """A WeightPlaces without memory."""

    places: dict[str, WeightPlace] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)  # bytes of each, by name

    def place(self, name: str) -> WeightPlace:
        return self.places[name]

    def place_at(self, name: str, buffer: str, offset: int, packed: int = 0) -> None:
        self.places[name] = WeightPlace(buffer, offset, packed)

    def sizes(self) -> dict[str, int]:
        return dict(self.buffers)


def packable(forward: Forward) -> dict[str, Type]:
    """Weight matrices, and stacks of them, that are used only as the `weights` sources of ops."""
    return packable_in((*forward.roots("tokens"), *forward.roots("logits")))


def packable_in(roots: Roots) -> dict[str, Type]:
    """packable() of one graph."""
    found: dict[str, Type] = {}
    barred: set[str] = set()
    for node in toposort(roots):
        made_by = op_of(node)
        matrices = () if made_by is None else node.src[made_by.weights]
        for weight in (s for s in node.src if s.op == "weight"):
            if weight in matrices and len(weight.shape) in (2, 3):
                found[weight.name] = weight.type
            else:
                barred.add(weight.name)
    return {name: type for name, type in found.items() if name not in barred}


def packed_by(device: Device, types: Mapping[str, Type]) -> dict[str, PackedWeight]:
    """Those of these weights that the device packs."""
    asked = {name: _asked(device, type.format, type.shape) for name, type in types.items()}
    return {name: packed for name, packed in asked.items() if packed.size}


def _asked(device: Device, format: str, shape: tuple[int | Dim, ...]) -> PackedWeight:
    stack, rows, columns = (d for d in (1, *shape)[-3:] if not isinstance(d, Dim))
    number = FORMATS[format].id
    return PackedWeight(number, stack, rows, columns, device.packed(number, stack, rows, columns))


def first_of(device: Device, whole: PackedWeight, count: int) -> PackedWeight | None:
    """The first `count` matrices of a packed stack; None where they do not lie as in the whole stack."""
    each, rest = divmod(whole.size, whole.stack)
    size = device.packed(whole.format, count, whole.rows, whole.columns)
    return None if rest or each % ALIGN or size != each * count else replace(whole, stack=count, size=size)


def of_device(packed: Mapping[str, PackedWeight], device: Mapping[Node, str], name: str) -> PackedWeights:
    """The weights that nodes on this device read."""
    on_it = (node for node, where in device.items() if where == name and node.op not in LEAVES)
    read = frozenset(s.name for node in on_it for s in node.src if s.op == "weight")
    return PackedWeights({weight: found for weight, found in packed.items() if weight in read}, read)


def in_place(gguf: GGUF, device: Device) -> bool:
    """Whether the device reads unpacked weights directly from the mapped file."""
    return device.can_wrap and all(info.offset % ALIGNMENT == 0 for info in gguf.tensors.values())


def file_places(gguf: GGUF, mapped: bool, packed: PackedWeights) -> Places:
    """Places of all tensors: packed ones in a buffer of their own; others in the mapped file, or copied one
    after another.
    """
    found, rest, at = Places(), 0, 0
    for name, info in gguf.tensors.items():
        if not packed.reads(name):
            continue
        if name in packed:
            found.places[name] = WeightPlace(PACKED_BUFFER, at, packed[name].size)
            at = align_up(at + packed[name].size)
        elif mapped:
            found.places[name] = WeightPlace(f"weights.{info.part}", info.offset)
        else:
            found.places[name] = WeightPlace("weights.0", rest)
            rest = align_up(rest + info.nbytes)
    parts = {f"weights.{i}": part.size for i, part in enumerate(gguf.parts)}
    found.buffers.update(parts if mapped else {"weights.0": max(rest, 64)})
    if at:
        found.buffers[PACKED_BUFFER] = at
    return found


def own_bytes(gguf: GGUF, device: Device, repack: bool) -> int:
    """Memory besides the mapped file that a model's weights can take on the device, from the header alone."""
    tensors = gguf.tensors.values()
    if not in_place(gguf, device):
        return sum(align_up(info.nbytes) for info in tensors)
    known = (i for i in tensors if repack and len(i.shape) in (2, 3) and i.format in FORMATS)
    return sum(_asked(device, info.format, info.shape).size for info in known)
