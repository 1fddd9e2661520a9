"""Finds the weights in a checkpoint folder: one file, or shards with an index, of the first supported format.
Unsupported formats are refused by name, with a hint how to convert them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from satchel.errors import ModelError
from satchel.formats.convert.jsonfile import read_json
from satchel.formats.convert.safetensors import SafetensorsFile
from satchel.formats.convert.stored import Container, Stored, gather
from satchel.formats.convert.torchfile import open_torch
from satchel.formats.gguf.check import quote

SAVE = "load it with its own library and save it with save_pretrained(folder, safe_serialization=True)"
# File pattern of an unsupported format, its name, and the way to safetensors.
REFUSED: tuple[tuple[str, str, str], ...] = (
    (
        "*.h5",
        "TensorFlow weights",
        "with transformers 4, load with from_pretrained(folder, from_tf=True), then save_pretrained",
    ),
    ("saved_model.pb", "a TensorFlow saved model", SAVE),
    ("*.ckpt.index", "a TensorFlow checkpoint", SAVE),
    ("*.ckpt*", "a training checkpoint", SAVE),
    (
        "*.msgpack",
        "Flax weights",
        "with transformers 4, load with from_pretrained(folder, from_flax=True), then save_pretrained",
    ),
    ("*.orbax*", "Orbax weights", SAVE),
    ("*.nemo", "a NeMo archive", SAVE),
    ("*.tflite", "a TensorFlow Lite model", SAVE),
    ("*.mlmodel", "a Core ML model", SAVE),
    ("*.npz", "numpy arrays", SAVE),
    ("*.pt", "PyTorch weights under a name of their own", SAVE),
    ("*.pth", "PyTorch weights under a name of their own", SAVE),
)
KINDS = ("model.safetensors", "pytorch_model.bin")
ADAPTER = "adapter_model.bin"


def open_folder(folder: Path) -> Container:
    """Opens all stored tensors by name. ModelError without weights, with a missing shard or a
    malformed file.
    """
    single, index = folder / KINDS[0], folder / f"{KINDS[0]}.index.json"
    if index.is_file() or single.is_file() or list(folder.glob("*.safetensors")):
        return _open_safetensors(_files(folder, KINDS[0], "*.safetensors"))
    for name in (KINDS[1], ADAPTER):
        if (folder / name).is_file() or (folder / f"{name}.index.json").is_file():
            return open_torch(_files(folder, name, name))
    if found := sorted(folder.glob("*.onnx")) or sorted(folder.glob("onnx/*.onnx")):
        from satchel.formats.convert.onnxfile import open_onnx

        return open_onnx(found)
    for pattern, what, way in REFUSED:
        if match := next(folder.glob(pattern), None):
            raise ModelError(f"{match}: expected safetensors, got {what}; {way}, and convert that folder")
    raise ModelError(
        f"{folder}: expected model.safetensors, its shards with an index, pytorch_model.bin or an .onnx file,"
        " found none; give the folder of a checkpoint"
    )


def _files(folder: Path, name: str, pattern: str) -> dict[Path, set[str] | None]:
    """The files by path, each with the tensors that the index assigns to it; None without an index."""
    index = folder / f"{name}.index.json"
    if index.is_file():
        return _indexed(folder, index)
    if (folder / name).is_file():
        return {folder / name: None}
    found = sorted(folder.glob(pattern))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:4])
        raise ModelError(
            f"{folder}: expected {name}, or shards with {index.name}, got {len(found)} files ({names});"
            " download the index as well"
        )
    return {found[0]: None}


def _indexed(folder: Path, index: Path) -> dict[Path, set[str] | None]:
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise ModelError(f"{index}: weight_map: expected file names by tensor; download the file again")
    files: dict[Path, set[str]] = {}
    for tensor, file in weights.items():
        if Path(file).name != file or file in ("", ".", ".."):
            raise ModelError(
                f"{index}: weight_map: expected names of files beside it, got {quote(file)}; do not trust it"
            )
        files.setdefault(folder / file, set()).add(tensor)
    for path in files:
        if not path.is_file():
            raise ModelError(
                f"{path}: expected this shard by {index.name}, found no file; download it as well"
            )
    if not files:
        raise ModelError(f"{index}: weight_map: expected tensors, got none; download the file again")
    return dict(files)


def _open_safetensors(files: Mapping[Path, set[str] | None]) -> Container:
    with ExitStack() as stack:

        def read(path: Path) -> Mapping[str, Stored]:
            opened = SafetensorsFile(path)
            stack.callback(opened.close)
            return opened.tensors

        return Container(gather(files, read), stack.pop_all())
