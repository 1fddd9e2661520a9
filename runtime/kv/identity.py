"""What tells one model from another without reading all of it: what is computed into a KV cache must not be
taken for another model's.
"""

from __future__ import annotations

import hashlib

import numpy as np

from satchel.formats.gguf import GGUF
from satchel.formats.gguf.values import pack

PIECE = 4096  # bytes of a piece
BUDGET = 16 << 20  # bytes that are read of a model: some 15 ms
AUTHORS = ("general.", "split.")  # keys that say nothing about what is computed


def identity(gguf: GGUF) -> str:
    """Hexadecimal SHA-256 of the architecture, its hyper-parameters, the vocabulary, and of each tensor its
    name, shape, type and bytes: all of them up to BUDGET together, else pieces at even distances, three at
    least; the same in whatever order or parts a file has them. That a file is unchanged is told by its stamps
    (formats/gguf/reader.py), not by this.
    """
    total = sum(info.nbytes for info in gguf.tensors.values())
    found = hashlib.sha256(gguf.metadata.get_str("general.architecture", "").encode())
    for key in sorted(k for k in gguf.metadata if not k.startswith(AUTHORS)):
        found.update(key.encode() + b"\0" + pack(gguf.metadata.typed(key)))
    for name in sorted(gguf.tensors):
        info = gguf.tensors[name]
        found.update(f"{name} {info.format} {info.shape}\n".encode())
        whole = info.nbytes if total <= BUDGET else PIECE
        for start in starts(info.nbytes, whole, BUDGET * info.nbytes // max(1, total) // PIECE):
            piece = np.empty(min(whole, info.nbytes - start), np.uint8)
            gguf.parts[info.part].read_into(info.offset + start, piece.data)
            found.update(piece.data)
    return found.hexdigest()


def starts(size: int, piece: int, count: int) -> list[int]:
    """Where pieces of a tensor of `size` bytes begin: the first and the last, and others between them."""
    last, between = max(0, size - piece), max(3, count) - 1
    return sorted({last * i // between for i in range(between + 1)}) if size else []
