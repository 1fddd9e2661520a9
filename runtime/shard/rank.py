"""The graph of one rank: the same ops on its pieces of weights and states, with collectives where a partial
sum or a divided value is needed whole.

All ranks have the same collectives in the same order. A whole value has the same bits on every rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from satchel.quant import FORMATS
from satchel.runtime import ops
from satchel.runtime.graph import LEAVES, Graph, Node, Roots, Type
from satchel.runtime.ops.op import OPS
from satchel.runtime.ops.split import GATHERED, PARTIAL, WHOLE, Experts, Spec, Split
from satchel.runtime.shard.blocks import own_blocks
from satchel.runtime.shard.cuts import Cut
from satchel.runtime.shard.pieces import Range, cut_weight
from satchel.runtime.shard.sharding import Sharding


def rank_graph(roots: Roots, sharding: Sharding, rank: int) -> Roots:
    """The roots of a rank, in a graph of its own. roots: after `prepared`."""
    return RankGraph(roots, sharding, rank).roots()


class RankGraph:
    """Builds one rank's graph, all of it or node by node beside what others add. given: whole values that
    inputs of the graph stand for.
    """

    def __init__(self, roots: Roots, sharding: Sharding, rank: int, graph: Graph | None = None) -> None:
        self._roots, self.sharding, self.rank = roots, sharding, rank
        self.found = sharding.infer(roots)
        if self.found.conflicts:
            raise AssertionError(f"the sharding does not fit this graph: {self.found.conflicts}")
        self.graph, self.given = graph or Graph(), dict[Node, Node]()
        self._made: dict[Node, Node] = {}
        self._rests: dict[Node, Node] = {}  # whole values that a partial sum lacks until it is reduced
        self._leaves: dict[tuple[Node, Spec], Node] = {}
        self._whole: dict[Node, Node] = {}

    def roots(self) -> Roots:
        for node in self.found.order:
            if node.op not in LEAVES:
                self.add(node)
        return tuple(self.value(root) for root in self._roots)

    def add(self, node: Node) -> None:
        """Makes a node, whose sources were made."""
        self.graph.label = node.name
        self._made[node] = self._node(node)

    def value(self, root: Node) -> Node:
        """The whole value of a root; of one that is in a state's memory, the rank's part."""
        if root.op in LEAVES or OPS[root.op].alias:
            return self._leaf(root, WHOLE) if root.op in LEAVES else self._made[root]
        self.graph.label = root.name
        return self._source(root, GATHERED)

    def _node(self, node: Node) -> Node:
        outcome = self.found.outcomes[node]
        if node.op == "attention" and self.found.by_blocks(node.src[1]):
            return self._attention_by_blocks(node, outcome.spec)
        if PARTIAL in outcome.wants and node.op == "add":
            made = self._pending(node)
        else:
            src = [self._source(s, w) for s, w in zip(node.src, outcome.wants, strict=True)]
            made = self._again(node, src, outcome.spec)
            rest = self._rests.get(node.src[0]) if outcome.wants[:1] == (PARTIAL,) else None
            if rest is not None:
                self._rests[node] = self._again(node, [rest, *src[1:]], outcome.spec)
        if outcome.spec == PARTIAL and self.found.specs[node] == WHOLE:
            return self._reduced(node, made)
        return ops.first(made) if self.sharding.unlike and OPS[node.op].discrete else made

    def _pending(self, node: Node) -> Node:
        """add of partial sums and whole values: what is whole waits until the sum is reduced."""
        parts, rests = list[Node](), list[Node]()
        for source in node.src:
            if self.found.specs[source] == PARTIAL:
                parts.append(self._made[source])
                rests += [self._rests[source]] if source in self._rests else []
            else:
                rests.append(self._source(source, WHOLE))
        rests.sort(key=lambda n: -len(n.shape))  # b of add broadcasts to a
        if rests:
            self._rests[node] = rests[0] if len(rests) == 1 else ops.add(*rests[:2])
        for late in rests[2:]:
            self._rests[node] = ops.add(self._rests[node], late)
        return parts[0] if len(parts) == 1 else ops.add(*parts)

    def _reduced(self, node: Node, partial: Node) -> Node:
        rest = self._rests.pop(node, None)
        if rest is None:
            return ops.reduce_add(partial)
        if len(partial.shape) == 2 and rest.shape in (partial.shape, partial.shape[-1:]):
            return ops.reduce_add(partial, rest)
        return ops.add(ops.reduce_add(partial), rest)

    def _attention_by_blocks(self, node: Node, spec: Spec) -> Node:
        """Attention to a cache of which each rank has some blocks: every rank computes the softmax states of
        all heads over its own blocks. The ranks meet three times: for the queries, for the states' largest
        scores and sums of weights, and to add up what each has of the result. A rank keeps its own heads.
        """
        q, heads = self._all_heads(node.src[0]), _size(node.src[0].shape[1])
        ranks, rank = self.sharding.ranks, self.rank
        rest = [self._source(s, WHOLE) for s in node.src[1:]]
        args = {name: node.arg(name) for name in ("scale", "cap", "value", "alibi")}
        alibi = args["alibi"]
        sinks, slopes = rest[5 : len(rest) - alibi], rest[len(rest) - alibi :]
        parts = ops.attention_parts(q, *rest[:5], *slopes, **args, ranks=ranks, rank=rank)
        own = ops.cols(parts, start=node.width, size=2 * heads)
        stats = ops.gather_columns(own, start=2 * heads * rank, total=2 * heads * ranks)
        whole = ops.reduce_add(ops.merge_parts(parts, stats, *sinks, heads=heads, rank=rank))
        if not isinstance(spec, Split):
            return whole
        mine = self._range(spec, node)
        return ops.cols(whole, start=mine.start, size=mine.size)

    def _all_heads(self, source: Node) -> Node:
        """Heads (T, H, D) of all ranks."""
        made, spec = self._made[source], self.found.specs[source]
        if not isinstance(spec, Split):
            return made
        if source not in self._whole:
            heads, size = (_size(d) for d in source.shape[1:])
            mine = self._range(spec, source)
            flat = ops.reshape(made, shape=(mine.size * size,))
            whole = ops.gather_columns(flat, start=mine.start * size, total=heads * size)
            self._whole[source] = ops.reshape(whole, shape=(heads, size))
        return self._whole[source]

    def _again(self, node: Node, src: list[Node], spec: Spec) -> Node:
        """The node's op on the rank's sources."""
        made_by, args = OPS[node.op], dict(node.args)
        if node.op == "kv_write" and self.found.by_blocks(node.src[0]):
            return ops.kv_write_part(*src, ranks=self.sharding.ranks, rank=self.rank)
        if node.op == "reshape":
            return ops.reshape(src[0], shape=_shape(node, src[0], spec))
        if made_by.gathers and spec == PARTIAL:
            first = self._cut(self.found.outcomes[node].wants[0]).ranges[self.rank].start
            units = self._cut(self.found.outcomes[node].wants[0]).units
            return ops.get_rows_part(*src, first=first * _size(node.src[0].shape[0]) // units)
        if made_by.experts and isinstance(spec, Experts):
            src[-1] = self._own(src[-1], spec)
        elif made_by.experts and spec == PARTIAL and not made_by.product and self.rank:
            return src[0]  # rank 0 adds the experts' bias
        elif made_by.product and src[0].width < src[1].width:
            before = self._padding(node.src[1], self.found.outcomes[node].wants[1])
            src[0] = ops.pad(src[0], before=before, after=src[1].width - src[0].width - before)
        return made_by(*src, **args)

    def _own(self, ids: Node, spec: Experts) -> Node:
        """Places of the chosen experts among the rank's own; -1 for those of other ranks."""
        cut = self.sharding.experts[spec.cut]
        mine, experts = cut.ranges[self.rank], cut.units
        table = np.full(experts, -1, np.int32)
        table[mine.start : mine.stop] = np.arange(mine.size)
        return ops.gather(ids, self.graph.const(table, "i32", "experts"))

    def _source(self, source: Node, want: Spec) -> Node:
        if source in self.given:
            whole = self.given[source]
            mine = self._range(want, source) if isinstance(want, Split) else None
            return whole if mine is None else ops.cols(whole, start=mine.start, size=mine.size)
        if source.op in LEAVES:
            return self._leaf(source, WHOLE if want in (PARTIAL, GATHERED) else want)
        made, spec = self._made[source], self.found.specs[source]
        if want in (WHOLE, GATHERED) and isinstance(spec, Split):
            if source not in self._whole:
                mine = self._range(spec, source)
                self._whole[source] = ops.gather_columns(made, start=mine.start, total=source.width)
            return self._whole[source]
        if isinstance(want, Split) and spec == WHOLE:
            mine = self._range(want, source)
            return ops.cols(made, start=mine.start, size=mine.size)
        return made

    def _leaf(self, leaf: Node, want: Spec) -> Node:
        if (leaf, want) not in self._leaves:
            self._leaves[leaf, want] = self._cut_leaf(leaf, want)
        return self._leaves[leaf, want]

    def _cut_leaf(self, leaf: Node, want: Spec) -> Node:
        if leaf.op == "state" and leaf.name in self.sharding.blocks:
            shape = (own_blocks(_size(leaf.shape[0]), self.sharding.ranks), *leaf.shape[1:])
            return self.graph.node("state", (), Type(shape, leaf.type.format), leaf.name)
        if not isinstance(want, Split | Experts) or leaf.op == "input":
            return self.graph.node(leaf.op, (), leaf.type, leaf.name, **dict(leaf.args))
        axis = want.axis if isinstance(want, Split) else 0
        mine = self._range(want, leaf)
        if leaf.op == "const":
            kept = np.take(leaf.arg("value").array, np.arange(*mine), axis=axis)
            return self.graph.const(kept, leaf.type.format, leaf.name)
        if leaf.op == "state":
            shape = (*leaf.shape[:axis], mine.size, *leaf.shape[axis + 1 :])
            return self.graph.node("state", (), Type(shape, leaf.type.format), leaf.name)
        name, type = cut_weight(leaf, axis, self._blocks(leaf, axis, mine))
        return self.graph.node("weight", (), type, name)

    def _blocks(self, weight: Node, axis: int, range: Range) -> Range:
        """A range of columns, up to the borders of the format's blocks."""
        if axis != len(weight.shape) - 1 or len(weight.shape) < 2:
            return range
        block = FORMATS[weight.type.format].block
        return Range(range.start // block * block, min(-(-range.stop // block) * block, weight.width))

    def _padding(self, weight: Node, want: Spec) -> int:
        mine = self._range(want, weight)
        return mine.start - self._blocks(weight, len(weight.shape) - 1, mine).start

    def _cut(self, spec: Spec) -> Cut:
        if isinstance(spec, Split):
            return self.sharding.cuts[spec.cut]
        assert isinstance(spec, Experts), spec
        return self.sharding.experts[spec.cut]

    def _range(self, spec: Spec, node: Node) -> Range:
        axis = spec.axis if isinstance(spec, Split) else 0
        return self._cut(spec).range(self.rank, _size(node.shape[axis]))


def _size(size: Any) -> int:
    assert isinstance(size, int), size
    return size


def _shape(node: Node, source: Node, spec: Spec) -> tuple[int, ...]:
    """The shape of a reshape on a rank: its divided axis has what the others leave."""
    shape = [_size(d) for d in node.shape[1:]]
    if isinstance(spec, Split):
        others = int(np.prod([d for i, d in enumerate(shape) if i != spec.axis - 1]))
        shape[spec.axis - 1] = int(np.prod([_size(d) for d in source.shape[1:]])) // others
    return tuple(shape)
