"""Layers that keep a state of fixed size instead of keys and values: a short convolution over the last
tokens, and a matrix for each head that fades and grows with every token.

Both states go through the same pages (runtime/kv/recurrent.py) by one table; ops_recurrent.py says how.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from satchel.quant import ModelError
from satchel.runtime import ops
from satchel.runtime.arch import RECURRENT, Arch
from satchel.runtime.blocks import linear, windows
from satchel.runtime.graph import Array, Node, Type


@dataclass(frozen=True, slots=True)
class Sizes:
    """heads of `size` values each; groups of heads that share keys of `keys` numbers; taps of the
    convolution.
    """

    heads: int
    size: int
    groups: int
    keys: int
    taps: int

    @property
    def inner(self) -> int:
        """Values of all heads."""
        return self.heads * self.size

    @property
    def shared(self) -> int:
        """Keys of all groups."""
        return self.groups * self.keys

    @property
    def channels(self) -> int:
        """What the convolution sees of a token: values, keys and queries."""
        return self.inner + 2 * self.shared

    @property
    def states(self) -> tuple[tuple[int, ...], ...]:
        return (self.taps - 1, self.channels), (self.heads, self.keys, self.size)


def sizes_of(a: Arch) -> Sizes:
    inner, heads = a.hp.uint("ssm.inner_size"), a.hp.uint("ssm.time_step_rank", high=1 << 16)
    groups, keys = a.hp.uint("ssm.group_count", 1, high=1 << 16), a.hp.uint("ssm.state_size", high=4096)
    if inner % heads or heads % groups:
        raise ModelError(
            f"{a.hp.arch}.ssm.time_step_rank: {heads} heads do not go with ssm.inner_size {inner} and"
            f" ssm.group_count {groups}; the file contradicts itself"
        )
    return Sizes(heads, inner // heads, groups, keys, a.hp.uint("ssm.conv_kernel", low=2, high=64))


def _state(a: Arch, name: str, shape: tuple[int, ...]) -> Node:
    return a.state(name, Type((a.cache.pool_of(RECURRENT), *shape), "f32"))


def _follow(a: Arch, y: Node, written: Node) -> Node:
    """y, once the state that it was made from has moved on: so nothing of this step waits for that."""
    a.written.append(written)
    return ops.behind(y, written)


def short_conv(a: Arch, x: Node, i: int) -> Node:
    """silu of x (T, C) mixed with the tokens before, channel by channel: (T, C)."""
    s, p, block = sizes_of(a), f"blk.{i}.ssm_conv1d", a.cache.block
    w, bias = plain_weight(a, f"{p}.weight", x.width, s.taps), a.optional(f"{p}.bias", x.width)
    state, place = _state(a, f"conv.{i}", s.states[0]), (a.slot, a.pos, a.table(RECURRENT))
    y = ops.short_conv(x, state, w, *place, *([] if bias is None else [bias]), block=block)
    return _follow(a, y, ops.conv_write(state, ops.behind(x, y), *place, block=block))


def plain_weight(a: Arch, name: str, *shape: int) -> Node:
    """A small tensor as float32, whatever the file has it in."""
    w = a.weight(name, *shape)
    if w.type.format == "f32":
        return w
    return a.graph.const(a.weights.array(name).astype(np.float32).reshape(shape), "f32", name)


def scan(
    a: Arch, i: int, q: Node, k: Node, v: Node, g: Node, beta: Node, *, delta: bool, tiled: bool = False
) -> Node:
    """What queries find in the heads' matrices: q, k (T, G * N), v (T, H * P), g, beta (T, H) to (T, H, P);
    see gated_scan in ops_recurrent.py.
    """
    s, block = sizes_of(a), a.cache.block
    q, k = (ops.reshape(x, shape=(s.groups, s.keys)) for x in (q, k))
    v = ops.reshape(v, shape=(s.heads, s.size))
    state, place = _state(a, f"scan.{i}", s.states[1]), (a.slot, a.pos, a.table(RECURRENT))
    how = {"block": block, "tiled": int(tiled)}
    made = ops.gated_scan(q, k, v, g, beta, state, *place, delta=int(delta), **how)
    written = ops.scan_write(state, k, made, g, *place, **how)
    return _follow(a, ops.take(made, start=0, size=s.size), written)


def per_head(a: Arch, i: int, part: str) -> Array:
    """The layer's numbers ssm_<part>, one a head: (H,)."""
    name, heads = f"blk.{i}.ssm_{part}", sizes_of(a).heads
    found = a.weights.type(name)
    a.weight(name, *((heads, 1) if found is not None and len(found.shape) == 2 else (heads,)))
    return a.weights.array(name).astype(np.float32).reshape(-1)


def steps_and_fading(a: Arch, x: Node, i: int) -> tuple[Node, Node]:
    """Of x (T, H): each head's step softplus(x + bias), and the logarithm of how its matrix fades by it."""
    step = ops.softplus(ops.add(x, a.weight(f"blk.{i}.ssm_dt.bias", x.width)))
    return step, ops.mul(step, a.graph.const(per_head(a, i, "a"), "f32", "fading"))


def mamba_net(a: Arch, x: Node, i: int) -> Node:
    """Mamba-2's part of layer i: (T, D) to (T, D). Source: Dao & Gu, arXiv 2405.21060."""
    s, p = sizes_of(a), f"blk.{i}."
    mixed = linear(a, x, f"{p}ssm_in", s.inner + s.channels + s.heads)
    gate, mixed, step = windows(mixed, s.inner, s.channels, s.heads)
    v, k, q = windows(short_conv(a, mixed, i), s.inner, s.shared, s.shared)
    step, fading = steps_and_fading(a, step, i)
    y = ops.reshape(scan(a, i, q, k, v, fading, step, delta=False), shape=(s.inner,))
    skip = a.graph.const(np.repeat(per_head(a, i, "d"), s.size), "f32", "skip")
    y = ops.swiglu(gate, ops.add(y, ops.mul(v, skip)))
    return linear(a, _norm_groups(a, y, i), f"{p}ssm_out", a.width)


def _norm_groups(a: Arch, y: Node, i: int) -> Node:
    """y (T, D), each group of heads normed by itself."""
    groups, name = sizes_of(a).groups, f"blk.{i}.ssm_norm.weight"
    part = y.width // groups
    ones = a.graph.const(np.ones(part, np.float32), "f32", "one")
    y = ops.rms_norm(ops.reshape(y, shape=(groups, part)), ones, eps=a.eps)
    return ops.reshape(ops.mul(y, plain_weight(a, name, groups, part)), shape=(y.width * groups,))
