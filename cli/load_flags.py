"""The flags of load options, derived from the fields of Options: a group of options has them as one field.

load: Annotated[Options, LoadFlags()] = DEFAULTS
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from satchel.cli.groups import Parameter, Taking, option, wrong
from satchel.errors import RequestError
from satchel.runtime.api.options import Options
from satchel.runtime.load_option import MODEL, LoadField, load_fields, with_values

DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """Flags of the fields of `options`, whose values are the defaults. A command has the flags of the group
    MODEL; Taking names the other groups that it has, the fields that it lacks, and defaults of its own.
    """

    options: Options = DEFAULTS

    def parameters(self, taking: Taking) -> Iterator[Parameter]:
        for f in self._fields(taking):
            yield Parameter(f.name, *_declared(f, taking.defaults.get(f.name, f.default)))

    def made(self, values: Mapping[str, Any], taking: Taking) -> Options:
        """The options of what the flags were given. UsageError names the flag whose value is wrong."""
        found = {}
        for f in self._fields(taking):
            try:
                found[f.name] = _value(f, values[f.name])
            except RequestError as error:
                raise wrong(f.option.flags[0].partition("/")[0], str(error)) from None
        return with_values(self.options, found)

    def _fields(self, taking: Taking) -> list[LoadField]:
        groups = (MODEL, *taking.groups)
        return [
            f
            for f in load_fields(self.options)
            if f.option.flags and f.option.group in groups and f.name not in taking.without
        ]


def _declared(f: LoadField, default: Any) -> tuple[Any, Any]:
    """Annotation and default of the field's parameter. A field of several values is a flag to repeat."""
    declared = f.option
    several = isinstance(default, tuple)
    if declared.flag_type:
        default = declared.flag_type(default)
    kind = list[str] | None if several else type(default)
    made = option(
        *declared.flags, env=declared.env, metavar=declared.metavar, help=declared.help or declared.doc
    )
    return Annotated[kind, made], None if several else default


def _value(f: LoadField, given: Any) -> Any:
    """What the flag was given as the option has it, checked."""
    if given is None or (isinstance(f.default, tuple) and not given):
        return f.default
    value = f.option.from_flag(given) if f.option.from_flag else given
    value = tuple(value) if isinstance(f.default, tuple) else value
    f.option.check_value(f.name, value)
    return value
