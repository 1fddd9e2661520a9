"""Jinja's filters and tests with metering, and the hooks that the rewritten syntax tree (tree.py) calls.

Invariants: each takes the context first, so that Jinja computes none of them at compile time; lazy results
become lists, so that no chain of generators grows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import GeneratorType
from typing import Any

from jinja2 import Undefined, pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import _PassArg

from satchel.formats.template import methods, tree
from satchel.formats.template.escaping import Escaping
from satchel.formats.template.limits import LimitReached, TemplateMeter

# Not Callable, because Jinja's tables are annotated with FunctionType.
Function = Any

# Filters that do not read their value's parts; all others pay for every part.
_SHALLOW = frozenset((
    "abs", "attr", "batch", "count", "d", "default", "first", "float", "items", "last", "length", "list",
    "map", "reject", "rejectattr", "reverse", "safe", "select", "selectattr", "slice",
))  # fmt: skip
# Filters that iterate over their value.
_ITERATES = frozenset((
    "batch", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "items",
))  # fmt: skip
# Filters that take an attribute path, which is resolved for each item.
_PATHS = frozenset((
    "attr", "groupby", "join", "map", "max", "min", "rejectattr", "selectattr", "sort", "unique",
))  # fmt: skip
# Filters for web pages, which are slow on hostile text.
_LEFT_OUT = frozenset((
    "filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr",
))  # fmt: skip
_SORTS = frozenset(("dictsort", "groupby", "max", "min", "sort", "unique"))
_REWRITES = frozenset(("capitalize", "lower", "replace", "title", "upper"))
# Filters that search for their first argument, and the equivalent string method.
_SEEKS = {"replace": "replace", "trim": "strip"}
_SAME_TESTS = {"==": True, "eq": True, "equalto": True, "!=": False, "ne": False}
_DEEP_TESTS = frozenset((
    "lower", "upper", "in", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<",
    "lt", "lessthan", "<=", "le",
))  # fmt: skip
_MAX_NAME = 256  # characters of an attribute path such as "function.name"


def _contains(item: Any, items: Any, escaping: Escaping) -> bool:
    return (escaping.needle(items, item) if isinstance(items, str) else item) in items


_COMPARISONS: dict[str, Callable[[Any, Any, Escaping], Any]] = {
    "eq": lambda left, right, escaping: escaping.same(left, right),
    "ne": lambda left, right, escaping: not escaping.same(left, right),
    "gt": lambda left, right, _: left > right,
    "gteq": lambda left, right, _: left >= right,
    "lt": lambda left, right, _: left < right,
    "lteq": lambda left, right, _: left <= right,
    "in": _contains,
    "notin": lambda left, right, escaping: not _contains(left, right, escaping),
}


def _meter(context: Context) -> TemplateMeter:
    meter: TemplateMeter = context.environment.meter  # type: ignore[attr-defined]
    return meter


def _escaping(context: Context) -> Escaping:
    escaping: Escaping = context.environment.escaping  # type: ignore[attr-defined]
    return escaping


def settle(meter: TemplateMeter, value: Any) -> Any:
    """A lazy result as a list, metered item by item; any other value unchanged."""
    if isinstance(value, (str, list, tuple, dict, int, float)) or value is None or not _lazy(value):
        return meter.made(value)
    items = []
    for item in value:
        meter.grow(elements=1)
        items.append(item)
    return items


def _lazy(value: Any) -> bool:
    return isinstance(value, GeneratorType) or (
        isinstance(value, Iterator) and not isinstance(value, Undefined)
    )


def _pre_center(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    width = _argument(args, named, 0, "width", 80)
    if isinstance(width, int):
        meter.grow(width)


def _pre_indent(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    width = _argument(args, named, 0, "width", 4)
    size = len(width) if isinstance(width, str) else width
    if isinstance(size, int):
        lines = len(value.splitlines()) + 1 if isinstance(value, str) else 1
        meter.grow(max(size, 0) * lines)


def _pre_replace(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    old, new = _argument(args, named, 0, "old", ""), _argument(args, named, 1, "new", "")
    count = _argument(args, named, 2, "count", None)
    methods.replaced(meter, str(value), str(old), str(new), count if isinstance(count, int) else -1)


def _pre_join(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    glue = str(_argument(args, named, 0, "d", ""))
    meter.grow(meter.weigh(value) + len(glue) * (len(value) if hasattr(value, "__len__") else 1))


def _pre_format(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    methods.printf(meter, str(value), named or args)


def _pre_round(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    precision = _argument(args, named, 0, "precision", 0)
    if isinstance(precision, int):
        meter.integer(4 * abs(precision))


def _pre_batch(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    for number in (*args[:1], *(v for v in named.values() if isinstance(v, int))):
        if isinstance(number, int):
            meter.grow(elements=max(number, 0))


def _pre_number(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    if isinstance(value, str) and len(value) > meter.limits.bits:
        raise LimitReached(f"reads a number of more than {meter.limits.bits} digits")


def _pre_urlencode(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    meter.grow(12 * meter.weigh(value))


def _argument(args: tuple[Any, ...], named: Mapping[str, Any], index: int, name: str, default: Any) -> Any:
    return args[index] if len(args) > index else named.get(name, default)


def _pre_trim(meter: TemplateMeter, value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    methods.stripped(meter, str(value), _argument(args, named, 0, "chars", None))


_PRE: dict[str, Callable[[TemplateMeter, Any, tuple[Any, ...], dict[str, Any]], None]] = {
    "batch": _pre_batch,
    "center": _pre_center,
    "float": _pre_number,
    "format": _pre_format,
    "indent": _pre_indent,
    "int": _pre_number,
    "join": _pre_join,
    "replace": _pre_replace,
    "round": _pre_round,
    "slice": _pre_batch,
    "trim": _pre_trim,
    "urlencode": _pre_urlencode,
}


def _calling(function: Function) -> Callable[[Context, tuple[Any, ...], dict[str, Any]], Any]:
    """A uniform call of a filter that expects the context, the environment, the evaluation context or nothing
    as its first argument.
    """
    wants = _PassArg.from_obj(function)
    if wants is _PassArg.context:
        return lambda context, args, named: function(context, *args, **named)
    if wants is _PassArg.eval_context:
        return lambda context, args, named: function(context.eval_ctx, *args, **named)
    if wants is _PassArg.environment:
        return lambda context, args, named: function(context.environment, *args, **named)
    return lambda context, args, named: function(*args, **named)


def _guarded(name: str, function: Function) -> Function:
    call, pre, deep, sorts = _calling(function), _PRE.get(name), name not in _SHALLOW, name in _SORTS

    @pass_context
    def run(context: Context, value: Any = "", *args: Any, **named: Any) -> Any:
        meter = _meter(context)
        before = meter.steps
        meter.tick()
        if deep:
            meter.grow(6 * meter.weigh(value))
        elif name in _ITERATES and hasattr(value, "__len__"):
            meter.tick(len(value))
        for arg in (*args, *named.values()):
            meter.weigh(arg)
        if name in _PATHS:
            _short_path(name, args, named)
        if pre is not None:
            pre(meter, value, args, named)
        if sorts:  # about log2(n) comparisons for each item
            meter.tick((meter.steps - before) * 16)
        if name in _SEEKS and args:
            args = _escaping(context).arguments(_SEEKS[name], str(value), args)
        elif name == "string":
            value = _escaping(context).printed(value)
        result = settle(meter, call(context, (value, *args), named))
        return _escaping(context).rewritten(value, result) if name in _REWRITES else result

    return run


def _short_path(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    path = named.get("attribute", args[0] if args and name != "join" else None)
    if isinstance(path, str) and len(path) > _MAX_NAME:
        raise LimitReached(f"gives filter '{name}' an attribute of {len(path):,} characters")


def _guarded_test(name: str, function: Function) -> Function:
    @pass_context
    def run(context: Context, value: Any, *args: Any) -> Any:
        if name == "in" and args and isinstance(args[0], dict):
            _pay_compare(_meter(context), "in", value, args[0])
        else:
            for part in (value, *args):
                _meter(context).weigh(part)
        if name in _SAME_TESTS and args:
            return _COMPARISONS["eq" if _SAME_TESTS[name] else "ne"](value, args[0], _escaping(context))
        if name == "in" and args:
            return _COMPARISONS["in"](value, args[0], _escaping(context))
        return function(value, *args)

    return run


@pass_context
def _total(context: Context, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    """Jinja's `sum` with every addition metered, because summing lists takes quadratic time."""
    if attribute is not None:
        value = context.environment.call_filter("map", value, [], {"attribute": attribute}, context)
    for item in value:
        start = context.environment.call_binop(context, "+", start, item)  # type: ignore[attr-defined]
    return start


