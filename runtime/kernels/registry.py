"""The table of kernels that the program's user has registered: values alone, nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from satchel.errors import RequestError
from satchel.runtime.kernels.call import KernelCall, LaunchGrid
from satchel.runtime.ops import OPS

CUDA, PTX = "cuda", "ptx"
LANGUAGES = (CUDA, PTX)
# The host draws, or reads what it wrote, around these: a check of one step alone says nothing of them.
NOT_ALONE = frozenset({"sample", "sample_masked", "logprobs", "tokens_put", "tokens_get", "copy"})


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel as it was registered; see register()."""

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
    """Has models that are loaded from now on use a kernel for an op where `when` says yes.

    source: the text or a file of it, in CUDA C or the dialect of docs/gpu-kernels.md, or PTX where `language`
    says so. entry: the kernel's name. grid: gives the LaunchGrid of a KernelCall. when: says whether the
    kernel takes a KernelCall; where it is not given, those whose weights lie as in the file. devices: names
    of backends. options: of the compiler. bound: squared error over the definition's square that the check
    lets pass. RequestError for what cannot be meant.
    """
    if op not in OPS or OPS[op].view or op in NOT_ALONE:
        raise RequestError(f"kernel {entry!r}: {op!r} is no op that a kernel can be registered for")
    if language not in LANGUAGES:
        known = ", ".join(LANGUAGES)
        raise RequestError(f"kernel {entry!r}: language is {language!r}, expected one of {known}")
    if not entry.isidentifier() or not entry.isascii():
        raise RequestError(f"kernel {entry!r}: its name must be one of C")
    if not devices or not 0 <= bound < 1:
        raise RequestError(f"kernel {entry!r}: it needs a device, and a bound from 0 to 1, not {bound}")
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    chosen = when or (lambda call: not any(v.packed for v in call.inputs))
    made = Kernel(op, text, entry, grid, chosen, tuple(devices), language, tuple(options), bound)
    _KERNELS.append(made)
    return made


def unregister(kernel: Kernel) -> None:
    """Models that are loaded from now on do without it. RequestError where it is not registered."""
    if kernel not in _KERNELS:
        raise RequestError(f"kernel {kernel.entry!r} is not registered")
    _KERNELS.remove(kernel)


def registered(backend: str = "") -> tuple[Kernel, ...]:
    """Those for a backend, or all, in the order in which they are asked: the last one registered first."""
    return tuple(k for k in reversed(_KERNELS) if not backend or backend in k.devices)
