"""The interface of a model's tensors for conversion and quantization, independent of the file format.

An open GGUF file is a source, and so is a checkpoint folder (formats/convert), whose tensors have GGUF's
names, shapes and formats. `satchel.runtime.weights.sources.open_source` opens either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from satchel.formats.gguf import Metadata


class SourceTensor(Protocol):
    """The description of a tensor. shape: outermost dimension first. format: a name of satchel.quant.FORMATS.
    nbytes: of all rows in that format.
    """

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> str: ...

    @property
    def nbytes(self) -> int: ...


class Source(Protocol):
    """An open model.

    path: names it in errors. tensors: in the order in which they should be written. alignment: of tensors in
    a written file, in bytes.
    """

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def tensors(self) -> Mapping[str, SourceTensor]: ...

    @property
    def alignment(self) -> int: ...

    def chunks(self, name: str, size: int = ...) -> Iterator[memoryview]:
        """The tensor's bytes in its format, in order, in pieces of up to `size` bytes. Where `size` is a
        multiple of a row's bytes, each piece is whole rows. A piece is valid until the next.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
