"""Layers of which most are gated delta nets and every few one attends, with a gate on what it finds: Qwen
3-Next and 3.5. Gated delta rule: Yang et al., arXiv 2412.06464.
"""

from __future__ import annotations

import numpy as np

from satchel.quant import ModelError
from satchel.runtime import ops
from satchel.runtime.arch import Arch
from satchel.runtime.blocks import Part, attend, head_norm, linear, rotate, windows, write_cache
from satchel.runtime.graph import Node
from satchel.runtime.recurrent import scan, short_conv, sizes_of, steps_and_fading

INTERVAL = 4  # of so many layers the last attends
UNIT_EPS = 1e-6


def is_delta(a: Arch, i: int) -> bool:
    """Whether layer i is a delta net: the file says so layer by layer, or by a period whose last attends."""
    key = "attention.recurrent_layers"
    if a.hp.states(key):
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
    s, p = sizes_of(a), f"blk.{i}."
    if s.keys != s.size:
        raise ModelError(
            f"{a.hp.arch}.ssm.state_size: heads of {s.size} values need as large keys, got {s.keys}"
        )
    mixed = short_conv(a, linear(a, x, f"{p}attn_qkv", s.channels), i)
    q, k, v = windows(mixed, s.shared, s.shared, s.inner)
    beta, step = rates(a, x, i)
    _, fading = steps_and_fading(a, step, i)
    q, k = unit(a, q, 1 / np.sqrt(s.keys)), unit(a, k, 1.0)
    y = a.norm(scan(a, i, q, k, v, fading, ops.sigmoid(beta), delta=True, tiled=tiled), f"{p}ssm_norm")
    y = ops.swiglu(linear(a, x, f"{p}attn_gate", s.inner), ops.reshape(y, shape=(s.inner,)))
    return linear(a, y, f"{p}ssm_out", a.width)


def rates(a: Arch, x: Node, i: int) -> tuple[Node, Node]:
    """How much each head learns of a token, and its step, before their functions: (T, H) each. One matrix has
    them group by group, or each has its own.
    """
    s, p = sizes_of(a), f"blk.{i}."
    if a.weights.type(f"{p}ssm_ba.weight") is None:
        return linear(a, x, f"{p}ssm_beta", s.heads), linear(a, x, f"{p}ssm_alpha", s.heads)
    each = s.heads // s.groups
    both = ops.reshape(linear(a, x, f"{p}ssm_ba", 2 * s.heads), shape=(s.groups, 2 * each))
    beta, step = (ops.take(both, start=at, size=each) for at in (0, each))
    return ops.reshape(beta, shape=(s.heads,)), ops.reshape(step, shape=(s.heads,))


def unit(a: Arch, x: Node, length: float) -> Node:
    """x (T, G * N) with each group's numbers brought to this length."""
    s = sizes_of(a)
    weight = a.graph.const(np.full(s.keys, length / np.sqrt(s.keys), np.float32), "f32", "length")
    y = ops.rms_norm(ops.reshape(x, shape=(s.groups, s.keys)), weight, eps=UNIT_EPS / s.keys)
    return ops.reshape(y, shape=(s.shared,))


class Hybrid(Arch):
    """tiled: the order of a delta net's heads, see gated_scan."""

    tiled = False

    def states(self, i: int) -> tuple[tuple[int, ...], ...]:
        return sizes_of(self).states if is_delta(self, i) else ()

    def hybrid_layer(self, x: Node, i: int, *, feed: Part) -> Node:
        """Delta net or attention, then feed-forward, each behind a norm, each added to x."""
        h = self.norm(x, f"blk.{i}.attn_norm")
        y = delta_net(self, h, i, tiled=self.tiled) if is_delta(self, i) else gated_attention(self, h, i)
        x = ops.add(x, y)
        return ops.add(x, feed(self, self.norm(x, f"blk.{i}.post_attention_norm"), i))
