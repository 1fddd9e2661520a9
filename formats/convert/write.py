"""Writes a source as a GGUF file, tensor by tensor, atomically."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from satchel.errors import RequestError
from satchel.formats.gguf import TensorSource, write_gguf
from satchel.formats.source import Source


def write_source(
    source: Source,
    target: str | Path,
    *,
    max_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Path]:
    """Writes `target`, or parts with up to max_size bytes of tensors each, and returns the paths. progress:
    called with the number of bytes written so far.

    RequestError where a file cannot be written, ModelError for a malformed source; no file remains then.
    """
    target = Path(target)
    if source.path.is_dir() and target.resolve() == source.path.resolve():
        raise RequestError(f"{target}: expected a file to write, got the checkpoint's folder")
    tensors = [
        TensorSource(tensor.name, tensor.shape, tensor.format, partial(source.chunks, tensor.name))
        for tensor in source.tensors.values()
    ]
    values = {key: source.metadata.typed(key) for key in source.metadata}
    return write_gguf(
        target, values, tensors, alignment=source.alignment, max_size=max_size, progress=progress
    )
