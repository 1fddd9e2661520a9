"""Transforms a checkpoint's tensors to GGUF's: names, stacked experts, rows in GGUF's RoPE order, formats.

A tensor that is missing, unknown or of a wrong shape is an error that names the checkpoint's tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from satchel.errors import ModelError
from satchel.formats.convert.config import LAYERS_MAX, ModelConfig
from satchel.formats.convert.grid import on_grid
from satchel.formats.convert.logical import Logical, Rows, retyped
from satchel.formats.convert.mapping import MappedTensor
from satchel.formats.convert.nets import NETS
from satchel.formats.convert.stacks import STACKS
from satchel.formats.convert.stored import Array
from satchel.formats.gguf.check import quote
from satchel.quant.recipes import fit_format, is_quantizable

OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Shaping:
    """The output formats.

    outtype: one of OUTTYPES; auto keeps the checkpoint's formats.
    dequantize: quantized tensors become bf16.
    extensions: allow Satchel's extension types.
    grids: detect floats on a 4-bit grid and store them as q4_0 (grid.py).
    """

    outtype: str = "auto"
    dequantize: bool = False
    extensions: bool = True
    grids: bool = True


def assemble(
    path: Path, model: ModelConfig, tensors: Iterable[Logical], shaping: Shaping
) -> tuple[dict[str, Logical], list[str]]:
    """Tensors by GGUF's name in the order to be written, and notes."""
    placed: dict[str, list[tuple[MappedTensor, Logical]]] = {}
    found, notes = _without_predictions(path, model, tensors)
    seen: set[str] = set()
    left_out = 0
    tied = model.config.get("tie_word_embeddings")
    for tensor in found:
        places = tuple(model.mapping.places(tensor.name))
        if not places:
            left_out += model.mapping.is_left_out(tensor.name)
            if not (model.mapping.is_ignored(tensor.name) or model.mapping.is_left_out(tensor.name)):
                raise _unknown(model, tensor)
            continue
        seen.add(model.mapping.renamed(tensor.name))
        if places[0].rule.target == "output" and tied:
            notes.append(f"{path}: {tensor.name} is left out: config.json ties it to the embeddings")
            continue
        for place in places:
            placed.setdefault(place.name, []).append((place, tensor))
    _check_complete(path, model, seen, tied)
    order = sorted(placed, key=lambda name: _order(model, name, placed[name][0][0]))
    shaped = {name: _shape(model, name, placed[name], shaping) for name in order}
    for name, factors in model.factors.items():
        shaped[name] = constant(name, factors, str(path))
    if left_out:
        notes.append(f"{path}: {left_out} tensors are left out: layers that predict further tokens")
    notes.extend(_summary(path, shaped))
    return shaped, notes


def _without_predictions(
    path: Path, model: ModelConfig, tensors: Iterable[Logical]
) -> tuple[list[Logical], list[str]]:
    """The tensors without multi-token prediction layers (DeepSeek V3's MTP), and a note where
    there are any.
    """
    count, layers = model.config.get("num_nextn_predict_layers"), model.uint("block_count")
    more = count if isinstance(count, int) and count > 0 else 0
    start = tuple(f"model.layers.{i}." for i in range(layers, layers + min(more, LAYERS_MAX)))
    kept = list(tensors)
    found = [tensor for tensor in kept if start and not tensor.name.startswith(start)]
    if not start or len(found) == len(kept):
        return kept, []
    return found, [
        f"{path}: {len(kept) - len(found)} tensors of {more} layers that predict further tokens"
        " (num_nextn_predict_layers) are left out: the model's own layers do not need them"
    ]


def _unknown(model: ModelConfig, tensor: Logical) -> ModelError:
    return ModelError(
        f"{tensor.where}: tensor {quote(tensor.name, 100)}: {model.mapping.classes[0]} has no use for it; the"
        " checkpoint is of another architecture or a newer variant"
    )


def _check_complete(path: Path, model: ModelConfig, seen: set[str], tied: object) -> None:
    needed = list(model.mapping.needed(model.uint("block_count"), model.uint("expert_count")))
    if tied is False:
        needed += [f"{r.source}.weight" for r in model.mapping.rules if r.target == "output"]
    missing = [name for name in needed if name not in seen]
    if missing:
        raise ModelError(
            f"{path}: tensor {missing[0]}: expected by config.json, got none ({len(missing)} such); the"
            " checkpoint is incomplete"
        )
    layers = model.uint("block_count")
    for name in seen:
        place = model.mapping.place(name)
        if place is not None and place.name.startswith("blk.") and int(place.name.split(".")[1]) >= layers:
            raise ModelError(
                f"{path}: tensor {name}: expected layers up to {layers - 1} by config.json's"
                f" num_hidden_layers {layers}; the checkpoint contradicts itself"
            )


