"""Adapters of a model, LoRA and control vectors, which each request applies with its own scales.

The plan's input "adapter_scales" (T, n) holds each token's scale of each of the n loaded adapters, LoRA
first, 0 for unused ones. A step without adapters runs the plain plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import GGUF
from satchel.runtime import ops
from satchel.runtime.adapter_file import AdapterFile, Loadable, checked_scale
from satchel.runtime.adapters.control_vectors import ControlVector, columns, read_control_vector
from satchel.runtime.adapters.lora import Adapter, Stack, read_adapter, stacked
from satchel.runtime.device.device import WEIGHT, Device
from satchel.runtime.graph import ROWS, TOKENS, Array, Node, Type
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.plan import align_up
from satchel.runtime.shard.pieces import Piece
from satchel.runtime.weights.packing import packed_by
from satchel.runtime.weights.residency import Over, PackedOn, Residency, WeightsOn
from satchel.runtime.weights.weights import DeviceWeights, write_weight

BUFFER = "weights.adapters"


@dataclass(slots=True)
class Adapters:
    """The loaded adapters of a model."""

    lora: Mapping[str, float]  # default scales by name, in the order of the input's columns
    control_vectors: Mapping[str, float]  # default scales by name; their columns follow
    stacks: Mapping[str, Stack] = field(default_factory=dict)
    steers: Mapping[int, Array] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)

    @property
    def width(self) -> int:
        return len(self.lora) + len(self.control_vectors)

    def adapter_scales(
        self, adapters: Mapping[str, float] | None = None, vectors: Mapping[str, float] | None = None
    ) -> AdapterScales:
        """The scales of a request; () if all are 0. None: the default scales; otherwise only the named ones
        apply.
        """
        both = (("adapter", self.lora, adapters), ("control vector", self.control_vectors, vectors))
        found = tuple(s for what, loaded, asked in both for s in _chosen(what, loaded, asked))
        return found if any(found) else ()

    # --- the graph

    def product(self, x: Node, y: Node, weight: str) -> Node:
        """y, the product of x with a weight, plus the adapters' contribution."""
        stack = self.stacks.get(weight)
        if stack is None:
            return y
        return self._changed(ops.linear(x, self._weight(x, f"{weight}.lora_a", stack.a)), y, weight)

    def rows(self, ids: Node, y: Node, weight: str) -> Node:
        """y, rows of the embedding, plus the adapters' contribution."""
        stack = self.stacks.get(weight)
        if stack is None:
            return y
        return self._changed(ops.get_rows(self._weight(ids, f"{weight}.lora_a", stack.a), ids), y, weight)

    def steer(self, x: Node, layer: int) -> Node:
        """x, the output of a layer, plus the control vectors' directions."""
        steer = self.steers.get(layer)
        if steer is None:
            return x
        # Not a plain linear: the merge pass would fuse those of all layers, because they share their input.
        return ops.linear_add(self._adapter_scales(x), self._weight(x, f"direction.{layer}", steer), x)

    def _changed(self, inner: Node, y: Node, weight: str) -> Node:
        stack = self.stacks[weight]
        self.applied.add(weight)
        expand = y.graph.const(stack.expand, "f32", "lora_expand")
        gate = ops.linear(self._adapter_scales(y), expand)
        outer = self._weight(y, f"{weight}.lora_b", stack.b)
        return ops.add(ops.linear(ops.mul(inner, gate), outer), y)

    def _adapter_scales(self, like: Node) -> Node:
        """The adapter scales of the rows of `like`."""
        adapter_scales = like.graph.node("input", (), Type((TOKENS, self.width)), "adapter_scales")
        if like.shape[0] != ROWS:
            return adapter_scales
        return ops.gather_rows(adapter_scales, like.graph.node("input", (), Type((ROWS,), "i32"), "rows"))

    def _weight(self, like: Node, name: str, values: Array) -> Node:
        return like.graph.node("weight", (), Type(values.shape), name)

    def check(self) -> None:
        """Raises ModelError if an adapter changes a weight that no product of the architecture reads."""
        left = next((name for name in self.stacks if name not in self.applied), None)
        if left is not None:
            raise ModelError(
                f"an adapter changes {left}, which this architecture does not multiply with: leave it out"
            )

    def values(self) -> dict[str, Array]:
        """All weights of the adapters' nodes by name, float32."""
        found = {f"direction.{layer}": steer for layer, steer in self.steers.items()}
        for name, stack in self.stacks.items():
            found |= {f"{name}.lora_a": stack.a, f"{name}.lora_b": stack.b}
        return found


