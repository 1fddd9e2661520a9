"""Fuzz targets for files loaded beside a model or converted to one: LoRA adapters, PEFT folders, ONNX
files.
"""

from __future__ import annotations

import atexit
import json
import struct
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import toy_checkpoint
from fuzz_readers import folder
from tiny_file import write_model

from satchel.errors import ModelError
from satchel.formats.convert.lora import Base, LoraCheckpoint
from satchel.formats.convert.onnxfile import open_onnx
from satchel.formats.gguf import GGUF, open_gguf
from satchel.runtime.adapters.lora import read_adapter, stacked
from satchel.runtime.weights.sources import _base

LENGTH = struct.Struct("<I")  # the length of adapter_config.json, which precedes it
MOST = 1 << 24  # bytes of the largest tensor that is read


@cache
def model() -> GGUF:
    """The model that the adapters are for; the process keeps it open."""
    path, stack = write_model(folder() / "base.gguf", "llama"), ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(open_gguf(path))


@cache
def base() -> Base:
    path = folder() / "base"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(toy_checkpoint.config("llama")), encoding="utf-8")
    return _base(path)


def lora(data: bytes) -> None:
    """A GGUF adapter: an accepted one fits the model and stacks."""
    path = folder() / "adapter.gguf"
    path.write_bytes(data)
    found = read_adapter(path, model())
    for stack in stacked([found, found], 3).values():
        if stack.expand.shape[1] != 3 or stack.b.shape[1] != stack.expand.shape[0]:
            raise AssertionError("stacks that do not fit together")


def peft(data: bytes) -> None:
    """A PEFT folder: the length of adapter_config.json, the file itself, then adapter_model.safetensors."""
    size = min(LENGTH.unpack_from(data)[0], len(data)) if len(data) >= LENGTH.size else 0
    path = folder() / "peft"
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_bytes(data[LENGTH.size : LENGTH.size + size])
    (path / "adapter_model.safetensors").write_bytes(data[LENGTH.size + size :])
    with LoraCheckpoint(path, base()) as found:
        for name, tensor in found.tensors.items():
            if tensor.nbytes > MOST:
                raise ModelError(f"{name}: too large for this target")
            if sum(len(part) for part in found.chunks(name)) != tensor.nbytes:
                raise AssertionError(f"{name}: other bytes than its shape says")


def onnx(data: bytes) -> None:
    """An ONNX graph: every weight that is found can be read and has the stated shape."""
    path: Path = folder() / "onnx" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    container = open_onnx([path])
    with container.closer:
        for stored in container.tensors.values():
            if stored.nbytes > MOST:
                raise ModelError(f"{stored.name}: too large for this target")
            values = stored.all()
            if values.nbytes != stored.nbytes:
                raise AssertionError(f"{stored.name}: other bytes than its shape says")
