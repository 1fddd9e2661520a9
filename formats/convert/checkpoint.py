"""A Hugging Face checkpoint folder as a `Source`: its tensors with GGUF's names, order and row order.

Opening reads headers, configuration and vocabulary. Tensor data is read when `chunks` is iterated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satchel.formats.convert.codes import EXTENSIONS
from satchel.formats.convert.config import ModelConfig, read_config
from satchel.formats.convert.folder import open_folder
from satchel.formats.convert.general import general
from satchel.formats.convert.logical import CHUNK, Logical, pieces
from satchel.formats.convert.mapping import ArchMapping
from satchel.formats.convert.pooling import RANKS, read_pooling
from satchel.formats.convert.quantized import logicals, quantization
from satchel.formats.convert.shaping import Shaping, assemble
from satchel.formats.convert.vocabulary import read_vocabulary
from satchel.formats.gguf import Metadata, Typed, ValueType
from satchel.formats.gguf.types import DEFAULT_ALIGNMENT
from satchel.formats.resource import Resource

# general.file_type: ggml's number of the format that most matrices of a file have.
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "bf16": 32}
QUANTIZATION_VERSION = 2


@dataclass(frozen=True, slots=True)
class Shaped:
    """A SourceTensor of a checkpoint. origin: the names of the checkpoint's tensors that it is made of."""

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int
    origin: tuple[str, ...]
    note: str


class Checkpoint(Resource):
    """An open checkpoint folder; a satchel.formats.source.Source. notes: lines about oddities and changes."""

    alignment = DEFAULT_ALIGNMENT

    def __init__(self, path: Path, mappings: Sequence[ArchMapping], shaping: Shaping) -> None:
        self.path, self._rows = path, dict[str, Logical]()
        self.tensors: dict[str, Shaped] = {}
        self._container = None
        model = read_config(path / "config.json", mappings)
        self._container = open_folder(path)
        try:
            self._build(model, shaping)
        except BaseException:
            self.close()
            raise

    def _build(self, model: ModelConfig, shaping: Shaping) -> None:
        if self._container is None:
            raise ValueError(f"{self.path}: closed")
        config = quantization(self.path, model.config)
        stored = {n: t for n, t in self._container.tensors.items() if not model.mapping.is_ignored(n)}
        found = logicals(stored, config, self.path / "config.json", extensions=shaping.extensions)
        self._rows, notes = assemble(self.path, model, found, shaping)
        for name, tensor in self._rows.items():
            size = tensor.rows * tensor.row_bytes
            self.tensors[name] = Shaped(name, tensor.shape, tensor.format, size, tensor.tensors, tensor.note)
        vocabulary = read_vocabulary(self.path, model.config, self._vocab_rows())
        values = general(self.path, model) | model.values | {f"{model.arch}.vocab_size": self._vocab_rows()}
        pooling = read_pooling(self.path)
        if pooling is not None and values.get(f"{model.arch}.pooling_type") != RANKS:
            values[f"{model.arch}.pooling_type"] = pooling
        if (kinds := self.tensors.get("token_types.weight")) is not None:
            values["tokenizer.ggml.token_type_count"] = kinds.shape[0]
        self.metadata = Metadata.of(values | vocabulary.values | self._types(), str(self.path))
        self.notes = (*model.notes, *notes, *vocabulary.notes)

    def _vocab_rows(self) -> int:
        return self.tensors["token_embd.weight"].shape[0]

    def _types(self) -> dict[str, Any]:
        """Metadata about formats: general.file_type, by the largest share of bytes, and extension types."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            if len(tensor.shape) > 1:
                sizes[tensor.format] = sizes.get(tensor.format, 0) + tensor.nbytes
        most = max(sizes, key=lambda name: sizes[name], default="f32")
        values: dict[str, Any] = {
            "general.quantization_version": Typed(ValueType.UINT32, QUANTIZATION_VERSION)
        }
        if most in FILE_TYPES:
            values["general.file_type"] = Typed(ValueType.UINT32, FILE_TYPES[most])
        if own := [name for name in EXTENSIONS if name in sizes]:
            values["satchel.extension_types"] = own
        return values

    def chunks(self, name: str, size: int = CHUNK) -> Iterator[memoryview]:
        """See Source. ModelError where a value is NaN or infinite, or the file can't be read."""
        if self._container is None:
            raise ValueError(f"{self.path}: closed")
        yield from pieces(self._rows[name], size)

    def close(self) -> None:
        if self._container is not None:
            self._container.closer.__exit__(None, None, None)
            self._container = None
