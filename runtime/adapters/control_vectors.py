"""Control vectors from GGUF files: a direction that is added to what leaves a layer, as llama.cpp reads and
applies them.

Source: Zou et al., Representation Engineering, arXiv 2310.01405.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import GGUF, open_gguf
from satchel.formats.gguf.check import quote
from satchel.runtime.adapters.lora import read_values
from satchel.runtime.graph import Array

NAME = re.compile(r"direction\.([0-9]{1,9})")
KIND = "controlvector"


@dataclass(frozen=True, slots=True)
class ControlVector:
    """Directions (D) float32 by layer; layer i's is added to what leaves block i, counted from 0."""

    path: Path
    directions: Mapping[int, Array]


def read_control_vector(path: Path, model: GGUF, layers: tuple[int, int] | None = None) -> ControlVector:
    """Opens and checks a control vector for a model. layers: the first and last that are used, None: all.

    ModelError for what does not fit the model, RequestError for a range in which there is no layer.
    """
    arch = model.metadata.get_str("general.architecture")
    count = model.metadata.get_uint(f"{arch}.block_count", low=1, high=512)
    width = model.metadata.get_uint(f"{arch}.embedding_length", low=1)
    first, last = layers or (1, count)
    with open_gguf(path) as file:
        found = file.metadata.get_str("general.architecture", "nothing")
        if found != KIND:
            raise file.metadata.fault("general.architecture", KIND, quote(found), "give a control vector")
        numbers = {_layer(file, name, count): name for name in file.tensors}
        if len(numbers) != len(file.tensors):
            raise ModelError(f"{path}: a layer has two directions; the file contradicts itself")
        used = {i: name for i, name in numbers.items() if first <= i <= last}
        if not used:
            have = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
            raise RequestError(f"{path}: no direction for layers {first} to {last}: it has {have}")
        return ControlVector(path, {i: _direction(file, name, width) for i, name in sorted(used.items())})


def _layer(file: GGUF, name: str, count: int) -> int:
    match = NAME.fullmatch(name)
    if match is None or not 0 < int(match[1]) < count:
        raise ModelError(
            f"{file.path}: {quote(name, 100)}: expected direction.1 to direction.{count - 1} for a model of "
            f"{count} layers; was it made for another?"
        )
    return int(match[1])


def _direction(file: GGUF, name: str, width: int) -> Array:
    if file.tensors[name].shape != (width,):
        raise ModelError(
            f"{file.path}: {name}: expected {width} numbers, got shape {list(file.tensors[name].shape)}; was "
            "it made for another model?"
        )
    return read_values(file, name)


def columns(vectors: Sequence[ControlVector], before: int) -> dict[int, Array]:
    """By layer, the matrix (D, n) that turns the scales of all n adapters and control vectors into what is
    added; `before` of them come before the vectors.
    """
    found: dict[int, Array] = {}
    for number, vector in enumerate(vectors, before):
        for layer, direction in vector.directions.items():
            empty = np.zeros((len(direction), before + len(vectors)), np.float32)
            found.setdefault(layer, empty)[:, number] = direction
    return found
