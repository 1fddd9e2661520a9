"""Which weights a device keeps in its own order, and where each of a file's tensors then lies.

Decided from types alone, so that a dry run and a load agree, and a probe asks for what the plan will hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from satchel.formats.gguf import GGUF
from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.graph import LEAVES, Dim, Node, Type, toposort
from satchel.runtime.layers.arch import Forward
from satchel.runtime.ops.op import op_of
from satchel.runtime.plan import WeightPlace, align_up

PACKED_BUFFER = "weights.packed"
ALIGNMENT = 32  # of a tensor in its file: a device may read it in place


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in a device's own order: `stack` matrices of (rows, columns), `size` bytes; format: GGUF's
    number.
    """

    format: int
    stack: int
    rows: int
    columns: int
    size: int


class PackedWeights(dict[str, PackedWeight]):
    """The weights that a device keeps in its own order, by name; `names`: of all weights that it reads, None
    where that is every one of the file. streamed: they are read as they are needed, not before.
    """

    def __init__(
        self, packed: Mapping[str, PackedWeight], names: frozenset[str] | None = None, streamed: bool = False
    ) -> None:
        super().__init__(packed)
        self.names, self.streamed = names, streamed

    def reads(self, name: str) -> bool:
        return self.names is None or name in self.names


def packed_weights(packed: Mapping[str, PackedWeight]) -> PackedWeights:
    """The argument where it is a PackedWeights, else all weights of a file with these packed."""
    return packed if isinstance(packed, PackedWeights) else PackedWeights(packed)


@dataclass(slots=True)
class Places:
    """A WeightPlaces without memory; sizes() gives the bytes of each buffer by name."""

    places: dict[str, WeightPlace] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)

    def place(self, name: str) -> WeightPlace:
        return self.places[name]

    def sizes(self) -> dict[str, int]:
        return dict(self.buffers)


def packable(forward: Forward) -> dict[str, Type]:
    """Matrices, and stacks of them, that are read as their ops' `weights` alone."""
    found: dict[str, Type] = {}
    barred: set[str] = set()
    roots = (*forward.roots("tokens"), *forward.roots("logits"))
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
    """Those of these weights that the device keeps in its own order."""
    asked = {name: _asked(device, type.format, type.shape) for name, type in types.items()}
    return {name: packed for name, packed in asked.items() if packed.size}


def _asked(device: Device, format: str, shape: tuple[int | Dim, ...]) -> PackedWeight:
    stack, rows, columns = (d for d in (1, *shape)[-3:] if not isinstance(d, Dim))
    number = FORMATS[format].id
    return PackedWeight(number, stack, rows, columns, device.packed(number, stack, rows, columns))


def of_device(packed: Mapping[str, PackedWeight], device: Mapping[Node, str], name: str) -> PackedWeights:
    """What the nodes on this device read."""
    on_it = (node for node, where in device.items() if where == name and node.op not in LEAVES)
    read = frozenset(s.name for node in on_it for s in node.src if s.op == "weight")
    return PackedWeights({weight: found for weight, found in packed.items() if weight in read}, read)


def in_place(gguf: GGUF, device: Device) -> bool:
    """Whether the device reads the mapped file itself where a weight is not packed."""
    return device.can_wrap and all(info.offset % ALIGNMENT == 0 for info in gguf.tensors.values())


def file_places(gguf: GGUF, mapped: bool, packed: Mapping[str, PackedWeight]) -> Places:
    """Packed weights in a buffer of their own; the others in the mapped file, or copied behind each other."""
    found, rest, at, mine = Places(), 0, 0, packed_weights(packed)
    for name, info in gguf.tensors.items():
        if not mine.reads(name):
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
    """Memory beside the mapped file that a model's weights may take on the device, from its header alone."""
    tensors = gguf.tensors.values()
    if not in_place(gguf, device):
        return sum(align_up(info.nbytes) for info in tensors)
    known = (i for i in tensors if repack and len(i.shape) in (2, 3) and i.format in FORMATS)
    return sum(_asked(device, info.format, info.shape).size for info in known)
