"""Adapters of a model, LoRA and control vectors, which each request applies at scales of its own.

The plan's input "adapter_scales" (T, n) has each token's scale of each of the n that are loaded, LoRA first,
0 where it is not used. A step in which nobody uses any runs the plain plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from satchel.formats.gguf import GGUF
from satchel.quant import ModelError, RequestError
from satchel.runtime import ops
from satchel.runtime.adapter_file import AdapterFile, Loadable, checked_scale
from satchel.runtime.arch import AdapterScales
from satchel.runtime.device import WEIGHT, Device
from satchel.runtime.graph import ROWS, TOKENS, Array, Node, Type
from satchel.runtime.lora import Adapter, Stack, read_adapter, stacked
from satchel.runtime.packing import packed_by
from satchel.runtime.plan import align_up
from satchel.runtime.steering import ControlVector, columns, read_control_vector
from satchel.runtime.weights import DeviceWeights

BUFFER = "weights.adapters"


@dataclass(slots=True)
class Adapters:
    """lora, control_vectors: default scales by name, in the order of the input's columns."""

    lora: Mapping[str, float]
    control_vectors: Mapping[str, float]
    stacks: Mapping[str, Stack] = field(default_factory=dict)
    steers: Mapping[int, Array] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)

    @property
    def width(self) -> int:
        return len(self.lora) + len(self.control_vectors)

    def adapter_scales(
        self, adapters: Mapping[str, float] | None = None, vectors: Mapping[str, float] | None = None
    ) -> AdapterScales:
        """What a request uses, as the plan gets it; () where that is nothing. None: the scales of loading,
        else those that are named alone.
        """
        both = (("adapter", self.lora, adapters), ("control vector", self.control_vectors, vectors))
        found = tuple(s for what, loaded, asked in both for s in _chosen(what, loaded, asked))
        return found if any(found) else ()

    # --- the graph

    def product(self, x: Node, y: Node, weight: str) -> Node:
        """y, the product of x with a weight, and what adapters change of it."""
        stack = self.stacks.get(weight)
        if stack is None:
            return y
        return self._changed(ops.linear(x, self._weight(x, f"{weight}.lora_a", stack.a)), y, weight)

    def rows(self, ids: Node, y: Node, weight: str) -> Node:
        """y, rows of the embedding by number, and what adapters change of them."""
        stack = self.stacks.get(weight)
        if stack is None:
            return y
        return self._changed(ops.get_rows(self._weight(ids, f"{weight}.lora_a", stack.a), ids), y, weight)

    def steer(self, x: Node, layer: int) -> Node:
        """x as it leaves a layer, and what control vectors add to it."""
        steer = self.steers.get(layer)
        if steer is None:
            return x
        # No plain linear: those of all layers would become one step, for they share their input.
        return ops.linear_add(self._adapter_scales(x), self._weight(x, f"direction.{layer}", steer), x)

    def _changed(self, inner: Node, y: Node, weight: str) -> Node:
        stack = self.stacks[weight]
        self.applied.add(weight)
        expand = y.graph.const(stack.expand, "f32", "lora_expand")
        gate = ops.linear(self._adapter_scales(y), expand)
        outer = self._weight(y, f"{weight}.lora_b", stack.b)
        return ops.add(ops.linear(ops.mul(inner, gate), outer), y)

    def _adapter_scales(self, like: Node) -> Node:
        """The scales of the rows of `like`."""
        adapter_scales = like.graph.node("input", (), Type((TOKENS, self.width)), "adapter_scales")
        if like.shape[0] != ROWS:
            return adapter_scales
        return ops.gather_rows(adapter_scales, like.graph.node("input", (), Type((ROWS,), "i32"), "rows"))

    def _weight(self, like: Node, name: str, values: Array) -> Node:
        return like.graph.node("weight", (), Type(values.shape), name)

    def check(self) -> None:
        """ModelError where an adapter changes a weight that no product of the architecture reads."""
        left = next((name for name in self.stacks if name not in self.applied), None)
        if left is not None:
            raise ModelError(
                f"an adapter changes {left}, which is no product of this architecture: leave it out"
            )

    # --- the device

    def values(self) -> dict[str, Array]:
        """Every weight of the graph's additions by name, float32."""
        found = {f"direction.{layer}": steer for layer, steer in self.steers.items()}
        for name, stack in self.stacks.items():
            found |= {f"{name}.lora_a": stack.a, f"{name}.lora_b": stack.b}
        return found

    def put(self, device: Device, weights: DeviceWeights, *, repack: bool = True) -> None:
        """Brings them to a device, in a buffer of their own. repack: in its own order where it has one."""
        types = {name: Type(values.shape) for name, values in self.values().items()} if repack else {}
        packed, places, at = packed_by(device, types), {}, 0
        for name, values in self.values().items():
            places[name] = at
            at = align_up(at + (packed[name].size if name in packed else values.nbytes))
        buffer = device.alloc(max(at, 64), WEIGHT)
        weights.buffers[BUFFER] = buffer
        for name, values in self.values().items():
            flat, form = np.ascontiguousarray(values).reshape(-1).view(np.uint8), packed.get(name)
            if form is not None:
                buffer.pack(places[name], form.format, (form.stack, form.rows, form.columns), flat)
            else:
                buffer.write(places[name], flat)
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
    """Reads and checks the files for a model; None where there are none."""
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
