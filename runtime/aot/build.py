"""`satchel build`: writes a model file with its compiled plan, its tokenizer's tables and its chat template
as metadata keys.

The file stays the GGUF that it was: its tensors, and its other keys byte for byte, so every program that read
it still does. `undo` takes the keys away again, which gives the first file back bit for bit. The result
depends on the file, the kernel sets of this machine and the options alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from satchel.errors import DeviceError, ModelError, RequestError
from satchel.formats.gguf import GGUF
from satchel.formats.gguf.splice import HeaderBytes, splice
from satchel.runtime.aot.compiled import CompiledModel, compile_model
from satchel.runtime.aot.plan_section import CacheSize, PlanTables, pack_plans, plan_tables
from satchel.runtime.aot.records import KEYS, PLAN_KEY, TEMPLATE_KEY, TOKENIZER_KEY, as_value
from satchel.runtime.aot.template_section import pack_template
from satchel.runtime.aot.tokenizer_section import pack_tokenizer
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend, kernel_sets

CONTEXT = 8192  # tokens of the default context, if the model has as many
MOST_SLOTS = 64
FORCED = "SATCHEL_CPU"  # environment variable that names a kernel set


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What was written. sizes in bytes; kernel_sets: of each plan's variant, those that take it here;
    template_refused: why the chat template was left out, or "".
    """

    path: Path
    size: int
    plan: int
    tokenizer: int
    template: int
    template_refused: str
    least_context: int
    most_context: int
    context: int
    slots: int
    kernel_sets: tuple[tuple[str, ...], ...]


def build(
    gguf: GGUF,
    target: Path,
    context: int = 0,
    slots: int = 1,
    progress: Callable[[int], None] | None = None,
    require_template: bool = False,
) -> BuildReport:
    """Writes the file with its sections to `target`. context, slots: the defaults of a program that names
    none; context 0: the model's own, at most CONTEXT. progress: called with the bytes of each write.
    require_template: a chat template that the C library does not run is an error; else the file has none.

    ModelError where the model or its tokenizer cannot be put into tables, RequestError where an option is out
    of range or the file cannot be written.
    """
    head = HeaderBytes(gguf)
    tokenizer = pack_tokenizer(gguf)
    template = pack_template(gguf)
    if require_template and template.refused:
        raise ModelError(f"{gguf.path}: {template.refused}")
    variants, sets, whole, least = compile_variants(gguf)
    most = whole.arch.context
    size = CacheSize(context or max(least, min(most, CONTEXT)), slots)
    if not least <= size.context <= most:
        raise RequestError(f"--context: expected {least} to {most} for this model, got {size.context}")
    if not 1 <= slots <= MOST_SLOTS:
        raise RequestError(f"--slots: expected 1 to {MOST_SLOTS}, got {slots}")
    plan = pack_plans(variants, whole, least, gguf, size, head.checksum(KEYS))
    keys = {PLAN_KEY: plan, TOKENIZER_KEY: tokenizer, TEMPLATE_KEY: template.data}
    written = splice(gguf, target, {key: as_value(raw) for key, raw in keys.items()}, progress=progress)
    sizes = [len(raw) for raw in keys.values()]
    return BuildReport(
        target, written, sizes[0], sizes[1], sizes[2], template.refused, least, most, *size, sets
    )


def undo(gguf: GGUF, target: Path, progress: Callable[[int], None] | None = None) -> int:
    """Writes the file without its sections; gives the number of bytes. RequestError for one without any."""
    if not any(key in gguf.metadata for key in KEYS):
        raise RequestError(f"{gguf.path}: holds no {PLAN_KEY}: there is nothing to undo")
    return splice(gguf, target, {}, KEYS, progress)


def compile_variants(
    gguf: GGUF,
) -> tuple[list[PlanTables], tuple[tuple[str, ...], ...], CompiledModel, int]:
    """The distinct plans of this machine's kernel sets, the best set's first, with the sets of each; then a
    compiled model of the first, and the least context.
    """
    found: list[tuple[PlanTables, CompiledModel, list[str]]] = []
    least = 1
    for name in _sets():
        with _opened(name) as device:
            if device is None:
                continue
            known = next((f for f in found if _same_plans(gguf, device, f[1])), None)
            if known is not None:
                known[2].append(name)
                continue
            tables, whole, least = plan_tables(gguf, device)
            found.append((tables, whole, [name]))
    if not found:
        raise DeviceError("no kernel set of the CPU backend runs here; see `satchel doctor`")
    return [tables for tables, *_ in found], tuple(tuple(sets) for *_, sets in found), found[0][1], least


def _sets() -> list[str]:
    """Names of the CPU library's kernel sets, the best first; the one that the environment names alone."""
    forced = os.environ.get(FORCED)
    return [forced] if forced else list(reversed(kernel_sets(Path(find_backend("cpu").path))))


@contextmanager
def _opened(name: str) -> Iterator[Device | None]:
    """The CPU with this kernel set; None where it does not run here."""
    before = os.environ.get(FORCED)
    os.environ[FORCED] = name
    try:
        device = find_backend("cpu").open(threads=1)
    except DeviceError:
        device = None
    finally:
        if before is None:
            del os.environ[FORCED]
        else:
            os.environ[FORCED] = before
    if device is None:
        yield None
        return
    with device:
        yield device


def _same_plans(gguf: GGUF, device: Device, model: CompiledModel) -> bool:
    """Whether the device has the plans of this model."""
    fresh = compile_model(gguf, device, model.cache, tuple(model.plans))
    return all(
        np.array_equal(a.step_table, b.step_table)
        and np.array_equal(a.view_table, b.view_table)
        and np.array_equal(a.op_table, b.op_table)
        and a.args == b.args
        for bucket, plan in model.plans.items()
        for a, b in zip(plan.segments, fresh.plans[bucket].segments, strict=True)
    )
