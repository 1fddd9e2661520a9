"""`satchel build`: writes a model file with its compiled plan, its tokenizer's tables and its chat template
as metadata keys.

The file stays the GGUF that it was: its tensors, and its other keys byte for byte, so every program that read
it still does, unless its weights become panels (panels.py). `undo` takes the keys away again, which gives the
first file back bit for bit. The result depends on the file, the kernel sets of this machine and the options
alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from satchel.errors import DeviceError, ModelError, RequestError
from satchel.formats.gguf import GGUF, Typed
from satchel.formats.gguf.splice import HeaderBytes, splice
from satchel.runtime.aot.compiled import CompiledModel, compile_model
from satchel.runtime.aot.grammar_section import pack_grammar
from satchel.runtime.aot.panels import Panels, undo_panels, write_with_panels
from satchel.runtime.aot.plan_section import CacheSize, PlanTables, pack_plans, plan_tables
from satchel.runtime.aot.records import (
    GRAMMAR_PREFIX,
    PANELS_KEY,
    PLAN_KEY,
    TEMPLATE_KEY,
    TOKENIZER_KEY,
    as_value,
    sections_of,
)
from satchel.runtime.aot.template_section import pack_template
from satchel.runtime.aot.tokenizer_section import pack_tokenizer
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend, kernel_sets

CONTEXT = 8192  # tokens of the default context, if the model has as many
MOST_SLOTS = 64
MOST_GRAMMARS = 64
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
    panels: int
    grammars: int
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
    panels: bool = False,
    grammars: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[int], None] | None = None,
    require_template: bool = False,
) -> BuildReport:
    """Writes the file with its sections to `target`. context, slots: the defaults of a program that names
    none; context 0: the model's own, at most CONTEXT. panels: weights are stored as the CPU's kernels read
    them, so that other programs do not read the file any more. grammars: by name, the texts of JSON schemas
    or of grammars in GBNF. progress: called with the bytes of each write.
    require_template: a chat template that the C library does not run is an error; else the file has none.

    ModelError where the model or its tokenizer cannot be put into tables, RequestError where an option is out
    of range or the file cannot be written.
    """
    if PANELS_KEY in gguf.metadata:
        raise RequestError(f"{gguf.path}: has panels: take them away first with `satchel build --undo`")
    head = HeaderBytes(gguf)
    tokenizer = pack_tokenizer(gguf)
    template = pack_template(gguf)
    if require_template and template.refused:
        raise ModelError(f"{gguf.path}: {template.refused}")
    compiled = _grammar_sections(grammars)
    ours = sections_of(head.entries) | compiled.keys()
    variants, sets, whole, least = compile_variants(gguf)
    most = whole.arch.context
    size = _default_size(context, slots, least, most)

    def sections(checksum: int) -> dict[str, Typed]:
        plan = pack_plans(variants, whole, least, gguf, size, checksum, panels)
        raw = {PLAN_KEY: plan, TOKENIZER_KEY: tokenizer, TEMPLATE_KEY: template.data}
        return {key: as_value(data) for key, data in (compiled | raw).items()}

    made, packed = sections(head.checksum(ours)), 0
    if panels:
        names = [name for name in variants[0].weights if whole.places[name].packed]
        laid = Panels(gguf, head, names)
        packed = laid.size
        with find_backend("cpu").open() as device:
            written = write_with_panels(gguf, target, device, laid, sections, progress)
    else:
        written = splice(gguf, target, made, ours - made.keys(), progress)
    return BuildReport(
        target,
        written,
        np.asarray(made[PLAN_KEY].value).nbytes,
        len(tokenizer),
        len(template.data),
        template.refused,
        packed,
        len(compiled),
        least,
        most,
        *size,
        sets,
    )


def undo(gguf: GGUF, target: Path, progress: Callable[[int], None] | None = None) -> int:
    """Writes the file without its sections; gives the number of bytes. RequestError for one without any."""
    ours = sections_of(gguf.metadata)
    if not ours:
        raise RequestError(f"{gguf.path}: holds no {PLAN_KEY}: there is nothing to undo")
    if PANELS_KEY in gguf.metadata:
        with find_backend("cpu").open() as device:
            return undo_panels(gguf, target, device, progress)
    return splice(gguf, target, {}, ours, progress)


def _default_size(context: int, slots: int, least: int, most: int) -> CacheSize:
    size = CacheSize(context or max(least, min(most, CONTEXT)), slots)
    if not least <= size.context <= most:
        raise RequestError(f"--context: expected {least} to {most} for this model, got {size.context}")
    if not 1 <= slots <= MOST_SLOTS:
        raise RequestError(f"--slots: expected 1 to {MOST_SLOTS}, got {slots}")
    return size


def _grammar_sections(grammars: Mapping[str, str]) -> dict[str, bytes]:
    """The sections by key."""
    if len(grammars) > MOST_GRAMMARS:
        raise RequestError(f"--grammar: expected at most {MOST_GRAMMARS}, got {len(grammars)}")
    return {_grammar_key(name): _compiled(name, text) for name, text in grammars.items()}


def _grammar_key(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name) is None:
        raise RequestError(
            f"--grammar {name!r:.70}: expected a name of at most 60 letters, digits, dots, dashes and "
            "underscores"
        )
    return GRAMMAR_PREFIX + name


def _compiled(name: str, text: str) -> bytes:
    try:
        return pack_grammar(text)
    except RequestError as error:
        raise RequestError(f"grammar {name}: {error}") from None


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
        for kind, plan in model.plans.items()
        for a, b in zip(plan.segments, fresh.plans[kind].segments, strict=True)
    )
