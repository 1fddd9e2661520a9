"""Quantizes a model file: streams its tensors, encodes them in other formats, and writes the file atomically.

Only a few chunks of rows are in memory at a time. A value that can't be stored (NaN, infinity, overflow) is
an error that names the tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from satchel.errors import RequestError
from satchel.errors.threads import SafeThreadPool
from satchel.formats.gguf import GGUF, TensorSource, Typed, Value, ValueType, open_gguf, write_gguf
from satchel.formats.gguf.writer import lay_out
from satchel.formats.quantizing.encode import Calibration, Diagonals, TensorEncoder
from satchel.formats.quantizing.plan import (
    Override,
    QuantizeOptions,
    QuantizeReport,
    TensorPlan,
    plan_tensors,
)
from satchel.formats.quantizing.rules import find_recipe
from satchel.formats.source import Source
from satchel.quant import FORMATS
from satchel.quant.calibration.gptq import one_blas_thread
from satchel.quant.format import F32, Blocks
from satchel.quant.recipes import Recipe

__all__ = [
    "Calibration",
    "Dry",
    "Override",
    "QuantizeOptions",
    "QuantizeReport",
    "TensorPlan",
    "find_recipe",
    "plan",
    "plan_file",
    "quantize_file",
    "write",
]

QUANTIZATION_VERSION = 2  # ggml's version of the block layouts
EXTENSION_KEY = "satchel.extension_types"
AWQ_KEY = "satchel.awq"  # columns are scaled, so LoRA adapters of the source do not fit
EXTENSIONS = frozenset(f.name for f in FORMATS.values() if f.weights and f.id > 2000)  # Satchel's own
Origin = str | Path | Source  # an open source is not closed
Extra = Mapping[str, Value | Typed | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Dry(QuantizeReport):
    """A report without writing."""

    files: tuple[tuple[Path, int], ...] = ()  # (path, bytes) of each file that would be written

    @property
    def file_bytes(self) -> int:
        return sum(size for _, size in self.files)


def plan_file(
    source: Origin,
    recipe: Recipe,
    target: str | Path = "model.gguf",
    *,
    overrides: Sequence[Override] = (),
    pure: bool = False,
    requantize: bool = False,
    leave_output: bool = False,
) -> Dry:
    """What quantize_file would write, computed from the header only. The arguments are those of
    quantize_file.
    """
    return plan(source, target, QuantizeOptions(recipe, overrides, pure, requantize, leave_output))


def quantize_file(
    source: Origin,
    target: str | Path,
    recipe: Recipe,
    *,
    overrides: Sequence[Override] = (),
    pure: bool = False,
    requantize: bool = False,
    leave_output: bool = False,
    importance: Calibration | Mapping[str, F32] | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> QuantizeReport:
    """Quantizes `source` by a recipe and writes `target`.

    overrides, pure, requantize, leave_output: see QuantizeOptions. All others: see write.
    """
    settings = QuantizeOptions(recipe, overrides, pure, requantize, leave_output)
    return write(source, target, settings, importance=importance, threads=threads, progress=progress)


def plan(
    source: Origin,
    target: str | Path,
    settings: QuantizeOptions,
    *,
    keep_split: bool = False,
    metadata: Extra | None = None,
    awq: bool = False,
) -> Dry:
    """What `write` would write, computed from the header only."""
    with _opened(source) as opened:
        choices = plan_tensors(opened, settings)
        layouts = lay_out(
            target,
            _metadata(opened, settings.recipe, choices, metadata, awq),
            [TensorSource(c.name, c.shape, c.target, b"") for c in choices],
            alignment=opened.alignment,
            counts=_counts(opened) if keep_split else None,
        )
        return Dry(choices, {}, tuple((layout.path, layout.size) for layout in layouts))


def write(
    source: Origin,
    target: str | Path,
    settings: QuantizeOptions,
    *,
    keep_split: bool = False,
    metadata: Extra | None = None,
    importance: Calibration | Mapping[str, F32] | None = None,
    awq: bool = False,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    started: Callable[[TensorPlan], None] | None = None,
) -> QuantizeReport:
    """Quantizes `source` and writes `target`.

    keep_split: write as many parts as the source has, with the same tensors in each.
    metadata: keys to write in addition to the source's.
    importance: calibration data, or a weight per column by tensor name.
    awq: scale columns where that lowers the error, and divide the producers of their inputs.
    threads: does not affect the result.
    progress: called with the bytes of each write. started: called with each tensor before it is written.

    ModelError where the source is malformed; RequestError where it can't be quantized as requested.
    """
    calibration = Diagonals(importance) if isinstance(importance, Mapping) else importance
    settings = replace(settings, importance=settings.importance or calibration is not None)
    threads = threads or os.cpu_count() or 1
    with _opened(source) as opened:
        _check_target(opened, Path(target))
        choices = plan_tensors(opened, settings)
        with one_blas_thread(), SafeThreadPool(threads, "satchel-encode") as pool:
            encoder = TensorEncoder(opened, pool, threads, calibration)
            encoder.check(choices)
            if awq:
                encoder.use_awq(choices)

            def pieces(choice: TensorPlan) -> Iterator[memoryview | Blocks]:
                if started:
                    started(choice)
                return encoder.pieces(choice)

            write_gguf(
                target,
                _metadata(opened, settings.recipe, choices, metadata, awq),
                [TensorSource(c.name, c.shape, c.target, partial(pieces, c)) for c in choices],
                alignment=opened.alignment,
                counts=_counts(opened) if keep_split else None,
                progress=progress,
            )
        return QuantizeReport(choices, encoder.errors)


@contextmanager
def _opened(source: Origin) -> Iterator[Source]:
    if not isinstance(source, str | Path):
        yield source
        return
    with open_gguf(source) as gguf:
        yield gguf


def _check_target(source: Source, target: Path) -> None:
    parts = [part.path for part in source.parts] if isinstance(source, GGUF) else []
    if any(target.exists() and target.samefile(path) for path in parts):
        raise RequestError(f"{target}: expected another file than the source; quantizing can't be undone")


def _counts(source: Source) -> list[int]:
    """The number of tensors in each file of the source."""
    if not isinstance(source, GGUF):
        return [len(source.tensors)]
    counts = [0] * len(source.parts)
    for info in source.tensors.values():
        counts[info.part] += 1
    return counts


def _metadata(
    source: Source, recipe: Recipe, choices: Sequence[TensorPlan], extra: Extra | None, awq: bool
) -> dict[str, Value | Typed | Sequence[str]]:
    """The source's metadata with the keys that describe the new file."""
    found: dict[str, Value | Typed | Sequence[str]] = {
        key: source.metadata.typed(key) for key in source.metadata
    }
    found["general.quantization_version"] = Typed(ValueType.UINT32, QUANTIZATION_VERSION)
    found["general.file_type"] = Typed(ValueType.UINT32, recipe.file_type)
    own = sorted({c.target for c in choices} & EXTENSIONS)
    found.pop(EXTENSION_KEY, None)
    if own:
        found[EXTENSION_KEY] = own
    if awq:
        found[AWQ_KEY] = True
    found.update(extra or {})
    return found
