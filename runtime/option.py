"""An option is one dataclass field, made by `option_field`: default, documentation, range, flag and names.

Load options are the fields of `Options`, `SchedulerLimits` and `Speculation`, request options those of
`GenerateOptions` and `Sampling`, the server's options those of `ServerSettings`. This module checks their
values and completes the docstrings. cli/groups.py derives the flags, server/catalog.py the keys of
[models.NAME], and server/fields.py the fields of request bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import inf
from numbers import Real
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from satchel.errors import RequestError

T = TypeVar("T")
NUMBER = (int, float, Real)  # Real alone, which numpy's numbers are too, takes five times as long
# Groups of flags that only some commands have.
PARALLEL, WORKER, SERVER, REPLICAS = "parallel", "worker", "server", "replicas"

_hints = cache(get_type_hints)
_options: dict[type, Mapping[str, Option]] = {}  # by definition


class OptionError(RequestError):
    """A value that an option refuses. A command names the option's flag in front of the text."""

    def __init__(self, text: str, option: Option) -> None:
        super().__init__(text)
        self.option = option


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The declaration of an option. `option_field` takes all fields but the first four."""

    name: str
    default: Any
    owner: type  # the dataclass that has the field
    inside: str = ""  # the field that holds the owner, where an outer dataclass has the option as its own

    doc: str  # one sentence: the option's line in the docstring, the help and /openapi.json
    low: float = -inf  # the least allowed number
    high: float = inf  # the greatest allowed number
    above: float | None = None  # numbers must be greater than this one
    choices: tuple[Any, ...] = ()  # the allowed values
    check_value: Callable[[Any], object] | None = None  # raises RequestError for a value without a meaning

    flags: tuple[str, ...] = ()  # names on the command line
    env: str = ""  # X of SATCHEL_X and LLAMA_ARG_X, where it differs from the first long flag
    help: str = ""  # text of `--help`, where the flag has another unit than `doc` says
    metavar: str | None = None
    group: str = ""  # only commands that name the group have the flags; "": every command has them
    flag_default: Any = None  # the flag's default, where it is written otherwise than `default`
    parse: Callable[[Any], Any] | None = None  # converts what a flag or a body gives
    also: Mapping[Any, Any] = field(default_factory=dict)  # further values of flags and bodies: {-1: 0}

    body: tuple[str, ...] = ()  # names in request bodies, the documented one first; True: the field's name
    in_table: bool = True  # whether [models.NAME] takes a load option

    @property
    def has_range(self) -> bool:
        return self.low > -inf or self.above is not None

    @property
    def unset(self) -> Any:
        """What a flag has where the user gives none; None where that cannot be written."""
        if self.flag_default is not None or self.default is not None:
            return self.default if self.flag_default is None else self.flag_default
        return next((written for written, meant in self.also.items() if meant is None), None)

    @property
    def kind(self) -> Any:
        """The type of the values that a flag or a body gives."""
        if self.unset is not None:
            return type(self.unset)
        return next(t for t in get_args(self.hint) if t is not NoneType)

    @property
    def hint(self) -> Any:
        """The type of the field."""
        return _hints(self.owner)[self.name]

    @property
    def variable(self) -> str:
        """X of the environment variables SATCHEL_X and LLAMA_ARG_X."""
        long = next(name for name in self.flags if name.startswith("--"))
        return self.env or long.partition("/")[0].removeprefix("--").replace("-", "_").upper()

    def read(self, given: Any) -> Any:
        """The option's value of what a flag or a body gives."""
        if self.parse is not None:
            return self._called(self.parse, given)
        return self.also.get(given, given) if self.also else given

    def check(self, value: Any) -> None:
        """Raises OptionError for a value that is no choice, out of range, or without a meaning."""
        if value is None and self.default is None:
            return
        if not self._allows(value):
            expected = f"expected {self.expected}; leave it out for the default"
            raise OptionError(f"{self.name} is {value!r:.60}: {expected}", self)
        if self.check_value is not None:
            self._called(self.check_value, value)

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if not self.has_range:
            return True
        is_number = isinstance(value, NUMBER)
        finite = is_number and -inf < value < inf  # NaN is not
        return finite and self.low <= value <= self.high and (self.above is None or value > self.above)

    def _called(self, function: Callable[[Any], T], value: Any) -> T:
        try:
            return function(value)
        except RequestError as error:
            raise OptionError(str(error), self) from None

    @property
    def expected(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return f"one of {', '.join(str(c) for c in self.choices if c != '')}"
        if self.above is not None:
            return f"more than {self.above}"
        return f"{self.low} or more" if self.high == inf else f"{self.low} to {self.high}"


def option_field(default: T, doc: str, *flags: str, **declared: Any) -> T:
    """A dataclass field that declares an option; `declared` are fields of Option."""
    made: T = field(default=default, metadata={"doc": doc, "flags": flags, **declared})
    return made


def options_of(definition: type) -> Mapping[str, Option]:
    """The options of a dataclass, by name, in order. A field that holds a dataclass of options, such as
    `Options.limits`, gives the options of that one.
    """
    if definition in _options:
        return _options[definition]
    found: dict[str, Option] = {}
    for f in fields(definition):
        if held := _held(f.default):
            found |= {name: replace(one, inside=f.name) for name, one in held.items()}
        elif "doc" in f.metadata:
            own_name = {"body": (f.name,)} if f.metadata.get("body") is True else {}
            declared = {**f.metadata, **own_name}
            found[f.name] = Option(name=f.name, default=f.default, owner=definition, **declared)
    _options[definition] = found
    return found


def _held(default: Any) -> Mapping[str, Option]:
    return options_of(type(default)) if hasattr(default, "__dataclass_fields__") else {}


def check_options(options: Any) -> None:
    """Raises OptionError for the first value that its option refuses. What an inner dataclass holds has been
    checked when that one was made.
    """
    for one in options_of(type(options)).values():
        if not one.inside:
            one.check(getattr(options, one.name))


def texts_of(name: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """The texts of an option that takes one text or several. Raises RequestError for anything else."""
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{name}: expected a text or a list of texts, got {given!r:.60}")
    return texts


def check_list(name: str, given: object, instead: str) -> None:
    """Raises RequestError for one text where a list of them is expected: its letters would be read."""
    if isinstance(given, str | bytes):
        raise RequestError(f"{name}: expected a list of texts, got the text {given!r:.60}; {instead}")


def with_values(options: T, values: Mapping[str, Any]) -> T:
    """The options with these values, by names of `options_of`. Their dataclass checks them."""
    parts: dict[str, dict[str, Any]] = {"": {}}
    for name, value in values.items():
        parts.setdefault(options_of(type(options))[name].inside, {})[name] = value
    own = parts.pop("")
    own |= {name: replace(getattr(options, name), **inner) for name, inner in parts.items()}
    return replace(options, **own)  # type: ignore[type-var]


def documented(definition: type[T]) -> type[T]:
    """Adds a line for each option to the docstring of a dataclass; python -OO has no docstring."""
    if definition.__doc__ is not None:
        docs = {f.name: f.metadata["doc"] for f in fields(definition) if f.metadata}  # type: ignore[arg-type]
        lines = (f"    {name}: {doc}" for name, doc in docs.items())
        definition.__doc__ = "\n".join((definition.__doc__.rstrip(), "", *lines))
    return definition
