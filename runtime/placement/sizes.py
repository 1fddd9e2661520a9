"""What the parts of a model weigh: bytes of weights and cache by layer, what a token reads and multiplies.

Counted from the graph and from types alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from satchel.runtime.compiler.memory import nbytes, stride_of
from satchel.runtime.compiler.place import touched
from satchel.runtime.device.device import Device
from satchel.runtime.graph import LEAVES, Node, Type, toposort
from satchel.runtime.layers.arch import Forward
from satchel.runtime.ops import OPS
from satchel.runtime.placement.placement import Placement
from satchel.runtime.plan import Bucket, align_up
from satchel.runtime.weights.packing import packable, packed_by

TOKENS = "tokens"  # the state that sampling keeps


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight as one layer reads it. read: bytes that a token needs; macs: what it multiplies with a token;
    expert: one of many, of which a token picks a few.
    """

    name: str
    label: str
    type: Type
    read: float
    macs: int
    expert: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """tensors: as they are read; states: bytes and label of each; held: bytes of each weight, by device."""

    layers: int
    width: int
    tensors: tuple[Tensor, ...]
    states: Mapping[str, tuple[str, int]]
    held: Mapping[str, Mapping[str, int]] = field(repr=False)

    def on(self, placement: Placement) -> dict[str, int]:
        """Bytes of weights and states by device; a tensor that several layers read counts once on each."""
        found = dict.fromkeys(self.held, 0)
        for device, name in {(placement.weight(t.name, t.label), t.name) for t in self.tensors}:
            found[device] += self.held[device][name]
        for name, (label, size) in self.states.items():
            found[placement.states.get(name, placement.label(label))] += size
        return found

    def used(self, placement: Placement) -> set[str]:
        """Devices that hold something."""
        return {name for name, size in self.on(placement).items() if size}

    def parts(self) -> Iterator[tuple[str, bool, float, int]]:
        """Label, expert or not, bytes that a token reads and multiply-adds, of each part."""
        sums: dict[tuple[str, bool], list[float]] = {}
        for t in self.tensors:
            both = sums.setdefault((t.label, t.expert), [0.0, 0])
            both[0] += t.read
            both[1] += t.macs
        return ((label, expert, read, int(macs)) for (label, expert), (read, macs) in sums.items())

    @property
    def mixture(self) -> bool:
        return any(t.expert for t in self.tensors)


def sizes_of(forward: Forward, layers: int, devices: Sequence[Device], repack: bool = True) -> Sizes:
    """Of a built architecture on these devices. repack False: every weight as in the file on the host."""
    order = toposort(forward.roots(TOKENS))
    tensors = tuple(dict.fromkeys(t for node in order if node.op not in LEAVES for t in _read(node)))
    states: dict[str, tuple[str, int]] = {}
    for node in order:
        state = None if node.op in LEAVES else touched(node)
        if state is not None and state.name not in states:
            label = "output" if state.name == TOKENS else node.name
            states[state.name] = label, align_up(nbytes(state.type, Bucket(1, 1)))
    width = next(n.width for n in order if n.op == "get_rows")
    types = packable(forward) if repack else {}
    return Sizes(layers, width, tensors, states, {d.name: _held(d, tensors, types) for d in devices})


def _read(node: Node) -> Iterator[Tensor]:
    made_by = OPS[node.op]
    for w in (s for s in node.src if s.op == "weight"):
        whole, expert = nbytes(w.type, Bucket(1, 1)), made_by.experts and made_by.product
        sizes = [d for d in w.shape if isinstance(d, int)]
        if made_by.gathers:
            yield Tensor(w.name, node.name, w.type, float(stride_of(w.type)), 0, False)
        elif expert:
            used = node.src[-1].width
            macs = used * sizes[1] * sizes[2]
            yield Tensor(w.name, node.name, w.type, whole * min(1.0, used / sizes[0]), macs, True)
        else:
            macs = sizes[0] * sizes[1] if len(sizes) == 2 else 0
            yield Tensor(w.name, node.name, w.type, float(whole), macs, False)


def _held(device: Device, tensors: Sequence[Tensor], types: Mapping[str, Type]) -> dict[str, int]:
    packed = packed_by(device, types)
    plain = {t.name: align_up(nbytes(t.type, Bucket(1, 1))) for t in tensors}
    return {name: packed[name].size if name in packed else size for name, size in plain.items()}
