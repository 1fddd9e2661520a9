"""Real files: our reader agrees with the gguf package, our tables with its tables; opening is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from satchel.formats.gguf import TENSOR_TYPES, StringArray, ValueType, open_gguf, sources, write_gguf

SHARED = Path(__file__).parents[4] / "shared"
FILES = sorted([*SHARED.glob("vocabs/*.gguf"), *SHARED.glob("default-model/*.gguf")])
WHY = "needs the real files in ../shared"
needs_files = pytest.mark.skipif(not FILES, reason=WHY)


def test_tensor_types_equal_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name.lower(), *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    newer = {42: ("q2_0", 64, 18)}  # of ggml, which the package may not know yet
    assert {number: tuple(kind) for number, kind in TENSOR_TYPES.items() if number < 1000} == newer | theirs


def test_value_types_equal_the_gguf_package() -> None:
    assert {kind.name: int(kind) for kind in ValueType} == {
        kind.name: int(kind) for kind in gguf.GGUFValueType
    }


def as_param(path: Path) -> Any:
    """The gguf package takes up to ten seconds for the largest vocabularies."""
    large = "vocab" in path.stem and path.stat().st_size > 3 << 20
    marks = [pytest.mark.slow if "llama-bpe" in path.stem else pytest.mark.nightly] if large else []
    return pytest.param(path, id=path.stem, marks=marks)


@needs_files
@pytest.mark.parametrize("path", [as_param(path) for path in FILES])
def test_equals_the_gguf_package(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    with open_gguf(path) as model:
        assert model.warnings == ()
        assert list(model.metadata) == list(fields)
        for key, field in fields.items():
            value = model.metadata.typed(key)
            assert [int(kind) for kind in field.types[:2]] == [
                k for k in (value.type, value.element) if k is not None
            ]
            if isinstance(value.value, StringArray):
                # The package's own contents() takes seconds for a vocabulary; its parts are the same bytes.
                assert value.value.tolist() == [field.parts[i].tobytes().decode() for i in field.data], key
            else:
                ours = value.value.tolist() if isinstance(value.value, np.ndarray) else value.value
                assert ours == field.contents(), key
        assert list(model.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            info = model.tensors[tensor.name]
            assert info.shape == tuple(tensor.shape.tolist()[::-1])
            assert (info.type_id, info.offset, info.nbytes) == (
                int(tensor.tensor_type),
                tensor.data_offset,
                tensor.n_bytes,
            )
            assert np.array_equal(model.raw(tensor.name).ravel(), tensor.data.view(np.uint8).ravel())


@needs_files
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_file_is_written_back_to_the_bit(path: Path, tmp_path: Path) -> None:
    with open_gguf(path) as model:
        (copy,) = write_gguf(tmp_path / "copy.gguf", model.metadata, sources(model))
        # Files without tensors may end before or after the padding; what carries meaning is all there.
        assert copy.read_bytes().rstrip(b"\0") == path.read_bytes().rstrip(b"\0")


@needs_files
def test_opening_makes_no_string_and_reads_no_tensor() -> None:
    """A vocabulary's strings stay packed: only the header's bytes and 8 bytes per string are held."""
    import tracemalloc

    path = max(FILES, key=lambda path: path.stat().st_size)
    with open_gguf(path) as model:
        header = model.parts[0].data_offset
    tracemalloc.start()
    with open_gguf(path) as model:
        held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3 * header


def test_import_stays_light() -> None:
    heavy = ("numba", "gguf", "tokenizers", "jinja2", "typer", "rich")
    code = f"import sys, satchel.formats.gguf; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
