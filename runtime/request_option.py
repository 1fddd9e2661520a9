"""Definition of a request option: a field of Sampling or GenerateOptions with its type, default,
documentation, range, command-line flags and names in bodies of requests.

Everything else that knows the option is derived from the field: the docstring and the range check here, the
flags in cli/groups.py (`flags_of`), the bodies' fields in server/fields.py (`body_fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from math import inf
from typing import Any, TypeVar

from satchel.errors import RequestError
from satchel.runtime.option_docs import with_docs

T = TypeVar("T")
KEY = "request option"  # of a field's metadata
TYPES = {"bool": bool, "int": int, "float": float, "str": str}

_options: dict[type, Mapping[str, RequestOption]] = {}  # by definition


@dataclass(frozen=True, slots=True)
class RequestOption:
    """One option. kind: the type of its values, None where no flag and no body takes it as it is.

    low, high: the range of numbers, both ends included; above: an end that is not. choices: the values of a
    text. flags: names on the command line, where env X stands for SATCHEL_X and LLAMA_ARG_X. body: names in
    the bodies of requests, the documented one first. also: further values of flags and bodies, and what
    they stand for.
    """

    name: str
    kind: type | None
    default: Any
    doc: str
    low: float = -inf
    high: float = inf
    above: float | None = None
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    env: str = ""
    body: tuple[str, ...] = ()
    also: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def has_range(self) -> bool:
        return self.low > -inf or self.above is not None

    @property
    def lowest(self) -> float:
        """The least value that a flag or a body may have."""
        return min(self.low, *self.also) if self.also else self.low

    def read(self, value: Any) -> Any:
        """The option's value of what a flag or a body has."""
        return self.also.get(value, value) if self.also else value

    def check(self, value: Any) -> None:
        """RequestError for a value that is no choice or outside of the range, as NaN is."""
        if value is None:
            return
        if self.choices and value not in self.choices:
            raise RequestError(f"{self.name} is {value!r}: expected one of {', '.join(self.choices)}")
        if self.above is not None and not value > self.above:
            raise RequestError(f"{self.name} is {value}: it must be more than {self.above}")
        if self.has_range and not self.low <= value <= self.high:
            within = f"lie between {self.low} and {self.high}"
            expected = f"be {self.low} or more" if self.high == inf else within
            raise RequestError(f"{self.name} is {value}: it must {expected}")


def request_option(
    default: Any,
    doc: str,
    *flags: str,
    low: float = -inf,
    high: float = inf,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    env: str = "",
    body: tuple[str, ...] = (),
    also: Mapping[Any, Any] | None = None,
) -> Any:
    """A dataclass field that is a request option; see RequestOption. Flags and bodies take bool, int, float
    and str alone.
    """
    stated = {"doc": doc, "low": low, "high": high, "above": above, "choices": choices}
    stated |= {"flags": flags, "env": env, "body": body, "also": also or {}}
    return field(default=default, metadata={KEY: stated})


def options_of(definition: type) -> Mapping[str, RequestOption]:
    """The request options of a dataclass, by name, in their order."""
    found = _options.get(definition)
    if found is None:
        found = {one.name: _option(one) for one in fields(definition) if KEY in one.metadata}
        _options[definition] = found
    return found


def _option(one: Field[Any]) -> RequestOption:
    written = one.type if isinstance(one.type, str) else one.type.__name__
    kind = TYPES.get(written.removesuffix(" | None"))
    return RequestOption(one.name, kind, one.default, **one.metadata[KEY])


def check_options(given: Any) -> None:
    """RequestError for the first option of a definition's instance that is out of its range."""
    for name, option in options_of(type(given)).items():
        option.check(getattr(given, name))


def documented(definition: type[T]) -> type[T]:
    """Adds a line for each option to the docstring of a dataclass."""
    return with_docs(definition, {name: option.doc for name, option in options_of(definition).items()})
