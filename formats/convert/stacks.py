"""Experts stored in one fused tensor (E, inputs, gate and up outputs) as GGUF's stacks of gate, up and down
(E, outputs, inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from satchel.errors import ModelError
from satchel.formats.convert.config import ModelConfig
from satchel.formats.convert.logical import Logical, Rows, retyped
from satchel.formats.convert.stored import Array

FLOATS = ("f32", "f16", "bf16")
Pick = Callable[[Array], Array]  # [K, N of both] to [K, N]


def transposed_stack(tensor: Logical, model: ModelConfig) -> Logical:
    """[E, K, N] as [E, N, K]; a bias [E, N] as it is."""
    return _parts(tensor, lambda x: x, 1)


def first_half(tensor: Logical, model: ModelConfig) -> Logical:
    """The first half of the outputs, [E, K, N of both], transposed: [E, N, K]."""
    return _parts(tensor, lambda x: x[:, : x.shape[1] // 2], 2)


def second_half(tensor: Logical, model: ModelConfig) -> Logical:
    return _parts(tensor, lambda x: x[:, x.shape[1] // 2 :], 2)


def even(tensor: Logical, model: ModelConfig) -> Logical:
    """Gate of outputs that interleave gate and up, [E, K, N of both], transposed: [E, N, K]."""
    return _parts(tensor, lambda x: x[:, 0::2], 2)


def odd(tensor: Logical, model: ModelConfig) -> Logical:
    return _parts(tensor, lambda x: x[:, 1::2], 2)


def even_rows(tensor: Logical, model: ModelConfig) -> Logical:
    """Gate of [E, N of both, K], whose rows interleave gate and up: [E, N, K]."""
    return _every_second(tensor, 0)


def odd_rows(tensor: Logical, model: ModelConfig) -> Logical:
    return _every_second(tensor, 1)


def first_rows(tensor: Logical, model: ModelConfig) -> Logical:
    """Gate of [E, N of both, K] or [N of both, K], gate rows before up rows: [E, N, K]."""
    return half_of_rows(tensor, 0)


def second_rows(tensor: Logical, model: ModelConfig) -> Logical:
    return half_of_rows(tensor, 1)


def half_of_rows(tensor: Logical, which: int) -> Logical:
    if len(tensor.shape) not in (2, 3) or tensor.shape[-2] % 2:
        raise ModelError(
            f"{tensor.where}: {tensor.name}: expected experts [E, N, K], got the shape {list(tensor.shape)};"
            " the checkpoint contradicts itself"
        )
    height = tensor.shape[-2] // 2

    def open_rows() -> Rows:
        rows = tensor.open()

        def read(first: int, last: int) -> Array:
            pieces = []
            for e in range(first // height, -(-last // height)):
                start = (e + which) * height  # of the half, less the rows before it that are counted
                pieces.append(rows(start + max(first, e * height), start + min(last, (e + 1) * height)))
            return np.concatenate(pieces)

        return read

    return replace(tensor, shape=(*tensor.shape[:-2], height, tensor.shape[-1]), open=open_rows)


def _every_second(tensor: Logical, start: int) -> Logical:
    if len(tensor.shape) != 3 or tensor.shape[1] % 2:
        raise ModelError(
            f"{tensor.where}: {tensor.name}: expected experts [E, N, K], got the shape {list(tensor.shape)};"
            " the checkpoint contradicts itself"
        )
    count, both, inputs = tensor.shape

    def open_rows() -> Rows:
        rows = tensor.open()
        return lambda first, last: rows(2 * first, 2 * last)[start::2]

    return replace(tensor, shape=(count, both // 2, inputs), open=open_rows)


def _parts(tensor: Logical, pick: Pick, parts: int) -> Logical:
    if len(tensor.shape) not in (2, 3) or tensor.shape[-1] % parts:
        raise ModelError(
            f"{tensor.where}: {tensor.name}: expected experts [E, K, N] or their biases [E, N], got the shape"
            f" {list(tensor.shape)}; the checkpoint contradicts itself"
        )
    base = tensor if tensor.format in FLOATS else retyped(tensor, "bf16", "transposed: as bf16")
    width = tensor.shape[-1] // parts
    if len(tensor.shape) == 2:
        return _biases(base, pick, width)
    count, inputs, _ = tensor.shape

    def open_rows() -> Rows:
        rows = base.open()

        def read(first: int, last: int) -> Array:
            pieces = []
            for e in range(first // width, -(-last // width)):
                whole = np.ascontiguousarray(pick(rows(e * inputs, (e + 1) * inputs)).T)
                pieces.append(whole[max(first - e * width, 0) : last - e * width])
            return np.concatenate(pieces)

        return read

    return replace(base, shape=(count, width, inputs), open=open_rows)


def _biases(base: Logical, pick: Pick, width: int) -> Logical:
    def open_rows() -> Rows:
        rows = base.open()
        return lambda first, last: np.ascontiguousarray(pick(rows(first, last)))

    return replace(base, shape=(base.shape[0], width), open=open_rows)


STACKS = (transposed_stack, first_half, second_half, even, odd, even_rows, odd_rows, first_rows, second_rows)
