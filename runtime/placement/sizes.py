"""Sizes of a model's parts: bytes of weights and cache per layer, and what a token reads and multiplies.
Counted from the graph and from types alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from satchel.runtime.compiler.memory import nbytes, stride_of
from satchel.runtime.compiler.place import touched
from satchel.runtime.device.device import Device
from satchel.runtime.engine.states import grouped
from satchel.runtime.graph import LEAVES, Node, Roots, Type, toposort
from satchel.runtime.layers.arch import RECURRENT, Forward, windows_of
from satchel.runtime.ops import OPS
from satchel.runtime.placement.placement import Placement
from satchel.runtime.plan import Bucket, align_up
from satchel.runtime.weights.packing import packable, packed_by

TOKENS = "tokens"  # the token table, a state of the sampling device


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight as one layer reads it."""

    name: str
    label: str
    type: Type
    read: float  # bytes that a token reads
    macs: int  # multiply-adds per token
    expert: bool  # a stack of routed experts, or of their biases


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model's parts."""

    layers: int
    width: int
    tensors: tuple[Tensor, ...]  # one per layer that reads it
    states: Mapping[str, tuple[str, int]]  # bytes and label of each
    held: Mapping[str, Mapping[str, int]] = field(repr=False)  # bytes of each weight, by device
    # Bytes of a position, for each state that has the keys or values of one layer alone.
    positions: Mapping[str, float] = field(default_factory=dict)

    def on(self, placement: Placement) -> dict[str, int]:
        """Bytes of weights and states by device. A tensor that several layers read counts once per device."""
        found = dict.fromkeys(self.held, 0)
        for device, name in {(placement.weight(t.name, t.label), t.name) for t in self.tensors}:
            found[device] += self.held[device][name]
        for name, (label, size) in self.states.items():
            found[placement.states.get(name, placement.label(label))] += size
        return found

    def used(self, placement: Placement) -> set[str]:
        """Devices that hold any part."""
        return {name for name, size in self.on(placement).items() if size}

    def parts(self) -> Iterator[tuple[str, bool, float, int]]:
        """For each part: label, whether it is an expert's, bytes read and multiply-adds per token."""
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
    """Sizes of a built architecture on these devices. repack False: the host keeps every weight as in the
    file.
    """
    order = toposort(forward.roots(TOKENS))
    tensors = tuple(dict.fromkeys(t for node in order if node.op not in LEAVES for t in _read(node)))
    states: dict[str, tuple[str, int]] = {}
    users: dict[str, set[str]] = {}
    for node in order:
        state = None if node.op in LEAVES else touched(node)
        if state is None:
            continue
        users.setdefault(state.name, set()).add(node.name)
        if state.name not in states:
            label = "output" if state.name == TOKENS else node.name
            states[state.name] = label, align_up(nbytes(state.type, Bucket(1, 1)))
    width = next(n.width for n in order if n.op == "get_rows")
    types = packable(forward) if repack else {}
    held = {d.name: _held(d, tensors, types) for d in devices}
    positions = {name: n for name, n in _positions(forward.roots(TOKENS)) if len(users[name]) == 1}
    return Sizes(layers, width, tensors, states, held, positions)


def _positions(roots: Roots) -> Iterator[tuple[str, float]]:
    """Bytes of a position, for each state with keys or values: (blocks, heads, positions, numbers)."""
    for window, group in zip(windows_of(roots), grouped(roots), strict=True):
        for name, type in group if window != RECURRENT else ():
            blocks, _, block, _ = (d for d in type.shape if isinstance(d, int))
            yield name, nbytes(type, Bucket(1, 1)) / (blocks * block)


def _read(node: Node) -> Iterator[Tensor]:
    made_by = OPS[node.op]
    for w in (s for s in node.src if s.op == "weight"):
        whole = nbytes(w.type, Bucket(1, 1))
        sizes = [d for d in w.shape if isinstance(d, int)]
        if made_by.gathers:
            yield Tensor(w.name, node.name, w.type, float(stride_of(w.type)), 0, False)
        elif made_by.experts:
            used = node.src[-1].width
            macs = used * sizes[1] * sizes[2] if made_by.product else 0
            yield Tensor(w.name, node.name, w.type, whole * min(1.0, used / sizes[0]), macs, True)
        else:
            macs = sizes[0] * sizes[1] if len(sizes) == 2 else 0
            yield Tensor(w.name, node.name, w.type, float(whole), macs, False)


def _held(device: Device, tensors: Sequence[Tensor], types: Mapping[str, Type]) -> dict[str, int]:
    packed = packed_by(device, types)
    plain = {t.name: align_up(nbytes(t.type, Bucket(1, 1))) for t in tensors}
    return {name: packed[name].size if name in packed else size for name, size in plain.items()}
