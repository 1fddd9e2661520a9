"""Checks a template's syntax tree, and rewrites it so that its operations are metered.

Invariant: a rewritten tree has allowed node types only, and every loop, macro, comparison, slice and
concatenation pays the meter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from satchel.formats.template.limits import TemplateLimits

# A template can't contain names with a colon, so it can neither call nor shadow these hooks.
COMPARE, SLICE, CONCAT, EACH, STEP, SPREAD, KEY = (
    f"meter:{hook}" for hook in ("compare", "slice", "concat", "each", "step", "spread", "key")
)

_STATEMENTS = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock,
    nodes.FilterBlock, nodes.With, nodes.Assign, nodes.AssignBlock, nodes.ExprStmt, nodes.Break,
    nodes.Continue, nodes.Scope, nodes.NSRef,
)  # fmt: skip
_EXPRESSIONS = (
    nodes.Name, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr,
    nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat,
    nodes.Compare, nodes.Operand, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod,
    nodes.Pow, nodes.Not, nodes.Neg, nodes.Pos, nodes.And, nodes.Or,
)  # fmt: skip
_KNOWN = frozenset((*_STATEMENTS, *_EXPRESSIONS))
_OPEN, _CLOSE = frozenset(("lparen", "lbracket", "lbrace")), frozenset(("rparen", "rbracket", "rbrace"))

N = TypeVar("N", bound=nodes.Node)


class ParseLimits(Extension):
    """Limits tokens and open brackets while the template is parsed, and parses `{% generation %}` (the block
    of training masks).
    """

    tags = {"generation"}  # noqa: RUF012 - Jinja's own spelling

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        limits: TemplateLimits = getattr(self.environment, "limits", None) or TemplateLimits()
        return _counted(stream, limits)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _counted(stream: TokenStream, limits: TemplateLimits) -> Iterator[Token]:
    depth = 0
    for count, token in enumerate(stream):
        if count > limits.tokens:
            raise TemplateSyntaxError(f"more than {limits.tokens:,} tokens", token.lineno)
        depth += (token.type in _OPEN) - (token.type in _CLOSE)
        if depth > limits.nesting:
            raise TemplateSyntaxError(f"more than {limits.nesting} brackets nest", token.lineno)
        yield token


def check(tree: nodes.Template, limits: TemplateLimits) -> None:
    """Raises TemplateSyntaxError for a node that is not allowed, a `__name__`, or a tree that is too deep. It
    does not recurse.
    """
    pending: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while pending:
        node, depth = pending.pop()
        if type(node) not in _KNOWN:
            tag = type(node).__name__.lower()
            raise TemplateSyntaxError(f"'{tag}' has no place in a chat template", node.lineno)
        if depth > limits.depth:
            raise TemplateSyntaxError(f"blocks and expressions nest deeper than {limits.depth}", node.lineno)
        if isinstance(node, nodes.Getattr) and node.attr.startswith("__"):
            raise TemplateSyntaxError(
                f"attribute {node.attr!r} is out of reach in a chat template", node.lineno
            )
        pending.extend((child, depth + 1) for child in node.iter_child_nodes())


def strings(tree: nodes.Template) -> frozenset[str]:
    """Every string constant of a template, as in `message.role == 'developer'`."""
    return frozenset(n.value for n in tree.find_all(nodes.Const) if isinstance(n.value, str))


def loaded(tree: nodes.Template) -> frozenset[str]:
    """Every name that a template reads, including its own variables."""
    return frozenset(n.name for n in tree.find_all(nodes.Name) if n.ctx == "load")


class Metered(NodeTransformer):
    """Rewrites a checked tree: operations that Jinja compiles to plain Python become calls of
    metering hooks.
    """

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        # Literal text becomes a constant, so that it passes through finalize and is metered as output.
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        cost = _cost(node.body) + (_cost([node.test]) if node.test else 0)
        self.generic_visit(node)
        node.iter = _hook(node.iter, EACH, nodes.Const(cost))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._body(node)

    def _body(self, node: Any) -> nodes.Node:
        step = nodes.ExprStmt(
            _hook(nodes.Const(_cost(node.body), lineno=node.lineno), STEP), lineno=node.lineno
        )
        self.generic_visit(node)
        node.body.insert(0, step)
        return nodes.Node.set_lineno(node, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        terms = [part for operand in node.ops for part in (nodes.Const(operand.op), operand.expr)]
        return _hook(node.expr, COMPARE, *terms)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _hook(node.node, SLICE, *(bound or nodes.Const(None) for bound in bounds))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _hook(node.nodes[0], CONCAT, *node.nodes[1:])

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _hook(node.key, KEY)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        return self._spread(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        return self._spread(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        return self._spread(node)

    def _spread(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _hook(node.dyn_args, SPREAD)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _hook(node.dyn_kwargs, SPREAD)
        result: nodes.Node = node
        return result


def _hook(value: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    for arg in args:
        arg.lineno = arg.lineno or value.lineno
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


def _cost(body: Iterable[nodes.Node]) -> int:
    """Steps of one pass through `body`. Nested loops and macros pay for themselves."""
    count, pending = 0, list(body)
    while pending:
        node = pending.pop()
        count += 1
        if not isinstance(node, (nodes.For, nodes.Macro)):
            pending.extend(node.iter_child_nodes())
    return 1 + (count >> 4)
