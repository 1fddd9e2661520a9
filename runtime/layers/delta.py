"""Hybrid models: most layers are gated delta nets, every INTERVAL-th one is gated attention. Qwen 3-Next and
3.5. Gated delta rule: Yang et al., arXiv 2412.06464.
"""

from __future__ import annotations

import numpy as np

from satchel.errors import ModelError
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import Part, attend, head_norm, linear, rotate, windows, write_cache
from satchel.runtime.layers.recurrent import dt_and_decay, selective_scan, short_conv, ssm_dims

INTERVAL = 4  # of so many layers the last attends
UNIT_EPS = 1e-6


def is_delta(a: Arch, i: int) -> bool:
    """Whether layer i is a gated delta net: by a flag per layer, or by a period whose last layer is
    attention.
    """
    key = "attention.recurrent_layers"
    if a.hp.has_key(key):
        return a.hp.flags(key, a.layers + a.predicting)[i]
    return (i + 1) % a.hp.uint("full_attention_interval", INTERVAL) != 0


def gated_attention(a: Arch, x: Node, i: int) -> Node:
    """Attention of layer i: (T, D) to (T, D). attn_q gives each head its query and then the gate of what the
    head finds.
    """
    heads, kv, dim, p = a.heads[i], a.kv_heads[i], a.head_dim, f"blk.{i}."
    both = ops.reshape(linear(a, x, f"{p}attn_q", 2 * heads * dim), shape=(heads, 2 * dim))
    q = ops.reshape(ops.take(both, start=0, size=dim), shape=(heads * dim,))
    gate = ops.sigmoid(ops.reshape(ops.take(both, start=dim, size=dim), shape=(heads * dim,)))
    k, v = linear(a, x, f"{p}attn_k", kv * dim), linear(a, x, f"{p}attn_v", kv * a.value_dim)
    q = rotate(a, head_norm(a, q, f"{p}attn_q_norm", heads), i)
    k = rotate(a, head_norm(a, k, f"{p}attn_k_norm", kv), i)
    caches = write_cache(a, k, ops.reshape(v, shape=(kv, a.value_dim)), i)
    return attend(a, q, caches, i, gate=gate)


def delta_net(a: Arch, x: Node, i: int, *, tiled: bool) -> Node:
    """Gated delta net of layer i: (T, D) to (T, D). tiled: the order of heads, see gated_scan."""
    s, p = ssm_dims(a), f"blk.{i}."
    if s.state_size != s.head_dim:
        raise ModelError(
            f"{a.hp.arch}.ssm.state_size: heads of {s.head_dim} values need as large keys, got {s.state_size}"
        )
    mixed = short_conv(a, linear(a, x, f"{p}attn_qkv", s.channels), i)
    q, k, v = windows(mixed, s.shared, s.shared, s.inner)
    beta, dt = beta_and_dt(a, x, i)
    _, decay = dt_and_decay(a, dt, i)
    q, k = unit(a, q, 1 / np.sqrt(s.state_size)), unit(a, k, 1.0)
    y = a.norm(
        selective_scan(a, i, q, k, v, decay, ops.sigmoid(beta), delta=True, tiled=tiled), f"{p}ssm_norm"
    )
    y = ops.swiglu(linear(a, x, f"{p}attn_gate", s.inner), ops.reshape(y, shape=(s.inner,)))
    return linear(a, y, f"{p}ssm_out", a.width)


def beta_and_dt(a: Arch, x: Node, i: int) -> tuple[Node, Node]:
    """beta (T, H) and dt (T, H) of the gated delta rule, before sigmoid and softplus. One matrix has both,
    group by group, or each has its own.
    """
    s, p = ssm_dims(a), f"blk.{i}."
    if a.weights.type(f"{p}ssm_ba.weight") is None:
        return linear(a, x, f"{p}ssm_beta", s.heads), linear(a, x, f"{p}ssm_alpha", s.heads)
    each = s.heads // s.groups
    both = ops.reshape(linear(a, x, f"{p}ssm_ba", 2 * s.heads), shape=(s.groups, 2 * each))
    beta, dt = (ops.take(both, start=at, size=each) for at in (0, each))
    return ops.reshape(beta, shape=(s.heads,)), ops.reshape(dt, shape=(s.heads,))


def unit(a: Arch, x: Node, length: float) -> Node:
    """x (T, G * N) with each group scaled to this L2 norm."""
    s = ssm_dims(a)
    weight = a.graph.const(np.full(s.state_size, length / np.sqrt(s.state_size), np.float32), "f32", "length")
    y = ops.rms_norm(ops.reshape(x, shape=(s.groups, s.state_size)), weight, eps=UNIT_EPS / s.state_size)
    return ops.reshape(y, shape=(s.shared,))


class Hybrid(Arch):
    """tiled: the order of a delta net's heads, see gated_scan."""

    tiled = False

    def recurrent_states(self, i: int) -> tuple[tuple[int, ...], ...]:
        return ssm_dims(self).state_shapes if is_delta(self, i) else ()

    def hybrid_layer(self, x: Node, i: int, *, feed: Part) -> Node:
        """Delta net or attention, then feed-forward, each behind a norm, each added to x."""
        h = self.norm(x, f"blk.{i}.attn_norm")
        y = delta_net(self, h, i, tiled=self.tiled) if is_delta(self, i) else gated_attention(self, h, i)
        x = ops.add(x, y)
        return ops.add(x, feed(self, self.norm(x, f"blk.{i}.post_attention_norm"), i))
