"""Fingerprint of a model without reading all of it. Keys and values of one model must not be used for
another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from satchel.formats.gguf import GGUF, TensorInfo
from satchel.formats.gguf.values import pack
from satchel.runtime.graph import Array

PIECE = 4096  # bytes of a sample
BUDGET = 16 << 20  # bytes of a model that are read: about 15 ms
AUTHORS = ("general.", "split.")  # metadata that does not affect the computation


def identity(gguf: GGUF) -> str:
    """Hexadecimal SHA-256 over the architecture, its hyper-parameters, the vocabulary, and the name, shape,
    type and bytes of each tensor.

    Tensors are hashed whole up to BUDGET in all, else by at least three evenly spaced samples. The order of
    tensors and the split of files do not matter. Stamps of the file (formats/gguf/reader.py), not this
    digest, show that it has not changed.
    """
    total = sum(info.nbytes for info in gguf.tensors.values())
    found = hashlib.sha256(gguf.metadata.get_str("general.architecture", "").encode())
    for key in sorted(k for k in gguf.metadata if not k.startswith(AUTHORS)):
        found.update(key.encode() + b"\0" + pack(gguf.metadata.typed(key)))
    for name, info in sorted(gguf.tensors.items()):
        found.update(f"{name} {info.format} {info.shape}\n".encode())
        for piece in _samples(gguf, info, total):
            found.update(piece.data)
    return found.hexdigest()


def weights_identity(gguf: GGUF) -> str:
    """The same of the weights alone, with where each lies in the file: two hosts whose files have one can use
    one plan. What a load overrides of the metadata does not change it.
    """
    total = sum(info.nbytes for info in gguf.tensors.values())
    found = hashlib.sha256(f"{[part.size for part in gguf.parts]}\n".encode())
    for name, info in sorted(gguf.tensors.items()):
        found.update(f"{name} {info.format} {info.shape} {info.part} {info.offset}\n".encode())
        for piece in _samples(gguf, info, total):
            found.update(piece.data)
    return found.hexdigest()


def _samples(gguf: GGUF, info: TensorInfo, total: int) -> Iterator[Array]:
    """Bytes of a tensor: all, if the `total` bytes of tensors are no more than BUDGET."""
    whole = info.nbytes if total <= BUDGET else PIECE
    for start in starts(info.nbytes, whole, BUDGET * info.nbytes // max(1, total) // PIECE):
        piece = np.empty(min(whole, info.nbytes - start), np.uint8)
        gguf.parts[info.part].read_into(info.offset + start, piece.data)
        yield piece


def starts(size: int, piece: int, count: int) -> list[int]:
    """Offsets of the samples of a tensor of `size` bytes: the first and the last, and evenly spaced ones
    between.
    """
    last, between = max(0, size - piece), max(3, count) - 1
    return sorted({last * i // between for i in range(between + 1)}) if size else []