@pass_context
def to_json(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escaping, no ASCII escaping, keys in
    their order.
    """
    meter = _meter(context)
    before = meter.steps
    weight = meter.weigh(value)
    step = indent if isinstance(indent, int) else len(indent or "")
    glue = sum(map(len, separators)) if separators else 0
    if step > 64 or glue > 64:
        raise LimitReached("indents or separates JSON with more than 64 characters")
    meter.grow(6 * weight + (meter.steps - before) * (meter.limits.depth * max(step, 0) + glue))
    settled = value if isinstance(value, (dict, list, tuple, str)) else settle(meter, value)
    text = json.dumps(
        settled, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _escaping(context).ascii_json(text) if ensure_ascii else text


def _pay_compare(meter: TemplateMeter, op: str, left: Any, right: Any) -> None:
    if op in ("in", "notin") and isinstance(right, dict):
        if isinstance(left, tuple):
            meter.weigh(left)
        meter.tick()
    else:
        meter.weigh(left)
        meter.weigh(right)


@pass_context
def _compare(context: Context, left: Any, *terms: Any) -> Any:
    """`left op right [op right ...]`; terms alternate operator names and values."""
    meter, result = _meter(context), True
    for op, right in zip(terms[::2], terms[1::2], strict=True):
        _pay_compare(meter, op, left, right)
        result = _COMPARISONS[op](left, right, _escaping(context))
        if not result:
            break
        left = right
    return result


@pass_context
def _slice(context: Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    if isinstance(value, (str, list, tuple)):
        count = len(range(*slice(start, stop, step).indices(len(value))))
        _meter(context).grow(*((count, 0) if isinstance(value, str) else (0, count)))
    return value[start:stop:step]


@pass_context
def _concat(context: Context, *values: Any) -> str:
    meter = _meter(context)
    meter.grow(sum(map(meter.weigh, values)))
    return "".join(str(_escaping(context).printed(value)) for value in values)


class _Each:
    """The iterable of a `for` loop, with every pass metered."""

    __slots__ = ("_cost", "_items", "_meter")

    def __init__(self, meter: TemplateMeter, items: Any, cost: int) -> None:
        self._meter, self._items, self._cost = meter, items, cost

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        tick, cost = self._meter.tick, self._cost
        for item in self._items:
            tick(cost)
            yield item


@pass_context
def each(context: Context, value: Any, cost: int = 1) -> Any:
    """Wraps a loop's iterable so that each pass pays `cost` steps. TypeError where it is not iterable."""
    if isinstance(value, Undefined):
        return ()
    if not hasattr(value, "__len__"):
        value = settle(_meter(context), value)
    iter(value)
    return _Each(_meter(context), value, cost)


@pass_context
def _step(context: Context, cost: int) -> str:
    _meter(context).tick(cost)
    return ""


@pass_context
def _weighed(context: Context, value: Any) -> Any:
    _meter(context).weigh(value)
    return value


@pass_context
def _spread(context: Context, value: Any) -> Any:
    if hasattr(value, "__len__"):
        _meter(context).grow(elements=len(value))
    return value


def filters() -> dict[str, Function]:
    """Every filter that a template may use, and the hooks of tree.py."""
    table = {name: _guarded(name, function) for name, function in FILTERS.items() if name not in _LEFT_OUT}
    hooks: dict[str, Function] = {
        tree.COMPARE: _compare,
        tree.SLICE: _slice,
        tree.CONCAT: _concat,
        tree.EACH: each,
        tree.STEP: _step,
        tree.SPREAD: _spread,
        tree.KEY: _weighed,
    }
    return {**table, **hooks, "sum": _total, "tojson": to_json}


def tests() -> dict[str, Function]:
    """Jinja's tests. Those that read the parts of a value pay for them."""
    return {n: _guarded_test(n, f) if n in _DEEP_TESTS else f for n, f in TESTS.items()}
