"""Groups of options that several commands share: frozen dataclasses with annotated fields.

`with_options` gives a command one parameter per field, and passes it the group as one object, which checks
itself.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import typer

from satchel.cli.absent import absent_options
from satchel.cli.main import UsageError

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
    """A typer option. env: X is read from SATCHEL_X and LLAMA_ARG_X. parser: converts the text
    to the value.
    """
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
    """(name, annotation, default) of each parameter; those of a group are prefixed with its name."""
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
