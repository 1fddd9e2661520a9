"""Compiles a template once and runs it in a new sandbox each time, so that threads share no mutable state.

Invariant: only methods of plain values, macros and the helpers named here can be called, and every result is
metered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from string import Formatter
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, Undefined, pass_context
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import LoopControlExtension
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace

from satchel.errors import ModelError, RequestError
from satchel.formats.template import methods
from satchel.formats.template.escaping import Escaping
from satchel.formats.template.filters import each, filters, settle, tests
from satchel.formats.template.limits import LimitReached, TemplateLimits, TemplateMeter
from satchel.formats.template.tree import Metered, ParseLimits, check, loaded, strings

_FILTERS, _TESTS = filters(), tests()
_DATE = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*")
_BAD_NUMBER = "a number or a string in it can't be read"
_MAX_FIELD = 256  # characters in the braces of str.format
_TOO_DEEP = "blocks or expressions nest too deeply"


class Raised(TemplateError):
    """The template refused the conversation by raise_exception."""


def raise_exception(message: object = "") -> None:
    """The template function that refuses a conversation."""
    raise Raised(str(message))


class _Namespace(Namespace):
    """Jinja's namespace without private names. Printing it does not print its values."""

    def __init__(*args: Any, **named: Any) -> None:
        self, attrs = args[0], dict(*args[1:], **named)
        for name in attrs:
            _public(name)
        Namespace.__init__(self, attrs)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _public(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace can't hold {name!r}")


class _Dict:
    """The global `dict` as a plain callable: the class itself would expose attributes."""

    def __call__(*args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args[1:], **named)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Format(Formatter):
    """`str.format` of one string, with the sandbox's attribute access and bounded field widths."""

    def __init__(self, sandbox: TemplateSandbox, text: str) -> None:
        self._sandbox, self._text = sandbox, text

    def __call__(self, *args: Any, **named: Any) -> str:
        self._sandbox.meter.tick(1 + (len(self._text) >> 2))
        return self.vformat(self._text, args, named)

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        if len(field_name) > _MAX_FIELD:
            raise LimitReached(f"formats a field name of {len(field_name):,} characters")
        first = re.split(r"[.\[]", field_name, maxsplit=1)[0]
        obj = self.get_value(int(first) if first.isdigit() else first, args, kwargs)
        for attribute, item in re.findall(r"\.([^.\[]+)|\[([^\]]+)\]", field_name):
            if attribute:
                obj = self._sandbox.getattr(obj, attribute)
            else:
                obj = self._sandbox.getitem(obj, int(item) if item.isdigit() else item)
        return obj, first

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._sandbox.meter.grow(6 * self._sandbox.meter.weigh(value))
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        meter = self._sandbox.meter
        meter.grow(6 * meter.weigh(value) + methods.spec_width(format_spec))
        text: str = super().format_field(value, format_spec)
        return text


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of one rendering, or of compiling (with a meter whose clock stands still)."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(
        self,
        meter: TemplateMeter,
        now: Callable[[], datetime] = datetime.now,
        escape: Callable[[str], str] | None = None,
        cost: int = 1,
        own: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            cache_size=0,
            finalize=_finalize,
            extensions=(ParseLimits, LoopControlExtension),
        )
        self.meter, self.limits, self._now, self._cost = meter, meter.limits, now, cost
        self.escaping = Escaping(escape, own)
        self.filters, self.tests = _FILTERS, _TESTS
        self.globals = {
            "range": safe_range,
            "dict": _Dict(),
            "cycler": Cycler,
            "joiner": Joiner,
            "namespace": _Namespace,
            "raise_exception": raise_exception,
            "strftime_now": self._strftime_now,
        }
        self._helpers = frozenset(map(id, self.globals.values()))

    def _strftime_now(self, pattern: str) -> str:
        if not isinstance(pattern, str):
            raise TypeError(f"strftime_now wants a format string, got {type(pattern).__name__}")
        if len(pattern) > 256 or not _DATE.fullmatch(pattern):
            raise ValueError("strftime_now wants a short format such as '%d %b %Y'")
        return self._now().strftime(pattern)

    def wrap_str_format(self, value: Any) -> Any:
        if not isinstance(value, (MethodType, BuiltinMethodType)) or value.__name__ not in (
            "format",
            "format_map",
        ):
            return None
        owner = value.__self__
        if not isinstance(owner, str):
            return None
        maker = _Format(self, str(owner))
        return maker if value.__name__ == "format" else _FormatMap(maker)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some published templates use a list as a queue. Every list here is a copy made for this rendering.
        return (type(obj) is list and attr in ("append", "pop")) or super().is_safe_attribute(
            obj, attr, value
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Raises SecurityError for private names. A method that changes a list or dict is undefined, as in
        Jinja's own immutable sandbox.
        """
        if attribute.startswith("_"):
            raise SecurityError(
                f"attribute {attribute!r} of {type(obj).__name__} is out of reach in a chat template"
            )
        return super().unsafe_undefined(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            self.meter.weigh(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _ARITHMETIC[operator](self.meter, left, right)
        return self.binop_table[operator](left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self, obj = __self, __obj
        self.meter.tick(1 + len(args) + len(kwargs))
        if type(obj) is BuiltinMethodType or (type(obj) is MethodType and isinstance(obj.__self__, str)):
            return self._call_method(obj, args, kwargs)
        if isinstance(obj, (Macro, LoopContext)):
            return self._call_deeper(__context, obj, args, kwargs)
        if not (isinstance(obj, (Undefined, _Format, _FormatMap, Joiner)) or id(obj) in self._helpers):
            _known_method(obj)
        for arg in args:
            self.meter.weigh(arg)
        return self.meter.made(super().call(__context, obj, *args, **kwargs))

    def _call_method(
        self, method: BuiltinMethodType | MethodType, args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        owner, name = method.__self__, method.__name__
        pay = methods.METHODS.get(str if isinstance(owner, str) else type(owner), {}).get(name)
        if pay is None:
            raise SecurityError(f"{type(owner).__name__}.{name} can't be called in a chat template")
        named = {k: v for k, v in named.items() if k not in ("_loop_vars", "_block_vars")}
        pay(self.meter, owner, (*args, *named.values()))
        if not isinstance(owner, str):
            return self.meter.made(method(*args, **named))
        args = self.escaping.arguments(name, owner, args)
        result = self.meter.made(method(*args, **named))
        return self.escaping.rewritten(owner, result) if name in methods.REWRITES else result

    def _call_deeper(self, context: Context, obj: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if isinstance(obj, LoopContext) and args:
            args = (each(context, args[0], self._cost), *args[1:])
        self.meter.enter()
        try:
            return self.meter.made(super().call(context, obj, *args, **named))
        finally:
            self.meter.leave()


_OWN_METHODS = {LoopContext: ("cycle", "changed"), Cycler: ("next", "reset"), _Dict: ("fromkeys",)}


def _known_method(obj: Any) -> None:
    """Raises SecurityError unless `obj` is an allowed method of Jinja's helpers."""
    owner = type(obj.__self__) if isinstance(obj, MethodType) else None
    if owner is None or obj.__name__ not in _OWN_METHODS.get(owner, ()):
        raise SecurityError(f"{type(obj).__name__} can't be called in a chat template")


class _FormatMap:
    def __init__(self, maker: _Format) -> None:
        self._maker = maker

    def __call__(self, mapping: Mapping[str, Any]) -> str:
        return self._maker(**mapping)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Meters all output (of `{{ }}` and the text between) before it is converted to text or buffered by a
    macro.
    """
    meter: TemplateMeter = context.environment.meter  # type: ignore[attr-defined]
    if isinstance(value, str):
        meter.grow(len(value))
        return value
    value = settle(meter, value)
    meter.grow(6 * meter.weigh(value))
    return context.environment.escaping.printed(value)  # type: ignore[attr-defined]


def _pay_add(meter: TemplateMeter, left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        plain = type(left) is type(right) is str  # else one side is escaped for HTML first
        meter.grow((1 if plain else 6) * (len(left) + len(right)))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        meter.grow(elements=len(left) + len(right))
    else:
        _pay_number(meter, left, right)


def _pay_number(meter: TemplateMeter, left: Any, right: Any) -> None:
    for number in (left, right):
        if isinstance(number, int):
            meter.integer(number.bit_length())
    meter.tick()


def _pay_sub(meter: TemplateMeter, left: Any, right: Any) -> None:
    if hasattr(left, "__len__"):  # keys() - [...]
        meter.grow(elements=2 * (len(left) + (len(right) if hasattr(right, "__len__") else 0)))
        meter.weigh(left)
        meter.weigh(right)
    _pay_number(meter, left, right)


def _pay_mul(meter: TemplateMeter, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        meter.integer(left.bit_length() + right.bit_length())
    for items, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(items, str):
            meter.grow((1 if type(items) is str else 6) * len(items) * times)
        elif isinstance(times, int) and isinstance(items, (list, tuple)):
            meter.grow(elements=len(items) * times)


def _pay_mod(meter: TemplateMeter, left: Any, right: Any) -> None:
    if isinstance(left, str):
        methods.printf(meter, left, right)
    else:
        _pay_number(meter, left, right)


def _pay_pow(meter: TemplateMeter, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
        meter.integer(left.bit_length() * max(right, 1))
    _pay_number(meter, left, right)


_ARITHMETIC: dict[str, Callable[[TemplateMeter, Any, Any], None]] = {
    "+": _pay_add,
    "-": _pay_sub,
    "*": _pay_mul,
    "/": _pay_number,
    "//": _pay_number,
    "%": _pay_mod,
    "**": _pay_pow,
}


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A compiled template."""

    name: str  # for error messages
    source: str
    code: CodeType
    names: frozenset[str]  # variables that it reads
    strings: frozenset[str]  # its string constants
    limits: TemplateLimits

    def run(
        self,
        variables: Mapping[str, Any],
        nodes: int,
        characters: int,
        now: Callable[[], datetime] = datetime.now,
        escape: Callable[[str], str] | None = None,
    ) -> str:
        """Renders the template. RequestError with the line number where it fails; LimitReached where it
        exceeds a limit.
        """
        size = len(self.source) + characters
        meter = TemplateMeter(self.limits, nodes, size)
        sandbox = TemplateSandbox(meter, now, escape, 1 + len(self.source) // 64, self.strings)
        template = Template.from_code(sandbox, self.code, sandbox.globals)
        pieces: list[str] = []
        room = self.limits.ratio * size
        limited = False
        try:
            for piece in template.root_render_func(template.new_context(dict(variables))):
                pieces.append(piece)
                room -= len(piece)
                if room < 0:
                    raise LimitReached(
                        f"wrote more than {self.limits.ratio} characters for each it was given"
                    )
            return "".join(pieces)
        except Exception as error:  # a template can raise whatever Python's operators raise
            limited = isinstance(error, LimitReached)
            message = f"{self.name} line {_line(error, template)}: {_reason(error)}"
        # Raised outside of `except`: as its context, the failed frames and their values would stay alive.
        raise LimitReached(message) if limited else RequestError(message)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, MemoryError):
        return "ran out of memory"
    text = str(error).split("\n", 1)[0]
    if isinstance(error, Raised):
        return f"the template refuses this conversation: {text}"
    if isinstance(error, (LimitReached, TemplateError)):
        return text
    return f"{text} ({type(error).__name__})"


def _line(error: BaseException, template: Template) -> int:
    """The line number in the template of the innermost frame of its code."""
    line, frame = 1, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(frame.tb_lineno)
        frame = frame.tb_next
    return line


def compile_source(source: str, name: str, limits: TemplateLimits) -> CompiledTemplate:
    """Checks and compiles a template. ModelError with the line number for an invalid one."""
    if len(source) > limits.source:
        raise ModelError(f"{name}: {len(source):,} characters, at most {limits.source:,} are read")
    sandbox = TemplateSandbox(TemplateMeter(limits, 0, 0, clock=lambda: 0.0))
    try:
        tree = sandbox.parse(source)
        check(tree, limits)
        names, constants = loaded(tree), strings(tree)
        code = sandbox.compile(Metered().visit(tree))
        return CompiledTemplate(name, source, code, names, constants, limits)
    except TemplateSyntaxError as error:
        message = f"{name} line {error.lineno}: {error.message}"
    except (RecursionError, MemoryError, SyntaxError, ValueError, UnicodeError) as error:
        message = f"{name}: {_BAD_NUMBER if isinstance(error, ValueError) else _TOO_DEEP}"
    raise ModelError(message)
