"""Where a model's tensors come from, whatever the files: what converting and quantizing read.

An open GGUF file is a source, and so is a checkpoint folder (formats/convert), whose tensors already have
GGUF's names, shapes and formats. Open either with `satchel.runtime.weights.sources.open_source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from satchel.formats.gguf import Metadata


class SourceTensor(Protocol):
    """What is known of a tensor before it is read. shape: outermost dimension first; format: a name of
    satchel.quant.FORMATS; nbytes: of all its rows in that format.
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
    """An open model. `path` names it in errors; tensors are in the order in which they should be written;
    alignment is the bytes that a written file should align its tensors to.
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
