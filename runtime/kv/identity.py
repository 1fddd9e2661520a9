"""What tells one model from another without reading all of it: what is computed into a KV cache must not be
taken for another model's.
"""

from __future__ import annotations

import hashlib

import numpy as np

from satchel.formats.gguf import GGUF
from satchel.formats.gguf.values import pack

PIECE = 4096  # bytes read at the beginning, in the middle and at the end of a tensor
AUTHORS = ("general.", "split.")  # keys that say nothing about what is computed


def identity(gguf: GGUF) -> str:
    """Hexadecimal SHA-256 of the architecture, its hyper-parameters, the vocabulary, and of each tensor its
    name, shape, type and three pieces of its bytes; the same in whatever order or parts a file has them.
    """
    found = hashlib.sha256(gguf.metadata.get_str("general.architecture", "").encode())
    for key in sorted(k for k in gguf.metadata if not k.startswith(AUTHORS)):
        found.update(key.encode() + b"\0" + pack(gguf.metadata.typed(key)))
    for name in sorted(gguf.tensors):
        info = gguf.tensors[name]
        found.update(f"{name} {info.format} {info.shape}\n".encode())
        for start in sorted({0, max(0, info.nbytes // 2 - PIECE // 2), max(0, info.nbytes - PIECE)}):
            piece = np.empty(min(PIECE, info.nbytes - start), np.uint8)
            gguf.parts[info.part].read_into(info.offset + start, piece.data)
            found.update(piece.data)
    return found.hexdigest()
