"""Pass: tensor parallelism. The graph becomes that of one rank of a group of devices, see runtime/shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.fold import fold
from satchel.runtime.compiler.push_down import push_down
from satchel.runtime.compiler.rotate import rotate
from satchel.runtime.graph import Roots
from satchel.runtime.shard.rank import rank_graph
from satchel.runtime.shard.sharding import Sharding, decide, with_blocks
from satchel.runtime.shard.windows import separate

BEFORE = (rotate, fold, push_down)  # the passes before this one


def shard(roots: Roots, context: Context) -> Roots:
    if context.sharding is None:
        return roots
    return rank_graph(separate(roots), context.sharding, context.rank)


def prepared(roots: Roots) -> Roots:
    """The graph whose division is inferred: after the passes before this one, windows of products apart."""
    for step in BEFORE:
        roots = step(roots, Context((), lambda node: ""))
    return separate(roots)


def sharding_of(
    outputs: Iterable[Roots], shares: Sequence[float], unlike: bool = False, blocks: bool = False
) -> Sharding:
    """How a model is divided among ranks. outputs: the roots of each graph that will run. unlike: of
    Sharding. blocks: with context parallelism.
    """
    roots = tuple(root for each in outputs for root in prepared(each))
    found = decide(roots, shares, unlike)
    return with_blocks(roots, found) if blocks else found
