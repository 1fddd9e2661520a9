"""What an op is: a numpy function that defines it, its shape rule, and how it stands to memory; and the
table that holds them all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np

from satchel.quant import FORMATS
from satchel.runtime.graph import Arg, Array, Node, Type


class Op:
    """One op: its shape rule, its definition, and how it stands to memory.

    view: the result is a window on the first source and costs no step. alias: the result is the first
    source, changed in place. parts: a fused op's decomposition, given the node's sources and arguments; a
    device that lacks the op gets it. waits: the host acts between what comes before and this, so a segment
    begins with it.
    """

    def __init__(
        self,
        rule: Callable[..., Type],
        define: Callable[..., Array],
        view: bool,
        alias: bool,
        parts: Callable[..., Node] | None,
        waits: bool,
    ) -> None:
        self.name, self.rule, self.define = define.__name__, rule, define
        self.view, self.alias, self.parts, self.waits = view, alias, parts, waits
        signature = inspect.signature(define).parameters.values()
        self.arguments = tuple(p.name for p in signature if p.kind is p.KEYWORD_ONLY)
        self.defaults = {p.name: p.default for p in signature if p.default is not p.empty}

    def __call__(self, *src: Node, **args: Arg) -> Node:
        unknown = set(args) - set(self.arguments)
        full = {**self.defaults, **args}
        if unknown or set(self.arguments) - set(full):
            raise TypeError(f"{self.name} takes {self.arguments}, got {tuple(args)}")
        return src[0].graph.node(self.name, src, self.rule(*(s.type for s in src), **full), **full)


OPS: dict[str, Op] = {}


def op(
    rule: Callable[..., Type],
    *,
    view: bool = False,
    alias: bool = False,
    parts: Callable[..., Node] | None = None,
    waits: bool = False,
) -> Callable[[Callable[..., Array]], Op]:
    """Registers the decorated numpy function as the definition of the op of its name."""

    def register(define: Callable[..., Array]) -> Op:
        OPS[define.__name__] = Op(rule, define, view, alias, parts, waits)
        return OPS[define.__name__]

    return register


def same(x: Type, *_: Type, **__: Arg) -> Type:
    return x


def rows_of(x: Array) -> Array:
    """Float32 values of a float or block array: the dtype tells the format."""
    return x if x.dtype == np.float32 else FORMATS[format_of(x)].decode(x)


def format_of(x: Array) -> str:
    return next(f.name for f in FORMATS.values() if f.dtype == x.dtype)
