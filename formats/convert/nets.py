"""Transformations of recurrent layers' tensors (Mamba-2, gated delta net): decay rates, convolutions, head
order.

Checkpoints store heads that share keys (a group) next to each other, and so does GGUF's qwen3next. GGUF's
qwen35 stores the first head of each group, then the second of each, and so on ("tiled").
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


def taps(tensor: Logical, model: ModelConfig) -> Logical:
    """A depthwise convolution (C, 1, K) as (C, K)."""
    if len(tensor.shape) != 3 or tensor.shape[1] != 1:
        raise _odd(tensor, "channels of one row")
    return replace(tensor, shape=(tensor.shape[0], tensor.shape[2]))


def decay(tensor: Logical, model: ModelConfig) -> Logical:
    """-exp(A_log), (H,)."""
    return _vector(tensor, lambda x: -np.exp(x), tensor.shape)


def decay_column(tensor: Logical, model: ModelConfig) -> Logical:
    return column(decay(tensor, model), model)


def column(tensor: Logical, model: ModelConfig) -> Logical:
    """[H] as [H, 1]."""
    return _vector(tensor, lambda x: x.reshape(-1, 1), (*tensor.shape, 1))


def flat(tensor: Logical, model: ModelConfig) -> Logical:
    """[1, D] as [D]."""
    return replace(tensor, shape=(tensor.shape[-1],))


def by_group(tensor: Logical, model: ModelConfig) -> Logical:
    """[D] as [G, D / G]."""
    groups = model.uint("ssm.group_count")
    if not groups or len(tensor.shape) != 1 or tensor.shape[0] % groups:
        raise _odd(tensor, f"numbers of {groups} groups")
    shape = (groups, tensor.shape[0] // groups)
    return _vector(tensor, lambda x: x.reshape(shape), shape)


def joined_mix(tensor: Logical, model: ModelConfig) -> Logical:
    """The rows of Q, K and V of all groups. The fused rows are stored by group: its query, its key, the
    values of its heads, and their gates.
    """
    q, k, v, _ = _by_part(tensor, model)
    return _rows(tensor, np.concatenate([part.reshape(-1) for part in (q, k, v)]))


def joined_gate(tensor: Logical, model: ModelConfig) -> Logical:
    """The rows of the gates of the same fused projection."""
    return _rows(tensor, _by_part(tensor, model)[3].reshape(-1))


def _by_part(tensor: Logical, model: ModelConfig) -> list[Array]:
    """The row indexes of each part (query, key, values, gates), each (groups, rows)."""
    groups, keys, inner = (model.uint(f"ssm.{key}") for key in ("group_count", "state_size", "inner_size"))
    if not groups or len(tensor.shape) != 2 or tensor.shape[0] != 2 * (groups * keys + inner):
        raise _odd(tensor, f"queries, keys, values and gates of {groups} groups")
    order = np.arange(tensor.shape[0]).reshape(groups, -1)
    return np.split(order, np.cumsum([keys, keys, inner // groups]), axis=1)


def tiled_mix(tensor: Logical, model: ModelConfig) -> Logical:
    """Rows of Q and K unchanged, rows of V in tiled order; also for a convolution (C, 1, K)."""
    shared = 2 * model.uint("ssm.group_count") * model.uint("ssm.state_size")
    if len(tensor.shape) == 3:
        tensor = taps(tensor, model)
    if tensor.shape[0] != shared + model.uint("ssm.inner_size"):
        raise _odd(tensor, f"{shared} rows of queries and keys, then the values'")
    values = shared + tiled_order(model, tensor.shape[0] - shared)
    return _rows(tensor, np.concatenate((np.arange(shared), values)))


def tiled(tensor: Logical, model: ModelConfig) -> Logical:
    """The rows of all heads, or a vector with one element per head, in tiled order."""
    order = tiled_order(model, tensor.shape[0])
    if len(tensor.shape) == 1:
        return _vector(tensor, lambda x: x[order], tensor.shape)
    return _rows(tensor, order)


def tiled_decay(tensor: Logical, model: ModelConfig) -> Logical:
    return tiled(decay(tensor, model), model)


def tiled_columns(tensor: Logical, model: ModelConfig) -> Logical:
    """The columns of all heads in tiled order; a block format becomes bfloat16, because blocks
    span columns.
    """
    base = tensor if tensor.format in FLOATS else retyped(tensor, "bf16", "columns reordered: as bf16")
    order = tiled_order(model, tensor.shape[-1])

    def open_rows() -> Rows:
        rows = base.open()
        return lambda first, last: np.ascontiguousarray(rows(first, last)[:, order])

    return replace(base, open=open_rows)


def tiled_order(model: ModelConfig, size: int) -> Array:
    """The permutation of `size` elements from order by group to tiled order."""
    heads, groups = model.uint("ssm.time_step_rank"), model.uint("ssm.group_count")
    if not heads or not groups or heads % groups or size % heads:
        raise ModelError(
            f"linear_num_value_heads: {heads} heads in {groups} groups do not make up {size} rows; the"
            " checkpoint contradicts itself"
        )
    return np.arange(size).reshape(groups, heads // groups, -1).swapaxes(0, 1).reshape(-1)


def _rows(tensor: Logical, order: Array) -> Logical:
    """The tensor's rows with these indexes."""

    def open_rows() -> Rows:
        rows = tensor.open()

        def read(first: int, last: int) -> Array:
            wanted = order[first:last]
            low = int(wanted.min(initial=0)) if len(wanted) else 0
            found: Array = rows(low, int(wanted.max(initial=-1)) + 1)[wanted - low]
            return found

        return read

    return replace(tensor, shape=(len(order), *tensor.shape[1:]), open=open_rows)


def _vector(tensor: Logical, change: Callable[[Array], Array], shape: tuple[int, ...]) -> Logical:
    """A small tensor, transformed as a whole in float32."""
    base = retyped(tensor, "f32")

    def open_rows() -> Rows:
        made = np.asarray(change(base.open()(0, base.rows).reshape(-1)), np.float32).reshape(-1, shape[-1])
        return lambda first, last: made[first:last]

    return replace(base, shape=shape, open=open_rows)


def _odd(tensor: Logical, expected: str) -> ModelError:
    return ModelError(
        f"{tensor.where}: {tensor.name}: expected {expected}, got the shape {list(tensor.shape)}; the"
        " checkpoint contradicts itself"
    )


NETS = (
    *(taps, decay, decay_column, column, flat, by_group, joined_mix, joined_gate),
    *(tiled_mix, tiled, tiled_decay, tiled_columns),
)
