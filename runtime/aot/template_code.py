"""Compiles a chat template to code for the template machine of cext/embed: instructions, constants, macros.

The syntax tree is the one that formats/template checks and runs. Names become slots by Jinja's scopes:
a body of a loop, `with`, `call`, `filter` or `set` block has names of its own, which begin with what they
are outside. Whatever the machine lacks is refused by its name and line (ModelError).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateSyntaxError, nodes

from satchel.errors import ModelError
from satchel.formats.template.limits import TemplateLimits, TemplateMeter
from satchel.formats.template.sandbox import TemplateSandbox
from satchel.formats.template.tree import check

# In the order of the enum in cext/embed/sections.h, as are the constants' kinds.
OPS = (
    "CONST", "LOCAL", "STORE", "ROOT", "NAME", "POP", "DUP", "JUMP", "JUMP_FALSE", "JUMP_FALSE_KEEP",
    "JUMP_TRUE_KEEP", "JUMP_GIVEN", "NOT", "NEG", "POS", "ADD", "SUB", "MUL", "DIV", "FLOORDIV", "MOD", "POW",
    "CONCAT", "COMPARE", "ATTRIBUTE", "ITEM", "SLICE", "LIST", "TUPLE", "MAP", "FILTER", "TEST", "CALL",
    "METHOD", "LOOP", "NEXT", "KEEP", "KEPT", "LOOP_END", "UNPACK", "SET_ATTRIBUTE", "TEXT", "OUTPUT",
    "CAPTURE", "CAPTURED", "MACRO", "RETURN", "END",
)  # fmt: skip
NUMBER = {name: i for i, name in enumerate(OPS)}
NONE, FALSE, TRUE, INTEGER, FLOAT, STRING, TUPLE, UNDEFINED, OWN = range(9)
COMPARISONS = ("eq", "ne", "gt", "gteq", "lt", "lteq", "in", "notin")
NO_NAMES = 0xFFFFFFFF  # a call without keyword arguments
MOST_ARGUMENTS = 32
MOST_TERMS = 7  # of a chain of comparisons, 4 bits each
READS_CALLER, READS_VARARGS, READS_KWARGS = 1, 2, 4  # flags of a macro

FILTERS = frozenset((
    "abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "format", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min",
    "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort",
    "string", "sum", "title", "tojson", "trim", "truncate", "unique", "upper",
))  # fmt: skip
TESTS = frozenset((
    "!=", "<", "<=", "==", ">", ">=", "boolean", "callable", "defined", "divisibleby", "eq", "equalto",
    "even", "false", "float", "ge", "greaterthan", "gt", "in", "integer", "iterable", "le", "lessthan",
    "lower", "lt", "mapping", "ne", "none", "number", "odd", "sequence", "string", "true", "undefined",
    "upper",
))  # fmt: skip
METHODS = frozenset((
    "append", "capitalize", "copy", "count", "endswith", "find", "format", "get", "index", "items",
    "join", "keys", "lower", "lstrip", "partition", "pop", "removeprefix", "removesuffix", "replace",
    "rfind", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title",
    "upper", "values",
))  # fmt: skip
FUNCTIONS = frozenset(("dict", "namespace", "raise_exception", "range", "strftime_now"))
# Python's other methods and Jinja's other functions: a template that calls one is refused, not run without.
_OTHER_METHODS = (
    frozenset(
        name for kind in (str, list, dict, int, float) for name in dir(kind) if not name.startswith("_")
    )
    - METHODS
)
_OTHER_FUNCTIONS = frozenset(("cycler", "joiner", "lipsum"))
# Filters that take the name of a filter or test.
_APPLY = {"map": FILTERS, "select": TESTS, "reject": TESTS}
_APPLY_SECOND = {"selectattr": TESTS, "rejectattr": TESTS}


@dataclass(frozen=True, slots=True)
class MacroCode:
    """A macro: where its code begins, its slots, and the names of its arguments, which are the first ones."""

    entry: int
    n_slots: int
    name: int  # a constant
    arguments: int  # a constant: a tuple of names
    flags: int


@dataclass(slots=True)
class TemplatePool:
    """Code, constants and macros of all variants of a template."""

    code: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # op, count, line, a, b
    macros: list[MacroCode] = field(default_factory=list)
    constants: list[tuple[int, int, int]] = field(default_factory=list)  # kind, size, value
    members: list[int] = field(default_factory=list)  # constants in tuples
    data: bytearray = field(default_factory=bytearray)  # strings in UTF-8, a zero byte behind each
    _known: dict[Any, int] = field(default_factory=dict)

    def constant(self, value: Any) -> int:
        """The number of a constant: None, bool, int, float, str, or a tuple of these."""
        key = (type(value), repr(value))
        if key not in self._known:
            made = self._made(value)
            self._known[key] = len(self.constants)
            self.constants.append(made)
        return self._known[key]

    @property
    def strings(self) -> frozenset[str]:
        """All strings among the constants."""
        return frozenset(
            self.data[at : at + size].decode() for kind, size, at in self.constants if kind == STRING
        )

    def undefined(self) -> int:
        """The number of the constant that an expression without `else` gives."""
        if "undefined" not in self._known:
            self._known["undefined"] = len(self.constants)
            self.constants.append((UNDEFINED, 0, 0))
        return self._known["undefined"]

    def _made(self, value: Any) -> tuple[int, int, int]:
        if value is None:
            return NONE, 0, 0
        if isinstance(value, bool):
            return (TRUE if value else FALSE), 0, 0
        if isinstance(value, int):
            return INTEGER, 0, value
        if isinstance(value, float):
            return FLOAT, 0, struct.unpack("<q", struct.pack("<d", value))[0]
        if isinstance(value, str):
            raw = value.encode()
            self.data += raw + b"\0"
            return STRING, len(raw), len(self.data) - len(raw) - 1
        numbers = [self.constant(item) for item in value]
        self.members += numbers
        return TUPLE, len(numbers), len(self.members) - len(numbers)


@dataclass(slots=True)
class _Function:
    """The template itself or a macro: its slots and scopes."""

    parent: _Function | None
    n_slots: int = 0
    scopes: list[dict[str, int]] = field(default_factory=list)
    captures: int = 0  # that are open

    def slot(self) -> int:
        self.n_slots += 1
        return self.n_slots - 1


@dataclass(slots=True)
class _Loop:
    next: int
    captures: int
    breaks: list[int] = field(default_factory=list)


def compile_template(pool: TemplatePool, source: str, name: str) -> tuple[int, int]:
    """Adds a template's code to the pool; gives its first instruction and the number of its slots. ModelError
    with the line for a template that the machine cannot run.
    """
    sandbox = TemplateSandbox(TemplateMeter(TemplateLimits(), 0, 0, clock=lambda: 0.0))
    try:
        tree = sandbox.parse(source)
        check(tree, TemplateLimits())
    except TemplateSyntaxError as error:
        message = f"{name} line {error.lineno}: {error.message}"
        raise ModelError(message) from None
    compiler = _Compiler(pool, name)
    return compiler.template(tree)


class _Compiler:
    def __init__(self, pool: TemplatePool, name: str) -> None:
        self.pool, self.name = pool, name
        self.function = _Function(None)
        self.loops: list[_Loop] = []

    def template(self, tree: nodes.Template) -> tuple[int, int]:
        self._namespaced = {node.attr for node in tree.find_all(nodes.NSRef)}
        entry = len(self.pool.code)
        with self._scope(tree.body, tree.lineno):
            self._body(tree.body)
            self._emit("END", tree.lineno)
        return entry, self.function.n_slots

    def refused(self, what: str, node: nodes.Node) -> ModelError:
        return ModelError(f"{self.name} line {node.lineno}: {what}: the C library does not run this template")

    # --- code

    def _emit(self, op: str, line: int, a: int = 0, b: int = 0, count: int = 0) -> int:
        self.pool.code.append((NUMBER[op], count, min(line or 0, 0xFFFF), a, b))
        return len(self.pool.code) - 1

    def _here(self) -> int:
        return len(self.pool.code)

    def _land(self, *jumps: int) -> None:
        """Makes jumps lead to the next instruction."""
        for at in jumps:
            op, count, line, _, b = self.pool.code[at]
            self.pool.code[at] = op, count, line, self._here(), b

    def _constant(self, value: Any, line: int) -> None:
        self._emit("CONST", line, self.pool.constant(value))

    # --- names

    @contextmanager
    def _scope(
        self, body: Sequence[nodes.Node], line: int, slots: dict[str, int] | None = None
    ) -> Iterator[None]:
        """A scope: its own names are `slots`, which are filled already, and those that its body sets."""
        own = dict(slots or {})
        for name in _stored(body):
            if name not in own:
                slot = self.function.slot()
                self._load(name, line)  # what it is outside
                self._emit("STORE", line, slot)
                own[name] = slot
        self.function.scopes.append(own)
        yield
        self.function.scopes.pop()

    def _load(self, name: str, line: int) -> None:
        """Pushes what a name is here."""
        function: _Function | None = self.function
        while function is not None:
            found = next((scope[name] for scope in reversed(function.scopes) if name in scope), None)
            if found is not None:
                if function is self.function:
                    self._emit("LOCAL", line, found)
                elif function.parent is None:
                    self._emit("ROOT", line, found)
                else:
                    raise ModelError(
                        f"{self.name} line {line}: a macro reads {name!r} of the macro around it: the C "
                        "library does not run this template"
                    )
                return
            function = function.parent
        if name in _OTHER_FUNCTIONS:
            raise ModelError(
                f"{self.name} line {line}: function '{name}': the C library does not run this template"
            )
        self._emit("NAME", line, self.pool.constant(name))

    def _store(self, target: nodes.Node) -> None:
        """Pops a value into a target."""
        if isinstance(target, nodes.Name):
            self._emit("STORE", target.lineno, self.function.scopes[-1][target.name])
        elif isinstance(target, nodes.NSRef):
            self._load(target.name, target.lineno)
            self._emit("SET_ATTRIBUTE", target.lineno, self.pool.constant(target.attr))
        elif isinstance(target, nodes.Tuple):
            self._emit("UNPACK", target.lineno, len(target.items))
            for item in target.items:
                self._store(item)
        else:
            raise self.refused(f"a value is set by '{type(target).__name__.lower()}'", target)

    # --- statements

    def _body(self, body: Iterable[nodes.Node]) -> None:
        for node in body:
            _visit(self, "statement", node)

    def statement_Output(self, node: nodes.Output) -> None:
        for part in node.nodes:
            if isinstance(part, nodes.TemplateData):
                self._emit("TEXT", part.lineno, self.pool.constant(part.data))
            else:
                self._value(part)
                self._emit("OUTPUT", part.lineno)

    def statement_If(self, node: nodes.If) -> None:
        ends = []
        for test, body in [(node.test, node.body), *((part.test, part.body) for part in node.elif_)]:
            self._value(test)
            skip = self._emit("JUMP_FALSE", node.lineno)
            self._body(body)
            ends.append(self._emit("JUMP", node.lineno))
            self._land(skip)
        self._body(node.else_)
        self._land(*ends)

    def statement_For(self, node: nodes.For) -> None:
        if node.recursive:
            raise self.refused("a recursive loop", node)
        self._value(node.iter)
        if node.test is not None:
            self._filtered(node, node.test)
        self._emit("LOOP", node.lineno)
        slots = {name: self.function.slot() for name in (*_targets(node.target), "loop")}
        self._emit("DUP", node.lineno)
        self._emit("STORE", node.lineno, slots["loop"])
        loop = _Loop(self._here(), self.function.captures)
        out = self._emit("NEXT", node.lineno)
        self.function.scopes.append(slots)
        self._store(node.target)
        self.function.scopes.pop()
        self.loops.append(loop)
        with self._scope(node.body, node.lineno, slots):
            self._body(node.body)
        self.loops.pop()
        self._emit("JUMP", node.lineno, loop.next)
        self._land(out, *loop.breaks)
        end = self._emit("LOOP_END", node.lineno)
        with self._scope(node.else_, node.lineno):
            self._body(node.else_)
        self._land(end)

    def _filtered(self, node: nodes.For, test: nodes.Node) -> None:
        """Replaces what a loop goes over by the items that its condition takes."""
        if any(n.attr in self._namespaced for n in test.find_all(nodes.Getattr)):
            raise self.refused("a loop's condition that reads a namespace", node)
        self._emit("LOOP", node.lineno)
        begin = self._here()
        out = self._emit("NEXT", node.lineno)
        self.function.scopes.append({name: self.function.slot() for name in _targets(node.target)})
        self._store(node.target)
        self._value(test)
        self._emit("JUMP_FALSE", node.lineno, begin)
        self.function.scopes.pop()
        self._emit("KEEP", node.lineno)
        self._emit("JUMP", node.lineno, begin)
        self._land(out)
        self._emit("KEPT", node.lineno)

    def statement_Break(self, node: nodes.Break) -> None:
        self._leave(node).breaks.append(self._emit("JUMP", node.lineno))

    def statement_Continue(self, node: nodes.Continue) -> None:
        self._emit("JUMP", node.lineno, self._leave(node).next)

    def _leave(self, node: nodes.Node) -> _Loop:
        if not self.loops or self.loops[-1].captures != self.function.captures:
            raise self.refused("break or continue outside of a loop or within a block of its own", node)
        return self.loops[-1]

    def statement_Assign(self, node: nodes.Assign) -> None:
        self._value(node.node)
        self._store(node.target)

    def statement_AssignBlock(self, node: nodes.AssignBlock) -> None:
        self._captured(node.body, node.lineno)
        if node.filter is not None:
            self.value_Filter(node.filter)
        self._store(node.target)

    def statement_FilterBlock(self, node: nodes.FilterBlock) -> None:
        self._captured(node.body, node.lineno)
        self.value_Filter(node.filter)
        self._emit("OUTPUT", node.lineno)

    def _captured(self, body: Sequence[nodes.Node], line: int) -> None:
        """Pushes what a body writes."""
        self._emit("CAPTURE", line)
        self.function.captures += 1
        with self._scope(body, line):
            self._body(body)
        self.function.captures -= 1
        self._emit("CAPTURED", line)

    def statement_Scope(self, node: nodes.Scope) -> None:
        with self._scope(node.body, node.lineno):
            self._body(node.body)

    def statement_With(self, node: nodes.With) -> None:
        slots: dict[str, int] = {}
        for target, value in zip(node.targets, node.values, strict=True):
            self._value(value)
            slots |= {name: self.function.slot() for name in _targets(target)}
            self.function.scopes.append(slots)
            self._store(target)
            self.function.scopes.pop()
        with self._scope(node.body, node.lineno, slots):
            self._body(node.body)

    def statement_ExprStmt(self, node: nodes.ExprStmt) -> None:
        self._value(node.node)
        self._emit("POP", node.lineno)

    def statement_Macro(self, node: nodes.Macro) -> None:
        self._macro(node, node.name)
        self._emit("STORE", node.lineno, self.function.scopes[-1][node.name])

    def statement_CallBlock(self, node: nodes.CallBlock) -> None:
        call = node.call
        self._called(call, lambda: self._macro(node, "caller"))
        self._emit("OUTPUT", node.lineno)

    def _macro(self, node: nodes.Macro | nodes.CallBlock, name: str) -> None:
        """Pushes a macro, whose code stands here and is jumped over."""
        over = self._emit("JUMP", node.lineno)
        outer, loops = self.function, self.loops
        self.function, self.loops = _Function(outer), []
        names = [arg.name for arg in node.args]
        slots = {arg: self.function.slot() for arg in names}
        read = {n.name for part in (*node.body, *node.defaults) for n in part.find_all(nodes.Name)}
        read |= {n.name for n in (*node.body, *node.defaults) if isinstance(n, nodes.Name)}
        flags = 0
        for bit, special in ((1, "caller"), (2, "varargs"), (4, "kwargs")):
            if special in read and special not in slots:
                slots[special] = self.function.slot()
                flags |= bit
        entry = self._here()
        for arg, default in zip(names[len(names) - len(node.defaults) :], node.defaults, strict=True):
            given = self._emit("JUMP_GIVEN", node.lineno, b=slots[arg])
            self.function.scopes.append(slots)
            self._value(default)
            self.function.scopes.pop()
            self._emit("STORE", node.lineno, slots[arg])
            self._land(given)
        with self._scope(node.body, node.lineno, slots):
            self._body(node.body)
        self._emit("RETURN", node.lineno)
        made = MacroCode(
            entry, self.function.n_slots, self.pool.constant(name), self.pool.constant(tuple(names)), flags
        )
        self.function, self.loops = outer, loops
        self.pool.macros.append(made)
        self._land(over)
        self._emit("MACRO", node.lineno, len(self.pool.macros) - 1)

    # --- expressions

    def _value(self, node: nodes.Node) -> None:
        _visit(self, "value", node)

    def value_Const(self, node: nodes.Const) -> None:
        value = node.value
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise self.refused("an integer of more than 64 bits", node)
        self._constant(value, node.lineno)

    def value_TemplateData(self, node: nodes.TemplateData) -> None:
        self._constant(node.data, node.lineno)

    def value_Name(self, node: nodes.Name) -> None:
        self._load(node.name, node.lineno)

    def _sequence(self, op: str, node: nodes.Tuple | nodes.List) -> None:
        for item in node.items:
            self._value(item)
        self._emit(op, node.lineno, len(node.items))

    def value_Tuple(self, node: nodes.Tuple) -> None:
        self._sequence("TUPLE", node)

    def value_List(self, node: nodes.List) -> None:
        self._sequence("LIST", node)

    def value_Dict(self, node: nodes.Dict) -> None:
        for pair in node.items:
            self._value(pair.key)
            self._value(pair.value)
        self._emit("MAP", node.lineno, len(node.items))

    def value_CondExpr(self, node: nodes.CondExpr) -> None:
        self._value(node.test)
        skip = self._emit("JUMP_FALSE", node.lineno)
        self._value(node.expr1)
        end = self._emit("JUMP", node.lineno)
        self._land(skip)
        if node.expr2 is None:
            self._emit("CONST", node.lineno, self.pool.undefined())
        else:
            self._value(node.expr2)
        self._land(end)

    def _arguments(
        self, node: nodes.Filter | nodes.Test | nodes.Call, more: Callable[[], None] | None = None
    ) -> tuple[int, int]:
        """Pushes the arguments of a call; gives their number and the constant of the keywords' names. more:
        pushes the keyword argument `caller`.
        """
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise self.refused("a call with * or **", node)
        for arg in node.args:
            self._value(arg)
        names = [pair.key for pair in node.kwargs]
        for pair in node.kwargs:
            self._value(pair.value)
        if more is not None:
            more()
            names.append("caller")
        count = len(node.args) + len(names)
        if count > MOST_ARGUMENTS:
            raise self.refused(f"a call with more than {MOST_ARGUMENTS} arguments", node)
        return count, self.pool.constant(tuple(names)) if names else NO_NAMES

    def value_Filter(self, node: nodes.Filter) -> None:
        if node.node is not None:  # without one the value is on the stack: a filter of a block
            self._value(node.node)
        if node.name not in FILTERS:
            raise self.refused(f"filter '{node.name}'", node)
        self._applied(node)
        count, names = self._arguments(node)
        self._emit("FILTER", node.lineno, self.pool.constant(node.name), names, count)

    def _applied(self, node: nodes.Filter) -> None:
        """Checks the filter or test that a filter such as `map` is told to apply."""
        for known, at in ((_APPLY.get(node.name), 0), (_APPLY_SECOND.get(node.name), 1)):
            if known is None or len(node.args) <= at:
                continue
            given = node.args[at]
            if not isinstance(given, nodes.Const) or given.value not in known:
                told = repr(given.value) if isinstance(given, nodes.Const) else "what it computes"
                raise self.refused(f"filter '{node.name}' applies {told}", node)

    def value_Test(self, node: nodes.Test) -> None:
        self._value(node.node)
        if node.name not in TESTS:
            raise self.refused(f"test '{node.name}'", node)
        count, names = self._arguments(node)
        self._emit("TEST", node.lineno, self.pool.constant(node.name), names, count)

    def value_Call(self, node: nodes.Call) -> None:
        self._called(node, None)

    def _called(self, node: nodes.Call, more: Callable[[], None] | None) -> None:
        if isinstance(node.node, nodes.Getattr):
            name = node.node.attr
            if name in _OTHER_METHODS:
                raise self.refused(f"method '{name}'", node)
            self._value(node.node.node)
            count, names = self._arguments(node, more)
            self._emit("METHOD", node.lineno, self.pool.constant(name), names, count)
            return
        self._value(node.node)
        count, names = self._arguments(node, more)
        self._emit("CALL", node.lineno, 0, names, count)

    def value_Getattr(self, node: nodes.Getattr) -> None:
        self._value(node.node)
        self._emit("ATTRIBUTE", node.lineno, self.pool.constant(node.attr))

    def value_Getitem(self, node: nodes.Getitem) -> None:
        self._value(node.node)
        if not isinstance(node.arg, nodes.Slice):
            self._value(node.arg)
            self._emit("ITEM", node.lineno)
            return
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            if bound is None:
                self._constant(None, node.lineno)
            else:
                self._value(bound)
        self._emit("SLICE", node.lineno)

    def value_Concat(self, node: nodes.Concat) -> None:
        for part in node.nodes:
            self._value(part)
        self._emit("CONCAT", node.lineno, len(node.nodes))

    def value_Compare(self, node: nodes.Compare) -> None:
        if len(node.ops) > MOST_TERMS:
            raise self.refused(f"a chain of more than {MOST_TERMS} comparisons", node)
        self._value(node.expr)
        packed = 0
        for i, operand in enumerate(node.ops):
            self._value(operand.expr)
            packed |= COMPARISONS.index(operand.op) << 4 * i
        self._emit("COMPARE", node.lineno, packed, 0, len(node.ops))

    def value_Not(self, node: nodes.Not) -> None:
        self._value(node.node)
        self._emit("NOT", node.lineno)

    def value_Neg(self, node: nodes.Neg) -> None:
        self._value(node.node)
        self._emit("NEG", node.lineno)

    def value_Pos(self, node: nodes.Pos) -> None:
        self._value(node.node)
        self._emit("POS", node.lineno)

    def value_And(self, node: nodes.And) -> None:
        self._either(node, "JUMP_FALSE_KEEP")

    def value_Or(self, node: nodes.Or) -> None:
        self._either(node, "JUMP_TRUE_KEEP")

    def _either(self, node: nodes.BinExpr, op: str) -> None:
        """`and`, `or`: the left side stays where it decides."""
        self._value(node.left)
        end = self._emit(op, node.lineno)
        self._value(node.right)
        self._land(end)

    def binary(self, node: nodes.BinExpr) -> None:
        self._value(node.left)
        self._value(node.right)
        self._emit(type(node).__name__.upper(), node.lineno)


def _visit(compiler: _Compiler, kind: str, node: nodes.Node) -> None:
    name = type(node).__name__
    if kind == "value" and isinstance(node, nodes.BinExpr) and name.upper() in NUMBER:
        compiler.binary(node)
        return
    method = getattr(compiler, f"{kind}_{name}", None)
    if method is None:
        raise compiler.refused(f"'{name.lower()}' as a {kind}", node)
    method(node)


def _targets(target: nodes.Node) -> list[str]:
    """Names that an assignment to this target sets."""
    if isinstance(target, nodes.Name):
        return [target.name]
    if isinstance(target, nodes.Tuple):
        return [name for item in target.items for name in _targets(item)]
    return []


def _stored(body: Iterable[nodes.Node]) -> list[str]:
    """Names that a body sets in its own scope, in order, each once."""
    found: dict[str, None] = {}
    for node in body:
        if isinstance(node, (nodes.Assign, nodes.AssignBlock)):
            found |= dict.fromkeys(_targets(node.target))
        elif isinstance(node, nodes.Macro):
            found[node.name] = None
        elif isinstance(node, nodes.If):
            inner = [*node.body, *node.elif_, *node.else_]
            found |= dict.fromkeys(_stored(inner))
    return list(found)
