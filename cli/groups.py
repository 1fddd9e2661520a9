"""Groups of command-line options: a frozen dataclass of annotated fields that several commands share.

`with_options` gives a command a parameter for each field and passes it the group as one value. A field whose
type declares options (runtime/option.py), such as `load: Options`, becomes a parameter for each option with a
flag.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, NamedTuple

import typer

from satchel.cli.usage import UsageError
from satchel.errors import RequestError
from satchel.runtime.option import Option, OptionError, options_of, with_values

Command = Callable[..., int | None]
LONGEST = 16  # characters of the choices that the help lists beside a flag


def option(
    *names: str,
    help: str,
    env: str = "",
    metavar: str | None = None,
    min: float | None = None,
    max: float | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """A flag of the command line. env: X of SATCHEL_X and LLAMA_ARG_X. parser: converts the flag's text."""
    variable = f"LLAMA_ARG_{env}" if env else None
    return typer.Option(
        *names,
        help=help,
        envvar=variable,
        show_envvar=False,
        metavar=metavar,
        min=min,
        max=max,
        parser=parser,
    )


def wrong(name: str, text: str) -> UsageError:
    """The error of a flag's value, which ends the command with exit code 2."""
    return UsageError(f"{name}: {text}")


class Parameter(NamedTuple):
    """A parameter of a command, as typer reads it."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True, slots=True)
class Taking:
    """The part of a group that a command takes: `Annotated[Group, Taking(...)]`."""

    without: tuple[str, ...] = ()  # fields and options that the command lacks, which keep their defaults
    groups: tuple[str, ...] = ()  # groups of options that the command has besides those of every command
    defaults: Mapping[str, Any] = field(default_factory=dict)  # the command's defaults of options, by name


@dataclass(frozen=True, slots=True)
class Given:
    """Marks a field with the values of those options of a dataclass whose flags the user gives, by name:
    `Annotated[Mapping[str, Any], Given(Sampling)]`. The flags have no defaults.
    """

    kind: type


class GroupField(NamedTuple):
    """A field of a group."""

    name: str
    hint: Any
    default: Any

    @property
    def given(self) -> type | None:
        """The dataclass of a field that is marked as Given."""
        extras = getattr(self.hint, "__metadata__", ())
        return next((extra.kind for extra in extras if isinstance(extra, Given)), None)

    @property
    def options(self) -> type | None:
        """The dataclass whose options the field holds; None for an ordinary field."""
        is_options = isinstance(self.hint, type) and is_dataclass(self.hint)
        return self.given or (self.hint if is_options else None)


@dataclass(frozen=True, slots=True)
class Group:
    """A group of options as a command takes it; `name` is the command's parameter."""

    name: str
    kind: Any
    taking: Taking

    @property
    def title(self) -> str:
        """The title of the group's options in `--help-all`: the first clause of the group's docstring."""
        return re.split(r"[.:;]", self.kind.__doc__ or "Options", maxsplit=1)[0]

    def parameters(self) -> Iterator[Parameter]:
        """A parameter for each field, or for each flag of a field that holds options."""
        for f in self._fields():
            if f.options is None:
                yield Parameter(self._parameter(f.name), f.hint, f.default)
            for one in self._flagged(f):
                default = None if f.given else self.taking.defaults.get(one.name, one.unset)
                yield _flag(self._parameter(one.name), one, default, shown=bool(f.given))

    def made(self, values: dict[str, Any]) -> Any:
        """The group with its parameters' values, which are removed from `values`."""
        found = {}
        for f in self._fields():
            if f.options is None:
                found[f.name] = values.pop(self._parameter(f.name))
                continue
            given = [(one, values.pop(self._parameter(one.name))) for one in self._flagged(f)]
            if f.given:
                given = [(one, value) for one, value in given if value is not None]
            made = _options(f.options(), given)
            found[f.name] = {one.name: getattr(made, one.name) for one, _ in given} if f.given else made
        return self.kind(**found)

    def _parameter(self, name: str) -> str:
        return f"{self.name}_{name}"

    def _fields(self) -> Iterator[GroupField]:
        hints = typing.get_type_hints(self.kind, include_extras=True)
        taken = (f for f in fields(self.kind) if f.name not in self.taking.without)
        return (GroupField(f.name, hints[f.name], f.default) for f in taken)

    def _flagged(self, f: GroupField) -> list[Option]:
        """The options that a field holds and the command takes; [] for an ordinary field."""
        if f.options is None:
            return []
        groups, without = ("", *self.taking.groups), self.taking.without
        declared = options_of(f.options).values()
        return [one for one in declared if one.flags and one.group in groups and one.name not in without]


def _flag(name: str, one: Option, default: Any, shown: bool = False) -> Parameter:
    """The parameter of an option's flag. An option of several values is a flag that may be repeated.

    shown: the help names the option's own default, which holds where neither the user nor the model's file
    gives another.
    """
    several = isinstance(default, tuple)
    kind = list[str] | None if several else one.kind if default is not None else one.kind | None
    text = one.help or one.doc
    if shown and one.unset is not None:
        text = f"{text}  [default: the model's, else {one.unset}]"
    declared = option(*one.flags, env=one.variable, metavar=one.metavar or _choices(one), help=text)
    return Parameter(name, Annotated[kind, declared], None if several else default)


def _choices(one: Option) -> str | None:
    """The allowed values as the help names them; None where they are many."""
    words = "|".join(str(choice) for choice in one.choices if choice != "")
    return words if words and len(words) <= LONGEST else None


def _options(base: Any, given: list[tuple[Option, Any]]) -> Any:
    """The options with the values of these flags. UsageError names the flag of a wrong value."""
    try:
        return with_values(base, {one.name: _value(one, value) for one, value in given})
    except OptionError as error:
        raise wrong(error.option.flags[0], str(error)) from None
    except RequestError as error:  # options that exclude each other
        raise UsageError(str(error)) from None


def _value(one: Option, given: Any) -> Any:
    if isinstance(one.default, tuple):
        return one.read(tuple(given)) if given else one.default
    return one.read(given)


def with_options(command: Command) -> Command:
    """The command with a parameter for each field of its groups."""
    hints = typing.get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    groups = {name: made for name in signature.parameters if (made := _group(name, hints[name]))}
    flat = list(_flat(signature, hints, groups))
    titles = {p.name: group.title for group in groups.values() for p in group.parameters()}

    @functools.wraps(command)
    def wrapper(**values: Any) -> int | None:
        for name, group in groups.items():
            values[name] = group.made(values)
        return command(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(p.name, keyword, default=p.default, annotation=p.annotation) for p in flat
    ]
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in flat}
    wrapper.sections = titles  # type: ignore[attr-defined]
    del wrapper.__wrapped__
    return wrapper


def _group(name: str, hint: Any) -> Group | None:
    """The group of a command's parameter; None for an ordinary parameter."""
    kind, extras = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", ())
    if not is_dataclass(kind):
        return None
    return Group(name, kind, next((e for e in extras if isinstance(e, Taking)), Taking()))


def _flat(
    signature: inspect.Signature, hints: dict[str, Any], groups: dict[str, Group]
) -> Iterator[Parameter]:
    """The command's parameters, a group replaced by the parameters of its fields."""
    for name, parameter in signature.parameters.items():
        if name in groups:
            yield from groups[name].parameters()
        else:
            yield Parameter(name, hints[name], parameter.default)
