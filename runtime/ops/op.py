"""What an op is: a numpy function that defines it, its shape rule, and its traits, by which passes, planner
and checks know how to treat it. The table of all ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import numpy as np

from satchel.quant import FORMATS
from satchel.runtime.graph import Arg, Array, Node, Type

NONE = slice(0)  # of the sources


@dataclass(frozen=True, eq=False)
class Op:
    """One op. A call on nodes adds a node to their graph."""

    name: str
    rule: Callable[..., Type]  # the result's type, from the sources' types and the arguments
    define: Callable[..., Array]  # the definition: sources as numpy arrays, arguments by keyword

    # The result is a window on the first source and takes no step; or is the first source, changed in place.
    view: bool = False
    alias: bool = False
    # The decomposition of a fused op, given the node's sources and arguments, for devices that lack the op.
    parts: Callable[..., Node] | None = None
    # The host acts between what comes before and this op: a segment begins with it.
    waits: bool = False

    # Row t of the result is made of row t of each source that has the step's tokens as rows.
    row_wise: bool = False
    # Has neither weights nor state and is cheap: it runs where its first source is, for a copy costs more.
    follows: bool = False
    # Nothing is rounded but to the result's format: every device gives the definition's bits.
    exact: bool = False

    # Sources that are matrices, or stacks of them, which a device may keep in an order of its own.
    weights: slice = field(default_factory=lambda: NONE)
    # The weights are multiplied with the rows of the first source, which may be quantized.
    product: bool = False
    # The last source is the numbers (T, k) of each token's experts; before it stand stacks of all.
    experts: bool = False
    # Source and dimension in which the numbers in `ids` or `rows` count.
    indexes: tuple[int, int] | None = None
    # Sources that are paged: blocks of a KV cache, or pages of recurrent states.
    cache: slice = field(default_factory=lambda: NONE)
    # Its layer's attention, as work is counted.
    attends: bool = False

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Names of the definition's sources, without those of which there may be any number."""
        return self._names(Parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return self._names(Parameter.KEYWORD_ONLY)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        given = signature(self.define).parameters.values()
        return {p.name: p.default for p in given if p.default is not p.empty}

    @property
    def gathers(self) -> bool:
        """Whether it reads only those rows of a weight that are asked for."""
        return self.weights != NONE and self.indexes is not None and not self.experts

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
    """Registers the decorated numpy function as the definition of the op of its name. traits: Op's fields."""

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
    """Float32 values of a float or block array: the dtype tells the format."""
    return x if x.dtype == np.float32 else FORMATS[format_of(x)].decode(x)


def format_of(x: Array) -> str:
    return next(f.name for f in FORMATS.values() if f.dtype == x.dtype)
