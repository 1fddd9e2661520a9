"""How a load option is declared: one field of `Options` has its default, documentation, bounds and flags.

The rest is derived from the field: the check of its value, `help(Options)`, the flags of the commands, and
the keys of a server's [models.NAME].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import isfinite
from typing import Any, TypeVar, get_type_hints

from satchel.errors import RequestError
from satchel.runtime.option_docs import with_docs

T = TypeVar("T")
KEY = "load option"  # in a field's metadata
MODEL, WORKER, PARALLEL, SERVER = "model", "worker", "parallel", "server"  # groups of flags


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOption:
    """doc: what the option does, in a sentence. least, above, most: bounds of a number; `above` is exclusive.
    choices: the allowed values. check: raises RequestError for a value that cannot be read.

    flags: names on the command line; () for an option of the library alone. help: their help, where doc does
    not fit. env: X of SATCHEL_X and LLAMA_ARG_X. from_flag: makes the value of what a flag was given, which
    has the type `flag_type`, by default that of the option's default. group: a command takes the flags of
    MODEL, and those of another group if it names the group. in_table: whether [models.NAME] takes the option.
    """

    doc: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[Any, ...] = ()
    check: Callable[[Any], object] | None = None
    flags: tuple[str, ...] = ()
    help: str = ""
    env: str = ""
    metavar: str | None = None
    from_flag: Callable[[Any], Any] | None = None
    flag_type: type | None = None
    group: str = MODEL
    in_table: bool = True

    def check_value(self, name: str, value: Any) -> None:
        """RequestError says which value was expected and which one was found."""
        allowed = not self.choices or value in self.choices
        if not allowed or not self._within_bounds(value):
            raise RequestError(f"{name} is {value!r}: expected {self.expected}")
        if self.check is not None:
            self.check(value)

    def _within_bounds(self, value: Any) -> bool:
        if self.least is None and self.above is None and self.most is None:
            return True
        return (
            isinstance(value, int | float)
            and (isinstance(value, int) or isfinite(value))
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    @property
    def expected(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return f"one of {', '.join(str(c) for c in self.choices if c != '')}"
        if self.above is not None:
            return f"more than {self.above}"
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class LoadField:
    """A load option with its name and default. inside: the field of `Options` that holds it, "" for none."""

    name: str
    default: Any
    option: LoadOption
    inside: str = ""


def load_option(default: T, **declared: Any) -> T:
    """A dataclass field for a load option; `declared` are the fields of LoadOption."""
    made: T = field(default=default, metadata={KEY: LoadOption(**declared)})
    return made


def load_fields(kind: Any, inside: str = "") -> Iterator[LoadField]:
    """The load options of a dataclass or of an instance, in order. A field whose default is a dataclass of
    load options, such as `limits`, gives the fields of that one.
    """
    for f in fields(kind):
        option = f.metadata.get(KEY)
        if option is None:
            continue
        default = getattr(kind, f.name, f.default) if not isinstance(kind, type) else f.default
        if _holds_options(default):
            yield from load_fields(default, f.name)
        else:
            yield LoadField(f.name, default, option, inside)


def value_types(kind: type) -> dict[str, Any]:
    """The type of each load option of a dataclass, by name."""
    found = get_type_hints(kind)
    for f in fields(kind):
        if _holds_options(f.default):
            found |= value_types(type(f.default))
    return found


def check_options(options: Any) -> None:
    """RequestError for the first value that its declaration does not allow."""
    for f in fields(options):
        option = f.metadata.get(KEY)
        if option is not None:
            option.check_value(f.name, getattr(options, f.name))


def with_values(options: T, values: Mapping[str, Any]) -> T:
    """The options with these values, by names of load_fields(), and checked."""
    own: dict[str, Any] = {}
    held: dict[str, dict[str, Any]] = {}
    for f in load_fields(options):
        if f.name in values:
            f.option.check_value(f.name, values[f.name])
            (held.setdefault(f.inside, {}) if f.inside else own)[f.name] = values[f.name]
    own |= {name: replace(getattr(options, name), **inner) for name, inner in held.items()}
    return replace(options, **own)  # type: ignore[type-var]


def documented(kind: type[T]) -> type[T]:
    """A class decorator: the docstring gets a line for each load option."""
    docs = {f.name: f.metadata[KEY].doc for f in fields(kind) if KEY in f.metadata}  # type: ignore[arg-type]
    return with_docs(kind, docs)


def _holds_options(value: Any) -> bool:
    return is_dataclass(value) and any(KEY in f.metadata for f in fields(value))
