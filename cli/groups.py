"""Groups of options: a frozen dataclass of annotated fields that several commands share.

`with_options` gives a command one parameter per field and hands it the group whole, checked by the group.
`flags_of` gives a group a field for each flag that a definition of request options states.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar

import typer

from satchel.cli.absent import absent_options
from satchel.cli.main import UsageError
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


def with_options(command: Command) -> Command:
    """The command with a parameter for each field of its groups, and a refusal for each absent option."""
    hints = typing.get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    groups = {name: hints[name] for name in signature.parameters if is_dataclass(hints[name])}
    flat = list(_flat(signature, hints, groups))
    taken = {name for _, hint, _ in flat for extra in hint.__metadata__ for name in _names(extra)}
    absent = list(absent_options(taken))

    @functools.wraps(command)
    def wrapper(**values: Any) -> int | None:
        for name, _, _ in absent:
            del values[name]
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f"{name}_{f.name}") for f in fields(group)})
        return command(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, keyword, default=d, annotation=a) for n, a, d in (*flat, *absent)]
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {name: hint for name, hint, _ in (*flat, *absent)}
    del wrapper.__wrapped__
    return wrapper


def _flat(
    signature: inspect.Signature, hints: dict[str, Any], groups: dict[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """(name, annotation, default) of each parameter; those of a group carry its name in front."""
    for name, parameter in signature.parameters.items():
        if name not in groups:
            yield name, hints[name], parameter.default
            continue
        inner = typing.get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            yield f"{name}_{field.name}", inner[field.name], field.default


def _names(extra: Any) -> list[str]:
    declared = (getattr(extra, "default", None), *(getattr(extra, "param_decls", None) or ()))
    return [part for text in declared if isinstance(text, str) for part in text.split("/")]