class WithAdapters(Over):
    """The adapters' weights beside the model's, on each device in a buffer of their own."""

    def __init__(self, inner: Residency, adapters: Adapters) -> None:
        super().__init__(inner)
        self.values = adapters.values()
        self._reads: dict[str, Collection[str]] = {}

    def reads(self, device: str, names: Collection[str]) -> None:
        super().reads(device, names)
        self._reads[device] = names

    def _values(self, device: str) -> dict[str, Array]:
        """Those of a device: all, or the pieces of a group's member."""
        if device not in self._reads:
            return self.values
        pieces = (Piece.of(name) for name in sorted(self._reads[device]))
        return {p.name: p.blocks(self.values[p.tensor]) for p in pieces if p.tensor in self.values}

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        found = self.inner.load(devices, packed)
        for device in devices:
            self._put(device, found[device.name])
        return found

    def _put(self, device: Device, weights: DeviceWeights) -> None:
        own = self._values(device.name)
        types = {name: Type(values.shape) for name, values in own.items()} if self.repack else {}
        packed, places, at = packed_by(device, types), {}, 0
        for name, values in own.items():
            places[name] = at
            at = align_up(at + (packed[name].size if name in packed else values.nbytes))
        buffer = device.alloc(max(at, 64), WEIGHT)
        weights.buffers[BUFFER] = buffer
        for name, values in own.items():
            flat, form = np.ascontiguousarray(values).reshape(-1).view(np.uint8), packed.get(name)
            write_weight(buffer, places[name], flat, form)
            weights.add(name, BUFFER, places[name], form.size if form is not None else 0)


def _chosen(what: str, loaded: Mapping[str, float], asked: Mapping[str, float] | None) -> list[float]:
    if asked is None:
        return list(loaded.values())
    unknown = next((name for name in asked if name not in loaded), None)
    if unknown is not None:
        have = ", ".join(loaded) or "none"
        raise RequestError(f"{what} {unknown!r} is not loaded: there are {have}; load it with the model")
    return [checked_scale(name, asked.get(name, 0.0)) for name in loaded]


def read_adapters(model: GGUF, adapters: Sequence[Loadable], vectors: Sequence[Loadable]) -> Adapters | None:
    """Reads and checks the files for a model; None if there are none."""
    wanted, steering = (
        [f if isinstance(f, AdapterFile) else AdapterFile(f) for f in files] for files in (adapters, vectors)
    )
    for kind in (wanted, steering):
        names = [e.called for e in kind]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise RequestError(f"two files are called {twice!r}: give one of them another name")
    if not wanted and not steering:
        return None
    ranged = next((e for e in wanted if e.layers is not None), None)
    if ranged is not None:
        raise RequestError(f"{ranged.called}: layers are chosen of control vectors, this is an adapter")
    read: list[Adapter] = [read_adapter(Path(e.path), model) for e in wanted]
    directions: list[ControlVector] = [read_control_vector(Path(e.path), model, e.layers) for e in steering]
    return Adapters(
        {e.called: checked_scale(e.called, e.scale) for e in wanted},
        {e.called: checked_scale(e.called, e.scale) for e in steering},
        stacked(read, len(wanted) + len(steering)),
        columns(directions, len(wanted)),
    )
