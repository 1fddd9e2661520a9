"""Recurrent layers (SSM, gated delta rule): instead of keys and values they keep a convolution state, the
last inputs of a short convolution, and a scan state, a matrix per head that decays and is updated by every
token.

Both states lie in the same pages (runtime/kv/recurrent.py), by one block table; see ops_recurrent.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from satchel.errors import ModelError
from satchel.runtime import ops
from satchel.runtime.graph import Array, Node, Type
from satchel.runtime.layers.arch import RECURRENT, Arch
from satchel.runtime.layers.blocks import linear, windows


@dataclass(frozen=True, slots=True)
class SsmDims:
    """Dimensions of a recurrent layer, named as in Mamba-2: heads of head_dim values; groups of heads that
    share keys (B) and queries (C) of state_size numbers; conv_kernel taps of the convolution.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_kernel: int

    @property
    def inner(self) -> int:
        """Values of all heads: d_inner."""
        return self.heads * self.head_dim

    @property
    def shared(self) -> int:
        """Keys of all groups."""
        return self.groups * self.state_size

    @property
    def channels(self) -> int:
        """Channels of the convolution: values, keys and queries."""
        return self.inner + 2 * self.shared

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.conv_kernel - 1, self.channels), (self.heads, self.state_size, self.head_dim)


def ssm_dims(a: Arch) -> SsmDims:
    inner, heads = a.hp.uint("ssm.inner_size"), a.hp.uint("ssm.time_step_rank", high=1 << 16)
    groups, keys = a.hp.uint("ssm.group_count", 1, high=1 << 16), a.hp.uint("ssm.state_size", high=4096)
    if inner % heads or heads % groups:
        raise ModelError(
            f"{a.hp.arch}.ssm.time_step_rank: {heads} heads do not go with ssm.inner_size {inner} and"
            f" ssm.group_count {groups}; the file contradicts itself"
        )
    return SsmDims(heads, inner // heads, groups, keys, a.hp.uint("ssm.conv_kernel", low=2, high=64))


def _state(a: Arch, name: str, shape: tuple[int, ...]) -> Node:
    return a.state(name, Type((a.cache.pool_of(RECURRENT), *shape), "f32"))


def _follow(a: Arch, y: Node, written: Node) -> Node:
    """y, whose readers come after the write of its state: no write is left for the end of the step."""
    a.written.append(written)
    return ops.ordered_after(y, written)


def short_conv(a: Arch, x: Node, i: int) -> Node:
    """Causal convolution of layer i: silu of x (T, C) convolved over the last tokens, per channel: (T, C)."""
    s, p, block = ssm_dims(a), f"blk.{i}.ssm_conv1d", a.cache.block
    w, bias = plain_weight(a, f"{p}.weight", x.width, s.conv_kernel), a.optional(f"{p}.bias", x.width)
    state, place = _state(a, f"conv.{i}", s.state_shapes[0]), (a.slot, a.pos, a.table(RECURRENT))
    y = ops.short_conv(x, state, w, *place, *([] if bias is None else [bias]), block=block)
    return _follow(a, y, ops.conv_write(state, ops.ordered_after(x, y), *place, block=block))


def plain_weight(a: Arch, name: str, *shape: int) -> Node:
    """A small tensor as float32, whatever the file has it in."""
    w = a.weight(name, *shape)
    if w.type.format == "f32":
        return w
    return a.graph.const(a.weights.array(name).astype(np.float32).reshape(shape), "f32", name)


def selective_scan(
    a: Arch, i: int, q: Node, k: Node, v: Node, g: Node, beta: Node, *, delta: bool, tiled: bool = False
) -> Node:
    """Selective scan of Mamba-2, or of the gated delta rule where `delta`: q, k (T, G * N), v (T, H * P), the
    log decay g and beta (T, H) to (T, H, P); see gated_scan in ops_recurrent.py.
    """
    s, block = ssm_dims(a), a.cache.block
    q, k = (ops.reshape(x, shape=(s.groups, s.state_size)) for x in (q, k))
    v = ops.reshape(v, shape=(s.heads, s.head_dim))
    state, place = _state(a, f"scan.{i}", s.state_shapes[1]), (a.slot, a.pos, a.table(RECURRENT))
    how = {"block": block, "tiled": int(tiled)}
    made = ops.gated_scan(q, k, v, g, beta, state, *place, delta=int(delta), **how)
    written = ops.scan_write(state, k, made, g, *place, **how)
    return _follow(a, ops.take(made, start=0, size=s.head_dim), written)


def per_head(a: Arch, i: int, part: str) -> Array:
    """The layer's tensor ssm_<part>, one number per head: (H,)."""
    name, heads = f"blk.{i}.ssm_{part}", ssm_dims(a).heads
    found = a.weights.type(name)
    a.weight(name, *((heads, 1) if found is not None and len(found.shape) == 2 else (heads,)))
    return a.weights.array(name).astype(np.float32).reshape(-1)


def dt_and_decay(a: Arch, x: Node, i: int) -> tuple[Node, Node]:
    """dt = softplus(x + bias) of each head, x (T, H), and the log decay A * dt of its state."""
    dt = ops.softplus(ops.add(x, a.weight(f"blk.{i}.ssm_dt.bias", x.width)))
    return dt, ops.mul(dt, a.graph.const(per_head(a, i, "a"), "f32", "decay"))


def mamba_net(a: Arch, x: Node, i: int) -> Node:
    """Mamba-2's part of layer i: (T, D) to (T, D). Source: Dao & Gu, arXiv 2405.21060."""
    s, p = ssm_dims(a), f"blk.{i}."
    mixed = linear(a, x, f"{p}ssm_in", s.inner + s.channels + s.heads)
    gate, mixed, dt = windows(mixed, s.inner, s.channels, s.heads)
    v, k, q = windows(short_conv(a, mixed, i), s.inner, s.shared, s.shared)
    dt, decay = dt_and_decay(a, dt, i)
    y = ops.reshape(selective_scan(a, i, q, k, v, decay, dt, delta=False), shape=(s.inner,))
    skip = a.graph.const(np.repeat(per_head(a, i, "d"), s.head_dim), "f32", "skip")
    y = ops.swiglu(gate, ops.add(y, ops.mul(v, skip)))
    return linear(a, _norm_groups(a, y, i), f"{p}ssm_out", a.width)


def _norm_groups(a: Arch, y: Node, i: int) -> Node:
    """y (T, D), each group of heads normed by itself."""
    groups, name = ssm_dims(a).groups, f"blk.{i}.ssm_norm.weight"
    part = y.width // groups
    ones = a.graph.const(np.ones(part, np.float32), "f32", "one")
    y = ops.rms_norm(ops.reshape(y, shape=(groups, part)), ones, eps=a.eps)
    return ops.reshape(ops.mul(y, plain_weight(a, name, groups, part)), shape=(y.width * groups,))