def _order(model: ModelConfig, name: str, place: MappedTensor) -> tuple[int, int, int]:
    """Embeddings, then layer by layer, then the rest, each in the order of the rules."""
    layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
    stage = 1 if layer >= 0 else 0 if name.startswith("token_embd") else 2
    return stage, layer, model.mapping.rules.index(place.rule)


def _shape(
    model: ModelConfig, name: str, parts: Sequence[tuple[MappedTensor, Logical]], shaping: Shaping
) -> Logical:
    place, tensor = parts[0]
    if place.expert is not None:
        tensor = _stack(model, name, parts)
    if place.rule.made:
        tensor = MADE[place.rule.made](tensor, model)
    if place.rule.heads:
        tensor = neighbours(tensor, model.uint(place.rule.heads))
    return _formatted(name, tensor, shaping)


def _formatted(name: str, tensor: Logical, shaping: Shaping) -> Logical:
    """The tensor in its output format. Vectors and routers become float32, as runtimes expect."""
    shape = tensor.shape
    if not is_quantizable(name, shape):
        return retyped(tensor, "f32")
    if shaping.outtype != "auto":
        return _decoded(tensor, fit_format(shaping.outtype, shape[-1]))
    if tensor.format not in FLOATS:
        return _decoded(tensor, "bf16") if shaping.dequantize else tensor
    return on_grid(tensor) if shaping.grids and not shaping.dequantize else tensor


def _decoded(tensor: Logical, target: str) -> Logical:
    """The tensor in another format, with a note where quantized codes are decoded."""
    if tensor.format in FLOATS or tensor.format == target:
        return retyped(tensor, target)
    return retyped(tensor, target, f"{tensor.format} decoded to {target}")


def neighbours(tensor: Logical, heads: int) -> Logical:
    """Permutes the rows of each head from RoPE pairs (i, i + d/2) to adjacent pairs: 0, d/2, 1, d/2 + 1, ...
    A bias is permuted alike.
    """
    size = tensor.shape[0]
    if heads < 1 or size % (2 * heads):
        raise ModelError(
            f"{tensor.where}: {tensor.name}: expected {heads} heads of an even number of rows, got {size}"
            " rows; the checkpoint contradicts itself"
        )
    return reordered(tensor, np.arange(size).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1))


def reordered(tensor: Logical, order: Array) -> Logical:
    """The tensor's rows, or a vector's numbers, in this order."""

    def open_rows() -> Rows:
        rows = tensor.open()

        def read(first: int, last: int) -> Array:
            if len(tensor.shape) == 1:
                return rows(0, 1)[:, order]
            wanted = order[first:last]
            low = int(wanted.min(initial=0))
            found: Array = rows(low, int(wanted.max(initial=-1)) + 1)[wanted - low]
            return found

        return read

    return replace(tensor, open=open_rows)


def plus_one(tensor: Logical, model: ModelConfig) -> Logical:
    """A norm's weight, which the checkpoint stores minus 1."""
    base = retyped(tensor, "f32")

    def open_rows() -> Rows:
        rows = base.open()
        return lambda first, last: np.asarray(rows(first, last) + np.float32(1), np.float32)

    return replace(base, open=open_rows)


def after_padding(tensor: Logical, model: ModelConfig) -> Logical:
    """Position embeddings without the rows up to the padding token's id (RoBERTa)."""
    skipped = 1 + int(model.config.get("pad_token_id", 1))
    if tensor.shape[0] <= skipped:
        raise ModelError(
            f"{tensor.where}: {tensor.name}: expected more than {skipped} rows, got {tensor.shape[0]}; the"
            " checkpoint contradicts itself"
        )
    return replace(
        reordered(tensor, np.arange(skipped, tensor.shape[0])),
        shape=(tensor.shape[0] - skipped, *tensor.shape[1:]),
    )


def transposed(tensor: Logical, model: ModelConfig) -> Logical:
    """A matrix (K, N) of the checkpoint as (N, K); vectors are unchanged."""
    if len(tensor.shape) != 2:
        return tensor
    base = tensor if tensor.format in FLOATS else retyped(tensor, "f16", "transposed: as f16")

    def open_rows() -> Rows:
        whole = np.ascontiguousarray(base.open()(0, base.rows).T)
        return lambda first, last: whole[first:last]

    return replace(base, shape=tensor.shape[::-1], open=open_rows)


def flat(tensor: Logical, model: ModelConfig) -> Logical:
    """A matrix of one row as a vector."""
    if tensor.rows != 1:
        raise ModelError(
            f"{tensor.where}: {tensor.name}: expected one row, got the shape"
            f" {list(tensor.shape)}; the checkpoint contradicts itself"
        )
    return replace(tensor, shape=tensor.shape[-1:])


