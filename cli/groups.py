"""Groups of options: a frozen dataclass of annotated fields that several commands share. A field may
stand for many options that are derived from a definition of the library.

`with_options` gives a command one parameter per field and hands it the group whole, checked by the group.
`flags_of` gives a group a field for each flag that a definition of request options states.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import typer

from satchel.cli.absent import absent_options
from satchel.cli.usage import UsageError
from satchel.errors import RequestError
from satchel.runtime.request_option import RequestOption, options_of

T = TypeVar("T")
Command = Callable[..., int | None]


def option(
    *names: str,
    help: str,
    env: str = "",
    metavar: str | None = None,
    min: float | None = None,
    max: float | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """An option; env X is read from SATCHEL_X and LLAMA_ARG_X. parser: makes its value of the text."""
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
    """The error of an option's value: exit code 2."""
    return UsageError(f"{name}: {text}")


def flags_of(definition: type) -> Callable[[type[T]], type[T]]:
    """Decorates a group, below @dataclass: it gets a field for each option of the definition with a flag."""

    def add(group: type[T]) -> type[T]:
        flagged = _flagged(definition)
        for name, one in flagged.items():
            setattr(group, name, _default(one))
        derived = {
            name: Annotated[one.kind, option(*one.flags, env=one.env, help=one.doc)]
            for name, one in flagged.items()
        }
        group.__annotations__ = {**derived, **group.__annotations__}
        return group

    return add


def flag_values(group: object, definition: type) -> dict[str, Any]:
    """Values of the definition's options that the group's flags give. UsageError for one out of range."""
    values = {name: one.read(getattr(group, name)) for name, one in _flagged(definition).items()}
    for name, one in _flagged(definition).items():
        try:
            one.check(values[name])
        except RequestError as error:
            raise wrong(one.flags[0], str(error)) from None
    return values


def _flagged(definition: type) -> dict[str, RequestOption]:
    return {name: one for name, one in options_of(definition).items() if one.flags}


def _default(one: RequestOption) -> Any:
    """The flag's default: where the option's is None, what stands for None."""
    if one.default is not None:
        return one.default
    return next(value for value, meant in one.also.items() if meant is None)


class Parameter(NamedTuple):
    """A parameter of a command, as typer reads it."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True, slots=True)
class Taking:
    """What a command takes of a group of options: `Annotated[Group, Taking(...)]`; without it, the whole.

    without: fields that it lacks, which keep their defaults. groups, defaults: of options that are derived.
    """

    without: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


class Derived(Protocol):
    """What marks a field of a group, `Annotated[type, derived]`, that stands for derived parameters."""

    def parameters(self, taking: Taking) -> Iterator[Parameter]: ...

    def made(self, values: Mapping[str, Any], taking: Taking) -> Any: ...


@dataclass(frozen=True, slots=True)
class Group:
    """A group of options as a command takes it; `name` is the command's parameter."""

    name: str
    kind: Any
    taking: Taking

    def parameters(self) -> Iterator[Parameter]:
        """One for each field, and those of derived fields. Their names begin with the group's."""
        hints = typing.get_type_hints(self.kind, include_extras=True)
        for f in self._fields():
            if derived := _derived(hints[f.name]):
                for p in derived.parameters(self.taking):
                    yield p._replace(name=f"{self.name}_{p.name}")
            else:
                yield Parameter(f"{self.name}_{f.name}", hints[f.name], f.default)

    def made(self, values: dict[str, Any]) -> Any:
        """The group of its parameters' values, which are taken out of `values`."""
        hints, found = typing.get_type_hints(self.kind, include_extras=True), {}
        for f in self._fields():
            if derived := _derived(hints[f.name]):
                names = [p.name for p in derived.parameters(self.taking)]
                own = {name: values.pop(f"{self.name}_{name}") for name in names}
                found[f.name] = derived.made(own, self.taking)
            else:
                found[f.name] = values.pop(f"{self.name}_{f.name}")
        return self.kind(**found)

    def _fields(self) -> Iterator[Field[Any]]:
        return (f for f in fields(self.kind) if f.name not in self.taking.without)


def with_options(command: Command) -> Command:
    """The command with a parameter for each field of its groups, and a refusal for each absent option."""
    hints = typing.get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    groups = {name: made for name in signature.parameters if (made := _group(name, hints[name]))}
    flat = list(_flat(signature, hints, groups))
    taken = {name for p in flat for extra in p.annotation.__metadata__ for name in _names(extra)}
    absent = [Parameter(*p) for p in absent_options(taken)]

    @functools.wraps(command)
    def wrapper(**values: Any) -> int | None:
        for p in absent:
            del values[p.name]
        for name, group in groups.items():
            values[name] = group.made(values)
        return command(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(p.name, keyword, default=p.default, annotation=p.annotation)
        for p in (*flat, *absent)
    ]
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in (*flat, *absent)}
    del wrapper.__wrapped__
    return wrapper


def _group(name: str, hint: Any) -> Group | None:
    """The group that a command's parameter stands for; None for an ordinary one."""
    kind, extras = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", ())
    if not is_dataclass(kind):
        return None
    return Group(name, kind, next((e for e in extras if isinstance(e, Taking)), Taking()))


def _flat(
    signature: inspect.Signature, hints: dict[str, Any], groups: dict[str, Group]
) -> Iterator[Parameter]:
    """The command's own parameters, and in the place of a group those of its fields."""
    for name, parameter in signature.parameters.items():
        if name in groups:
            yield from groups[name].parameters()
        else:
            yield Parameter(name, hints[name], parameter.default)


def _derived(hint: Any) -> Derived | None:
    return next((e for e in getattr(hint, "__metadata__", ()) if hasattr(e, "made")), None)


def _names(extra: Any) -> list[str]:
    declared = (getattr(extra, "default", None), *(getattr(extra, "param_decls", None) or ()))
    return [part for text in declared if isinstance(text, str) for part in text.split("/")]
