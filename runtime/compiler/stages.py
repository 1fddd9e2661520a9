"""Stages: the devices of a pipeline, groups of devices among them, in the order in which a step passes them.
A graph is a pipeline where each has one stretch of layers; a step may come back to the first one for the
head.
"""

from __future__ import annotations

from itertools import groupby

from satchel.runtime.compiler.memory import hoist
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.graph import LEAVES, Node, Roots, rewrite, toposort
from satchel.runtime.ops import OPS

INPUT = "ids"  # input of a step's token ids (T)


def host_ids(roots: Roots) -> Roots:
    """The graph with token ids from the host alone. Otherwise a step begins where the token table is, on the
    last device of a pipeline, and waits there for steps of others.
    """

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op != "tokens_get":
            return None
        put = next(n for n in toposort([src[0]]) if n.op == "tokens_put" and n.src[1].name == INPUT)
        return put.src[1]

    return rewrite(roots, rule)


def stages(optimized: Optimized) -> tuple[str, ...]:
    """The devices of a pipeline, a group by its own name; () for a graph on one device or on one group, and
    for one that passes a device more often, as where experts lie apart.
    """
    device = optimized.assignment.device
    if optimized.assignment.streamed or len(set(device.values())) < 2:
        return ()
    order = hoist(toposort(optimized.roots), device)
    turns = [name for name, _ in groupby(device[n] for n in order if _computes(n))]
    passed = tuple(dict.fromkeys(turns))
    once = turns in ([*passed], [*passed, passed[0]])
    return tuple(map(optimized.stage, passed)) if once else ()


def _computes(node: Node) -> bool:
    """Whether a node is a step of a pipeline: the token table is apart."""
    apart = node.op in LEAVES or node.op in ("copy", "tokens_get", "tokens_put")
    return not apart and not OPS[node.op].view
