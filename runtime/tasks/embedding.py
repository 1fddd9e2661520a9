"""Embeddings: what the model makes of texts, one vector each, from the rows that its head would meet.

A text may be as long as the context; a step takes pieces of many, and each text's vector is the same whatever
stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from satchel.errors import RequestError
from satchel.formats.gguf import Metadata
from satchel.runtime.engine.reading import Passage, PassageReader
from satchel.runtime.graph import Array

# GGUF's numbers of <arch>.pooling_type; 4, rank, is a reranker's.
POOLINGS = ("none", "mean", "cls", "last")


@dataclass(frozen=True, slots=True)
class Pooling:
    """How the rows of a text become its vector. kind: "mean" of all, "cls", the first, or "last". normalize:
    to length 1. dimensions: so many are kept, of models trained for it (Matryoshka); 0: all.
    """

    kind: str = "mean"
    normalize: bool = True
    dimensions: int = 0

    def __post_init__(self) -> None:
        if self.kind not in POOLINGS:
            raise RequestError(f"pooling is {self.kind!r}: expected one of {', '.join(POOLINGS)}")

    def finish(self, rows: Array) -> Array:
        """Rows (n, D) float64 cut and scaled, as float32; zeros stay zeros."""
        rows = rows[:, : self.dimensions or None]
        if self.normalize:
            length = np.sqrt(np.square(rows).sum(-1, keepdims=True))
            rows = rows / np.where(length > 0, length, 1)
        return np.ascontiguousarray(rows, np.float32)


def pooling_of(metadata: Metadata, kind: str | None, normalize: bool, dimensions: int | None) -> Pooling:
    """kind None: the file's <arch>.pooling_type, and mean where it says nothing or rank. RequestError for
    more dimensions than there are.
    """
    arch = metadata.get_str("general.architecture")
    width = metadata.get_uint(f"{arch}.embedding_length", low=1)
    if kind is None:
        number = metadata.get_uint(f"{arch}.pooling_type", 1)
        kind = POOLINGS[number] if 1 <= number < len(POOLINGS) else "mean"
    if dimensions is not None and not 1 <= dimensions <= width:
        raise RequestError(f"dimensions are {dimensions}: this model's embeddings have 1 to {width}")
    return Pooling(kind, normalize, dimensions or 0)


def embed(reader: PassageReader, texts: Sequence[Sequence[int]], pooling: Pooling) -> Array:
    """Vectors (n, D) float32 of texts as token ids."""
    last = pooling.kind == "last"
    passages = [Passage(ids, len(ids) - 1 if last else 0, shared=last) for ids in texts]
    sums = np.zeros((len(texts), reader.width))
    for rows in reader.read(passages):
        if pooling.kind == "mean":
            # Row after row, so that the sum does not depend on where steps cut a text.
            for row in rows.values:
                sums[rows.number] += row
        elif last or rows.first == 0:
            sums[rows.number] = rows.values[0]
    if pooling.kind == "mean":
        sums /= np.array([len(ids) for ids in texts])[:, None]
    return pooling.finish(sums)


def embed_tokens(reader: PassageReader, texts: Sequence[Sequence[int]], pooling: Pooling) -> list[Array]:
    """A vector for each token: (tokens, D) float32 of each text."""
    found: list[list[Array]] = [[] for _ in texts]
    for rows in reader.read([Passage(ids) for ids in texts]):
        found[rows.number].append(pooling.finish(rows.values.astype(np.float64)))
    return [np.concatenate(parts) for parts in found]
