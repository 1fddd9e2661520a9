"""Chooses the format of each tensor of a file: the recipe's, unless a pattern overrides it.

The choice depends on names and shapes only, and is made before any tensor is read or written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from satchel.errors import ModelError, RequestError
from satchel.formats.source import Source
from satchel.quant import FORMATS, Format
from satchel.quant.recipes import Recipe, choose_formats, is_quantizable

Override = tuple[str, str]
HEAD = ("output.weight", "token_embd.weight")  # tied embeddings: the second is the head without the first


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """How the target format of each tensor is chosen."""

    recipe: Recipe
    # (regular expression, format): the first expression found in a matrix's name wins over the recipe.
    overrides: Sequence[Override] = ()
    pure: bool = False  # every matrix gets the recipe's base format
    requantize: bool = False  # allow quantized sources, which loses quality
    leave_output: bool = False  # do not quantize the output matrix
    formats: Mapping[str, str] | None = None  # formats by tensor name, which win over recipe and overrides
    importance: bool = False  # whether there is importance data; some recipes then choose other formats


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """The plan of one tensor: its formats and sizes before and after."""

    name: str
    shape: tuple[int, ...]  # outermost dimension first
    source: str  # name of a format
    target: str
    bytes_before: int
    bytes_after: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def changed(self) -> bool:
        return self.source != self.target


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """The result of quantizing a file."""

    choices: tuple[TensorPlan, ...]  # every tensor in file order
    # By encoded tensor: RMS error / RMS of the values; of a large tensor over a sample of its rows.
    errors: Mapping[str, float]

    @property
    def bytes_before(self) -> int:
        return sum(choice.bytes_before for choice in self.choices)

    @property
    def bytes_after(self) -> int:
        return sum(choice.bytes_after for choice in self.choices)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes_after / max(1, sum(choice.elements for choice in self.choices))


def plan_tensors(source: Source, settings: QuantizeOptions) -> tuple[TensorPlan, ...]:
    """The plan of each tensor. RequestError where an override or a source format does not fit."""
    if not source.tensors:
        raise ModelError(f"{source.path}: expected tensors, got metadata alone; give a model with weights")
    shapes = {name: info.shape for name, info in source.tensors.items() if 0 not in info.shape}
    arch = source.metadata.get_str("general.architecture", "")
    experts = source.metadata.get_uint(f"{arch}.expert_count", 0)
    sharing = _sharing(source, arch)
    chosen = choose_formats(settings.recipe, shapes, experts, settings.pure, sharing, settings.importance)
    if settings.leave_output:
        chosen.pop(head_of(shapes), None)
    chosen.update(find_overrides(shapes, settings.overrides))
    chosen.update(settings.formats or {})
    choices = []
    for name, info in source.tensors.items():
        target = chosen.get(name, info.format)
        after = info.nbytes
        if target != info.format:
            _check_source(source, name, info.format, settings.requantize)
            after = tensor_bytes(FORMATS[target], info.shape)
        choices.append(TensorPlan(name, info.shape, info.format, target, info.nbytes, after))
    return tuple(choices)


def _sharing(source: Source, arch: str) -> int:
    """Query heads per key head (GQA) in the first layer; 1 where the file does not say."""
    layers = max(1, source.metadata.get_uint(f"{arch}.block_count", 1))
    heads = source.metadata.get_uints(f"{arch}.attention.head_count", layers, (1,))[0]
    shared = source.metadata.get_uints(f"{arch}.attention.head_count_kv", layers, (heads,))[0]
    return heads // shared if shared else 1


def head_of(names: Mapping[str, object]) -> str:
    """The name of the output matrix, which is the embedding where they are tied."""
    return HEAD[0] if HEAD[0] in names else HEAD[1]


def tensor_bytes(fmt: Format, shape: Sequence[int]) -> int:
    return prod(shape[:-1]) * fmt.row_bytes(shape[-1])


def writable() -> list[str]:
    """Names of the formats that tensors can be encoded in."""
    return [f.name for f in FORMATS.values() if f.weights and f.encode is not None]


def _check_source(source: Source, name: str, format: str, requantize: bool) -> None:
    fmt = FORMATS.get(format)
    if fmt is None:
        raise RequestError(
            f"{source.path}: tensor {name}: this version can't decode {format}; give an F16 or BF16 file"
        )
    if fmt.block > 1 and not requantize:
        raise RequestError(
            f"{source.path}: tensor {name}: expected f32, f16 or bf16, got {format}; quantizing twice"
            " loses quality: give the original file, or --allow-requantize"
        )


def find_overrides(shapes: Mapping[str, tuple[int, ...]], overrides: Sequence[Override]) -> dict[str, str]:
    """Formats by tensor name, from patterns. RequestError where a pattern matches no matrix or its format
    does not fit one.
    """
    chosen: dict[str, str] = {}
    for pattern, target in overrides:
        fmt = FORMATS.get(target.lower())
        if fmt is None or fmt.name not in writable():
            raise RequestError(f"tensor type {pattern}={target}: expected one of {', '.join(writable())}")
        what = f"tensor type {pattern}={target}"
        found = [
            name for name, shape in shapes.items() if is_quantizable(name, shape) and _search(pattern, name)
        ]
        if not found:
            raise RequestError(f"{what}: expected a matrix of that name, found none")
        for name in found:
            if shapes[name][-1] % fmt.block:
                raise RequestError(
                    f"{what}: {name}: expected rows of a multiple of {fmt.block}, got {shapes[name][-1]}"
                )
            chosen.setdefault(name, fmt.name)
    return chosen


def _search(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise RequestError(f"tensor type {pattern}: not a regular expression: {error}") from None
