"""Feed-forward parts of which each token uses a few: routers, experts, and experts that all tokens share.

A file in runtime/models/ says how its router picks and weighs; all else is told by the file's tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from satchel.errors import ModelError
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import linear

SOFTMAX, SIGMOID = 1, 2  # GGUF's numbers of <arch>.expert_gating_func
Gate = Callable[[Node, Node], Node]


@dataclass(frozen=True, slots=True)
class Router:
    """How a token's experts are picked and weighed, see top_experts and expert_weights in ops.py. early: the
    weight meets what goes into the one expert of a token, not what comes out.
    """

    norm: int = True
    sigmoid: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    early: bool = False


def router_of(a: Arch, *, sigmoid: bool = False, norm: bool = False) -> Router:
    """The router that the file's metadata describe; sigmoid, norm: what is meant where they say nothing."""
    gating = a.hp.uint("expert_gating_func", SIGMOID if sigmoid else SOFTMAX, low=0)
    if gating not in (0, SOFTMAX, SIGMOID):
        raise ModelError(f"{a.hp.arch}.expert_gating_func: expected 1 (softmax) or 2 (sigmoid), got {gating}")
    groups = a.hp.uint("expert_group_count", 1, low=0) or 1
    kept = a.hp.uint("expert_group_used_count", 1, low=0) or groups
    count, used = sizes(a)
    if count % groups or kept > groups or used > kept * (count // groups):
        raise ModelError(
            f"{a.hp.arch}.expert_group_count: {used} of {count} experts cannot be taken from {kept} of"
            f" {groups} groups"
        )
    return Router(
        a.hp.flag("expert_weights_norm", norm),
        gating == SIGMOID or (gating == 0 and sigmoid),
        a.hp.real("expert_weights_scale", 1.0) or 1.0,
        groups,
        kept,
    )


def sizes(a: Arch) -> tuple[int, int]:
    """How many experts a layer has, and how many of them a token uses."""
    count = a.hp.uint("expert_count", high=1 << 12)
    used = a.hp.uint("expert_used_count", high=1 << 12)
    if used > count:
        raise ModelError(
            f"{a.hp.arch}.expert_used_count: {used} of {count} experts (expert_count) cannot be used"
        )
    return count, used


def experts(
    a: Arch,
    x: Node,
    i: int,
    *,
    router: Router | None = None,
    gate: Gate = ops.swiglu,
    size: int = 0,
    asked: Node | None = None,
) -> Node:
    """Mixture of experts of layer i: (T, D) to (T, D), with what the file has of biases, factors and shared
    experts. size: of an expert, 0: as the file says. asked: what the router sees, unless it is x.
    """
    router, (count, used) = router or Router(), sizes(a)
    size = size or a.hp.uint("expert_feed_forward_length")
    logits = linear(a, x if asked is None else asked, f"blk.{i}.ffn_gate_inp", count)
    bias = a.optional(f"blk.{i}.exp_probs_b.bias", count)
    ids = ops.top_experts(
        logits,
        *([] if bias is None else [bias]),
        k=used,
        groups=router.groups,
        kept=router.kept,
        sigmoid=int(router.sigmoid),
    )
    share = ops.expert_weights(
        logits, ids, norm=int(router.norm), sigmoid=int(router.sigmoid), scale=router.scale
    )

    def product(y: Node, name: str, rows: int) -> Node:
        made = ops.expert_linear(y, a.weight(f"blk.{i}.{name}.weight", count, rows, y.width), ids)
        more = a.optional(f"blk.{i}.{name}.bias", count, rows)
        return made if more is None else ops.expert_add(made, more, ids)

    seen = ops.expert_sum(ops.reshape(x, shape=(1, x.width)), share) if router.early else x
    if a.weights.type(f"blk.{i}.ffn_gate_up_exps.weight") is None:
        parts = [product(seen, f"ffn_{n}_exps", size) for n in ("gate", "up")]
    else:
        both = product(seen, "ffn_gate_up_exps", 2 * size)
        parts = [ops.take(both, start=start, size=size) for start in (0, size)]
    y = product(gate(*parts), "ffn_down_exps", a.width)
    share = rescaled(a, share, ids, i, count)
    y = ops.reshape(y, shape=(a.width,)) if router.early else ops.expert_sum(y, share)
    return with_shared(a, x, y, i)


def wide_experts(a: Arch, x: Node, i: int, *, router: Router | None = None) -> Node:
    """Experts of the dense feed-forward's size, where the file states no other."""
    size = a.hp.each_layer("feed_forward_length", a.layers)[i]
    return experts(a, x, i, router=router, size=a.hp.uint("expert_feed_forward_length", size))


def rescaled(a: Arch, share: Node, ids: Node, i: int, count: int) -> Node:
    """Weights (T, k) of experts ids, times the factor of each that the file may have."""
    name = f"blk.{i}.ffn_down_exps.scale"
    if a.optional(name, count) is None:
        return share
    used = share.width
    factors = a.graph.const(np.asarray(a.weights.array(name), np.float32).reshape(-1, 1), "f32", name)
    none = ops.mul(share, a.graph.const(np.zeros(used, np.float32), "f32", "none"))
    found = ops.expert_add(ops.reshape(none, shape=(used, 1)), factors, ids)
    return ops.mul(share, ops.reshape(found, shape=(used,)))


def with_shared(a: Arch, x: Node, y: Node, i: int) -> Node:
    """y plus the expert that every token uses, where the file has one; times a gate of its own where it has
    that too.
    """
    found = a.weights.type(f"blk.{i}.ffn_gate_shexp.weight")
    if found is None or not isinstance(found.shape[0], int):
        return y
    gate, up = (linear(a, x, f"blk.{i}.ffn_{n}_shexp", found.shape[0]) for n in ("gate", "up"))
    shared = linear(a, ops.swiglu(gate, up), f"blk.{i}.ffn_down_shexp", a.width)
    wanted = a.weights.type(f"blk.{i}.ffn_gate_inp_shexp.weight")
    if wanted is not None:
        shared = gated_row(a, x, shared, i, len(wanted.shape) == 1)
    return ops.add(y, shared)


def gated_row(a: Arch, x: Node, y: Node, i: int, flat: bool) -> Node:
    """y times the logistic function of x by the weight (1, D), or flat (D): a mixture of one expert."""
    name = f"blk.{i}.ffn_gate_inp_shexp.weight"
    if flat:
        ones = a.graph.const(np.ones((1, a.width), np.float32), "f32", "ones")
        logits = ops.linear(ops.mul(x, a.weight(name, a.width)), ones)
    else:
        logits = ops.linear(x, a.weight(name, 1, a.width))
    ids = ops.top_experts(logits, k=1)
    share = ops.expert_weights(logits, ids, norm=0, sigmoid=1)
    return ops.expert_sum(ops.reshape(y, shape=(1, a.width)), share)
