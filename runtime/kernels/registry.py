"""The table of registered custom kernels: values only, nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from satchel.errors import RequestError
from satchel.runtime.kernels.call import KernelCall, LaunchGrid
from satchel.runtime.ops import OPS

CUDA, PTX = "cuda", "ptx"
LANGUAGES = (CUDA, PTX)
# Ops that interact with the host's sampling or with tables between steps: running one step alone cannot check
# them, nor an op that writes caches beside its result.
NOT_ALONE = frozenset({"sample", "sample_masked", "logprobs", "tokens_put", "tokens_get", "copy"})


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A registered kernel; its fields are the arguments of register()."""

    op: str
    source: str
    entry: str
    grid: Callable[[KernelCall], LaunchGrid]
    when: Callable[[KernelCall], bool]
    devices: tuple[str, ...]
    language: str
    options: tuple[str, ...]
    bound: float

    def serves(self, backend: str, call: KernelCall) -> bool:
        """Whether the kernel takes a step on a device of this backend."""
        return self.op == call.op and backend in self.devices and bool(self.when(call))


_KERNELS: list[Kernel] = []


def register(
    op: str,
    source: str | Path,
    entry: str,
    grid: Callable[[KernelCall], LaunchGrid],
    *,
    when: Callable[[KernelCall], bool] | None = None,
    devices: Sequence[str] = ("cuda",),
    language: str = CUDA,
    options: Sequence[str] = (),
    bound: float = 1e-4,
) -> Kernel:
    """Registers a kernel for an op, for models that are loaded from now on.

    source: text or file, in CUDA C, the dialect of docs/gpu-kernels.md, or PTX, as `language` states.
    entry: the kernel's name.
    grid: gives the LaunchGrid of a KernelCall.
    when: whether the kernel takes a KernelCall; default: if its weights are not packed.
    devices: names of backends.
    options: compiler options.
    bound: the largest error that the check accepts, as squared error over the definition's square.

    Raises RequestError for invalid arguments.
    """
    if op not in OPS or OPS[op].view or OPS[op].update or op in NOT_ALONE:
        raise RequestError(f"kernel {entry!r}: {op!r} is not an op that a kernel can be registered for")
    if language not in LANGUAGES:
        known = ", ".join(LANGUAGES)
        raise RequestError(f"kernel {entry!r}: language is {language!r}, expected one of {known}")
    if not entry.isidentifier() or not entry.isascii():
        raise RequestError(f"kernel {entry!r}: its name must be a C identifier")
    if not devices or not 0 <= bound < 1:
        raise RequestError(f"kernel {entry!r}: it needs a device, and a bound from 0 to 1, not {bound}")
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    chosen = when or (lambda call: not any(v.packed for v in call.inputs))
    made = Kernel(op, text, entry, grid, chosen, tuple(devices), language, tuple(options), bound)
    _KERNELS.append(made)
    return made


def unregister(kernel: Kernel) -> None:
    """Removes a kernel for models that are loaded from now on. Raises RequestError if it is not
    registered.
    """
    if kernel not in _KERNELS:
        raise RequestError(f"kernel {kernel.entry!r} is not registered")
    _KERNELS.remove(kernel)


def registered(backend: str = "") -> tuple[Kernel, ...]:
    """Registered kernels of a backend, or all, the latest first; the first that accepts a step is used."""
    return tuple(k for k in reversed(_KERNELS) if not backend or backend in k.devices)
