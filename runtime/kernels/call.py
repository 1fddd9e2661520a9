"""A step of a plan as custom kernels and the tuner see it: op, shapes, formats, arguments; no addresses."""

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
    """Shape (outermost first) and format of a tensor. count: which of the step's counts replaces shape[0],
    which is then its maximum; -1: none. packed: the tensor lies in the device's own order.
    """

    shape: tuple[int, ...]
    format: str
    count: int = -1
    packed: bool = False


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One step, at its largest shapes."""

    op: str
    output: TensorView
    inputs: tuple[TensorView, ...]
    args: Mapping[str, Arg] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for calls that a kernel cannot tell apart."""
        return self.op, self.output, self.inputs, tuple(sorted(self.args.items()))


@dataclass(frozen=True, slots=True)
class LaunchGrid:
    """Launch configuration of a kernel: up to three numbers of groups (CUDA: the grid), threads per group;
    bytes of local (shared) memory per group, and of device memory for the kernel's own use during the step.
    """

    groups: tuple[int, ...]
    threads: int
    local: int = 0
    scratch: int = 0


def call_of(segment: Segment, step: int) -> KernelCall:
    """The call of one step of a segment's tables."""
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
