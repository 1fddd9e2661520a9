"""The op registry. An op is a numpy function that defines its result, a shape rule, and traits. Passes,
planner and checks know an op by its traits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import numpy as np

from satchel.quant import FORMATS
from satchel.runtime.graph import Arg, Array, Node, Type
from satchel.runtime.ops.split import SplitRule

NONE = slice(0)  # no source has the trait


@dataclass(frozen=True, eq=False)
class Op:
    """One op. A call on nodes adds a node to their graph."""

    name: str
    rule: Callable[..., Type]  # the result's type, from the sources' types and the arguments
    define: Callable[..., Array]  # the definition: sources as numpy arrays, arguments by keyword

    # The result is a view of the first source: it takes no step and no memory.
    view: bool = False
    # The op writes its first source in place; the result is that source.
    alias: bool = False
    # The op writes its `cache` sources in place beside its result: their new values, from the sources.
    # Readers of a new value take it through ordered_after.
    update: Callable[..., tuple[Array, ...]] | None = None
    # Decomposition of a fused op into other ops, from the node's sources and arguments. A device that lacks
    # the op runs this.
    parts: Callable[..., Node] | None = None
    # The host acts before this op runs, so a segment begins with it.
    waits: bool = False

    # Row t of the result depends only on row t of each source whose rows are the step's tokens.
    row_wise: bool = False
    # Runs on the device of its first source: the op is cheap, has no weights and no state, and a copy costs
    # more.
    follows: bool = False
    # Every device gives the bits of the definition: the op rounds only to the result's format.
    exact: bool = False

    # Sources that are weight matrices or stacks of them. A device may repack them in its own order.
    weights: slice = field(default_factory=lambda: NONE)
    # The op multiplies the weights with the rows of the first source, which may be quantized.
    product: bool = False
    # The weights are stacks of all experts, of which each token has some: the last source holds their ids
    # (T, k), or the op ranks the router's logits itself.
    experts: bool = False
    # Of an op with experts, (value, dimension) that is k; value 0 is the result, then the sources follow.
    per_token: tuple[int, int] = (-1, 1)
    # (source, dimension) that the op's `ids` or `rows` index.
    indexes: tuple[int, int] | None = None
    # Sources that are paged: blocks of a KV cache or pages of recurrent states.
    cache: slice = field(default_factory=lambda: NONE)
    # The op counts as its layer's attention in cost estimates.
    attends: bool = False

    # Tensor parallelism: what the result is where sources are divided among ranks. None: the op takes whole
    # sources. Ops that the passes before `shard` can leave in a graph have one.
    split: SplitRule | None = None
    # A choice among candidates: values that differ in their last bits may choose otherwise, so in a group of
    # unlike devices the first rank's choice counts.
    discrete: bool = False
    # A collective: the definition of its result from each rank's sources, in the order of ranks. `meets`
    # takes the arguments too and gives what all ranks have; `scatters` gives what each has.
    meets: Callable[..., Array] | None = None
    scatters: Callable[[Sequence[tuple[Array, ...]]], list[Array]] | None = None

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Names of the definition's sources, without variadic ones."""
        return self._names(Parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return self._names(Parameter.KEYWORD_ONLY)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        given = signature(self.define).parameters.values()
        return {p.name: p.default for p in given if p.default is not p.empty}

    @property
    def collective(self) -> bool:
        """Whether ranks meet at the op."""
        return self.meets is not None or self.scatters is not None

    @property
    def gathers(self) -> bool:
        """Whether the op reads only the indexed rows of a weight."""
        return self.weights != NONE and self.indexes is not None and not self.experts

    def written(self, node: Node) -> tuple[Node, ...]:
        """Sources that a node of this op writes in place."""
        return node.src[: int(self.alias)] + (node.src[self.cache] if self.update else ())

    def _names(self, kind: object) -> tuple[str, ...]:
        return tuple(p.name for p in signature(self.define).parameters.values() if p.kind is kind)

    def __call__(self, *src: Node, **args: Arg) -> Node:
        unknown = set(args) - set(self.arguments)
        full = {**self.defaults, **args}
        if unknown or set(self.arguments) - set(full):
            raise TypeError(f"{self.name} takes {self.arguments}, got {tuple(args)}")
        return src[0].graph.node(self.name, src, self.rule(*(s.type for s in src), **full), **full)


OPS: dict[str, Op] = {}


def op(rule: Callable[..., Type], **traits: Any) -> Callable[[Callable[..., Array]], Op]:
    """Registers the decorated numpy function as the definition of the op of that name. traits: Op's
    fields.
    """

    def register(define: Callable[..., Array]) -> Op:
        OPS[define.__name__] = Op(define.__name__, rule, define, **traits)
        return OPS[define.__name__]

    return register


def op_of(node: Node) -> Op | None:
    """The op of a node; None for a leaf and for a copy between devices."""
    return OPS.get(node.op)


def same(x: Type, *_: Type, **__: Arg) -> Type:
    return x


def rows_of(x: Array) -> Array:
    """Float32 values of a float array or of a block array, whose format follows from its dtype."""
    return x if x.dtype == np.float32 else FORMATS[format_of(x)].decode(x)


def format_of(x: Array) -> str:
    return next(f.name for f in FORMATS.values() if f.dtype == x.dtype)
