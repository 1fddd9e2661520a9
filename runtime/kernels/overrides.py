"""Kernel overrides of a plan: custom kernels, which the user registered, for the steps that they serve, else
kernels that `satchel tune` measured to be faster than the default. A custom kernel is compiled, loaded and
checked against its op's definition at its first use.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from satchel.errors import DeviceError, RequestError
from satchel.runtime.device.device import Device, KernelOverride
from satchel.runtime.kernels.call import KernelCall, LaunchGrid, call_of
from satchel.runtime.kernels.image import image_of
from satchel.runtime.kernels.registry import Kernel, registered
from satchel.runtime.kernels.trial import define, error_of, run, trial_of
from satchel.runtime.plan import Segment
from satchel.runtime.tuning.shape import shape_of


class KernelOverrides:
    """The kernel overrides of one device; it remembers which custom kernels are loaded and checked."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._numbers: dict[Kernel, int] = {}
        self._checked: set[tuple[Kernel, tuple[object, ...]]] = set()

    def __call__(self, segment: Segment) -> Sequence[KernelOverride]:
        kernels = registered(self.device.backend.name)
        if not kernels and not self._tuned:
            return ()
        found = (self._override(segment, i, kernels) for i in range(len(segment.step_table)))
        return tuple(c for c in found if c is not None)

    @functools.cached_property
    def _tuned(self) -> Mapping[str, str]:
        """Kernels that tuning has found faster than the default, by class of steps; none on a deterministic
        device, where a table of another machine must not change a bit.
        """
        from satchel.runtime.tuning import tuned_for

        found = None if self.device.deterministic else tuned_for(self.device)
        return {shape: t.kernel for shape, t in found.steps.items() if t.changes} if found else {}

    def _override(self, segment: Segment, step: int, kernels: Sequence[Kernel]) -> KernelOverride | None:
        call = call_of(segment, step)
        kernel = next((k for k in kernels if k.serves(self.device.backend.name, call)), None)
        if kernel is None:
            name = self._tuned.get(shape_of(call)) if self._tuned else None
            if name is None or name not in self.device.kernels(segment, step):
                return None
            return KernelOverride(step, name)
        if kernel not in self._numbers:
            self._numbers[kernel] = self.device.add_kernel(image_of(kernel, self.device), kernel.entry)
        if (kernel, call.key) not in self._checked:
            self._check(kernel, segment, step, call)
            self._checked.add((kernel, call.key))
        return self._launch(kernel, call, step)

    def _launch(self, kernel: Kernel, call: KernelCall, step: int) -> KernelOverride:
        grid = kernel.grid(call)
        if not isinstance(grid, LaunchGrid) or not 1 <= len(grid.groups) <= 3:
            raise RequestError(
                f"kernel {kernel.entry}: grid gave {grid!r}, no LaunchGrid of one to three numbers"
            )
        groups = (*grid.groups, 1, 1)[:3]
        if min(*groups, grid.threads) < 1 or min(grid.local, grid.scratch) < 0:
            raise RequestError(f"kernel {kernel.entry}: {grid} has a number that no launch can have")
        number = self._numbers[kernel]
        return KernelOverride(step, "", number, groups, grid.threads, grid.local, grid.scratch)  # type: ignore[arg-type]

    def _check(self, kernel: Kernel, segment: Segment, step: int, call: KernelCall) -> None:
        """DeviceError where the kernel does not do what the op means."""
        trial = trial_of(segment, step, call, self.device)
        got = run(trial, self.device, self._launch(kernel, trial.call, 0))
        error = error_of(trial, got, define(trial))
        if not error <= kernel.bound:
            formats = ", ".join(f"{v.format} {v.shape}" for v in trial.call.inputs)
            raise DeviceError(
                f"kernel {kernel.entry}: it is {error:.1e} off the definition of {kernel.op} on {formats}, "
                f"at most {kernel.bound:.0e} may be: it is not used; mend it or unregister it"
            )
