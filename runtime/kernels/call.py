"""A step of a plan as custom kernels and the tuner see it: op, shapes, formats, arguments, but no
addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from satchel.quant import FORMATS
from satchel.runtime.device.device import read_arg
from satchel.runtime.graph import Arg
from satchel.runtime.plan import PACKED, Segment

NAMES = {f.id: f.name for f in FORMATS.values()}


@dataclass(frozen=True, slots=True)
class TensorView:
    """Shape and format of a tensor."""

    shape: tuple[int, ...]  # outermost first
    format: str
    count: int = -1  # index of the step count that replaces shape[0], which is then its maximum; -1: none
    packed: bool = False  # the tensor has the device's packed layout


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One step, with the largest shapes of its plan."""

    op: str
    output: TensorView
    inputs: tuple[TensorView, ...]
    args: Mapping[str, Arg] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for calls that a kernel cannot distinguish."""
        return self.op, self.output, self.inputs, tuple(sorted(self.args.items()))


@dataclass(frozen=True, slots=True)
class LaunchGrid:
    """Launch configuration of a kernel."""

    groups: tuple[int, ...]  # up to three numbers of thread groups (CUDA: the grid)
    threads: int  # per group
    local: int = 0  # bytes of local (CUDA: shared) memory per group
    scratch: int = 0  # bytes of device memory for the kernel during the step


def call_of(segment: Segment, step: int) -> KernelCall:
    """The KernelCall of one step of a segment."""
    row = segment.step_table[step]
    first, n = int(row["view"]), int(row["n_in"])
    views = tuple(_view(v) for v in segment.view_table[first : first + n + 1])
    op = segment.op_table[int(row["op"])]
    name = bytes(op["name"]).decode()
    raw = segment.args[int(row["arg"]) : int(row["arg"]) + int(op["arg_size"])]
    return KernelCall(name, views[0], views[1:], MappingProxyType(read_arg(name, raw)))


def _view(v: Mapping[str, int]) -> TensorView:
    number, ndim = int(v["format"]), int(v["ndim"])
    shape = tuple(int(d) for d in v["shape"])[:ndim]  # type: ignore[attr-defined]
    return TensorView(shape, NAMES[number & ~PACKED], int(v["count"]), bool(number & PACKED))
