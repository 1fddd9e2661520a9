"""LoRA adapters from GGUF files: alpha / rank * B A beside a weight W, never merged into it, so that each
token of a step may have its own mix of them.

All that are loaded lie side by side: y = W x + B ((A x) * gate), where the gate holds each token's scale of
each adapter. Source: Hu et al., LoRA, arXiv 2106.09685.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from satchel.errors import ModelError
from satchel.formats.gguf import GGUF, open_gguf
from satchel.formats.gguf.check import quote
from satchel.quant import FORMATS
from satchel.runtime.graph import Array

RANK_LIMIT = 1 << 14
AWQ = "satchel.awq"  # quantizing scaled the columns of the model's matrices
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Factors:
    """One weight's change: a (rank, K) and b (N, rank), float32; of the embedding a is (V, rank), the rows
    that tokens look up.
    """

    a: Array
    b: Array

    @property
    def rank(self) -> int:
        return int(self.b.shape[1])


@dataclass(frozen=True, slots=True)
class Adapter:
    """A checked adapter: factors by the weight's name."""

    path: Path
    alpha: float
    factors: Mapping[str, Factors]

    def gain(self, weight: str) -> float:
        """What B A is multiplied by at scale 1; alpha 0 leaves it as it is, as in llama.cpp."""
        return self.alpha / self.factors[weight].rank if self.alpha else 1.0


@dataclass(frozen=True, slots=True)
class Stack:
    """The factors of one weight side by side: a (R, K), or (V, R) of the embedding, b (N, R), and expand (R,
    n), which spreads the scales of all n adapters and control vectors over the ranks.
    """

    a: Array
    b: Array
    expand: Array


def read_adapter(path: Path, model: GGUF) -> Adapter:
    """Opens and checks an adapter for a model. ModelError for what does not fit it."""
    if AWQ in model.metadata:
        raise ModelError(
            f"{path}: {model.path} was quantized with --awq, which scaled the columns that adapters "
            "multiply; quantize the model again without --awq"
        )
    with open_gguf(path) as file:
        meta = file.metadata
        for key, wanted in (
            ("general.type", "adapter"),
            ("adapter.type", "lora"),
            ("general.architecture", model.metadata.get_str("general.architecture")),
        ):
            found = meta.get_str(key, "nothing")
            if found != wanted:
                raise meta.fault(key, wanted, quote(found), f"give a LoRA adapter made for {model.path.name}")
        alpha = meta.get_float("adapter.lora.alpha", low=0.0, high=1e9)
        halves = _halves(file)
        if not halves:
            raise ModelError(f"{path}: expected tensors, got none; the adapter is incomplete")
        return Adapter(path, alpha, {name: _factors(file, model, name, halves[name]) for name in halves})


def _halves(file: GGUF) -> dict[str, set[str]]:
    """Which of "a" and "b" there are of each weight."""
    found: dict[str, set[str]] = {}
    for name in file.tensors:
        weight, _, part = name.rpartition(".lora_")
        if part not in ("a", "b") or not weight:
            raise ModelError(
                f"{file.path}: {quote(name, 100)}: expected names that end in .lora_a or .lora_b; other "
                "adapters than LoRA are not supported"
            )
        found.setdefault(weight, set()).add(part)
    return found


def _factors(file: GGUF, model: GGUF, name: str, parts: set[str]) -> Factors:
    where = f"{file.path}: {quote(name, 100)}"
    target = model.tensors.get(name)
    if target is None:
        raise ModelError(f"{where}: {model.path.name} has no such weight; was the adapter made for it?")
    if len(target.shape) != 2:
        raise ModelError(
            f"{where}: expected a matrix, the model's has shape {list(target.shape)}; adapters of experts "
            "are not supported: merge them into the checkpoint and convert that"
        )
    if len(parts) != 2:
        raise ModelError(f"{where}: expected lora_a and lora_b, got one of them; the adapter is incomplete")
    a, b = (file.tensors[f"{name}.lora_{part}"] for part in "ab")
    rows, columns = target.shape if name != EMBEDDING else target.shape[::-1]
    rank = b.shape[-1]
    wanted = (rank, columns) if name != EMBEDDING else (columns, rank)
    if b.shape != (rows, rank) or a.shape != wanted or not 0 < rank <= RANK_LIMIT:
        raise ModelError(
            f"{where}: expected lora_a {list(wanted)} and lora_b [{rows}, rank] for the model's "
            f"{list(target.shape)}, got {list(a.shape)} and {list(b.shape)}; was the adapter made for it?"
        )
    return Factors(*(read_values(file, f"{name}.lora_{part}") for part in "ab"))


def read_values(file: GGUF, name: str) -> Array:
    """A small tensor as float32. ModelError for formats that are not known, and what is no number."""
    info = file.tensors[name]
    if info.format not in FORMATS:
        raise ModelError(f"{file.path}: {quote(name, 100)}: stored as {info.format}, which is not read")
    values = FORMATS[info.format].decode(file.copy(name)).reshape(info.shape).astype(np.float32)
    if not np.isfinite(values).all():
        raise ModelError(f"{file.path}: {quote(name, 100)}: holds NaN or infinity; the file is damaged")
    return values


def stacked(adapters: Sequence[Adapter], width: int) -> dict[str, Stack]:
    """The stack of each weight that any of them changes. width: of all adapters and control vectors, LoRA
    first.
    """
    weights = dict.fromkeys(name for adapter in adapters for name in adapter.factors)
    return {name: _stack(name, adapters, width) for name in weights}


def _stack(name: str, adapters: Sequence[Adapter], width: int) -> Stack:
    used = [(i, a) for i, a in enumerate(adapters) if name in a.factors]
    found = [a.factors[name] for _, a in used]
    expand = np.zeros((sum(f.rank for f in found), width), np.float32)
    at = 0
    for (i, adapter), factors in zip(used, found, strict=True):
        expand[at : at + factors.rank, i] = adapter.gain(name)
        at += factors.rank
    a = np.concatenate([f.a for f in found], axis=1 if name == EMBEDDING else 0)
    return Stack(a, np.concatenate([f.b for f in found], axis=1), expand)