def grouped_qkv(tensor: Logical, model: ModelConfig) -> Logical:
    """Fused rows of all Q, then K, then V, from rows by group: a KV head's queries, its key, its value."""
    heads, kv = (model.uint(f"attention.head_count{suffix}") for suffix in ("", "_kv"))
    size = tensor.shape[0]
    if kv < 1 or heads % kv or size % (heads + 2 * kv):
        raise ModelError(
            f"{tensor.where}: {tensor.name}: expected rows of {heads} query heads and {kv} KV heads, got"
            f" {size} rows; the checkpoint contradicts itself"
        )
    order = np.arange(size).reshape(kv, heads // kv + 2, -1)
    parts = (order[:, :-2], order[:, -2], order[:, -1])
    return reordered(tensor, np.concatenate([part.reshape(-1) for part in parts]))


def latent_keys(tensor: Logical, model: ModelConfig) -> Logical:
    """The key part of MLA's kv_b_proj, transposed for absorption into the queries: (heads, rank, key)."""
    heads, key, value = _latent(tensor, model)
    base = tensor if tensor.format in FLOATS else retyped(tensor, "bf16", "transposed: as bf16")
    rank = tensor.shape[1]

    def open_rows() -> Rows:
        whole = base.open()(0, base.rows).reshape(heads, key + value, rank)[:, :key]
        transposed = np.ascontiguousarray(whole.swapaxes(1, 2)).reshape(heads * rank, key)
        return lambda first, last: transposed[first:last]

    return replace(base, shape=(heads, rank, key), open=open_rows)


def latent_values(tensor: Logical, model: ModelConfig) -> Logical:
    """The value part of MLA's kv_b_proj: (heads, value, rank)."""
    heads, key, value = _latent(tensor, model)
    order = np.arange(tensor.shape[0]).reshape(heads, -1)[:, key:].reshape(-1)
    return replace(reordered(tensor, order), shape=(heads, value, tensor.shape[1]))


def _latent(tensor: Logical, model: ModelConfig) -> tuple[int, int, int]:
    """(heads, dimensions of a head's key without RoPE, dimensions of its value)."""
    heads, n_rot = model.uint("attention.head_count"), model.uint("rope.dimension_count")
    key, value = (model.uint(f"attention.{part}_length_mla") for part in ("key", "value"))
    if len(tensor.shape) != 2 or tensor.shape[0] != heads * (key - n_rot + value):
        raise ModelError(
            f"{tensor.where}: {tensor.name}: expected {heads} heads of {key - n_rot} + {value} rows, got the"
            f" shape {list(tensor.shape)}; the checkpoint contradicts itself"
        )
    return heads, key - n_rot, value


# What a rule's `made` names.
MADE: dict[str, Callable[[Logical, ModelConfig], Logical]] = {
    f.__name__: f
    for f in (
        *(plus_one, after_padding, transposed, flat, grouped_qkv, latent_keys, latent_values),
        *(*STACKS, *NETS),
    )
}


def _stack(model: ModelConfig, name: str, parts: Sequence[tuple[MappedTensor, Logical]]) -> Logical:
    """Experts 0 .. n - 1 of one matrix each as one tensor [n, rows, columns], or heads' vectors as rows."""
    count = model.uint(parts[0][0].rule.stack)
    ordered = [t for _, t in sorted(parts, key=lambda part: part[0].expert or 0)]
    numbers = sorted(place.expert or 0 for place, _ in parts)
    if numbers != list(range(count)):
        raise ModelError(
            f"{ordered[0].where}: {name}: expected numbers 0 to {count - 1} by config.json, got"
            f" {len(numbers)} up to {numbers[-1]}; the checkpoint contradicts itself"
        )
    shape = ordered[0].shape
    odd = next((t for t in ordered if t.shape != shape), None)
    if odd is not None:
        raise ModelError(
            f"{odd.where}: {odd.name}: expected the shape {list(shape)} of its siblings, got"
            f" {list(odd.shape)}; the checkpoint contradicts itself"
        )
    if len({t.format for t in ordered}) > 1:
        ordered = [retyped(t, "f16", "experts of several formats: as f16") for t in ordered]
    height = ordered[0].rows

    def open_rows() -> Rows:
        def read(first: int, last: int) -> Array:
            pieces = []
            for expert in range(first // height, -(-last // height)):
                start = expert * height
                pieces.append(ordered[expert].open()(max(first - start, 0), min(last - start, height)))
            return np.concatenate(pieces)

        return read

    first = ordered[0]
    used = tuple(n for t in ordered for n in t.tensors)
    return Logical(name, (count, *shape), first.format, open_rows, used, first.where, first.note)


def constant(name: str, values: Array, where: str) -> Logical:
    """A small tensor that is computed, [n] float32."""
    row = np.ascontiguousarray(values, np.float32).reshape(1, -1)
    return Logical(name, values.shape, "f32", lambda: lambda first, last: row[first:last], (), where)


def _summary(path: Path, tensors: dict[str, Logical]) -> list[str]:
    """One line per note on quantized tensors, with the number of tensors."""
    counts: dict[str, int] = {}
    for tensor in tensors.values():
        if tensor.note:
            counts[tensor.note] = counts.get(tensor.note, 0) + 1
    return [f"{path}: {count} tensors: {note}" for note, count in counts.items()]
