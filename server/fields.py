"""Body fields that several API flavours share. A value outside its range is an error, never clamped.

A field that is a request option of the library is derived from the option's definition.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, cast, overload

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from satchel.errors import RequestError
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.option import Option, options_of
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.options import LETTERS, ORDER, stages

T = TypeVar("T")
MOST_TOKENS = 1 << 31
MOST_NAMES = 1024  # entries of a list of tokens or words
MOST_FIELDS = 1024  # fields of an object with declared fields
MOST_MESSAGES = 10_000
# DRY sequence breakers, and characters of one. The sampler searches the whole vocabulary for each.
MOST_BREAKERS, BREAKER = 32, 40

TokenId = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
TokenIds = Annotated[list[TokenId], Field(max_length=MOST_NAMES)]
Word = Annotated[str, Field(min_length=1, max_length=1000)]
Words = Annotated[list[Word], Field(max_length=MOST_NAMES)]
Breakers = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=BREAKER)]], Field(max_length=MOST_BREAKERS)
]


def _fail_fast(part: Any) -> None:
    """Sets fail_fast on every list of a pydantic core schema, so that validation stops at the first error."""
    if isinstance(part, dict):
        if part.get("type") == "list":
            part["fail_fast"] = True
        part = part.values()
    elif not isinstance(part, list | tuple):
        return
    for inner in part:
        _fail_fast(inner)


class kept(Generic[T]):
    """A cached property of a Body. An exception is cached as well and raised again."""

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work, self.__doc__ = work, work.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._key = f"kept {name}"

    @overload
    def __get__(self, body: None, owner: type) -> kept[T]: ...

    @overload
    def __get__(self, body: object, owner: type) -> T: ...

    def __get__(self, body: object | None, owner: type) -> kept[T] | T:
        if body is None:
            return self
        found = vars(body)
        if self._key not in found:
            try:
                found[self._key] = self._work(body)
            except Exception as error:
                found[self._key] = error
        value = found[self._key]
        if isinstance(value, Exception):
            raise value
        return cast(T, value)


class Body(BaseModel):
    """A request body. Types are strict: a number is neither a text nor a bool. null means absent. Undeclared
    fields go to `model_extra`; a route warns about them or refuses them.
    """

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        ignored_types=(kept,),
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema with fail_fast lists: a list of a million wrong members gives one error."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MOST_FIELDS:
            raise ValueError(f"it has {len(data):,} fields, expected at most {MOST_FIELDS:,}")
        return {k: v for k, v in data.items() if v is not None}

    @kept
    def unknown(self) -> list[str]:
        """Paths of undeclared fields, in nested bodies too."""
        return _unknown_of(self)

    def prepare(self) -> None:
        """Computes all kept properties. The time grows with the body, so a thread does it for a large body
        (bodies.py).
        """
        for name in _kept_of(type(self)):
            with suppress(Exception):  # `kept` caches the exception and raises it for the route
                getattr(self, name)


@cache
def _kept_of(kind: type[Body]) -> tuple[str, ...]:
    found = (name for one in kind.__mro__ for name, value in vars(one).items() if isinstance(value, kept))
    return tuple(dict.fromkeys(found))


def _unknown_of(body: Body) -> list[str]:
    within = ((name, getattr(body, name)) for name in type(body).model_fields)
    return [*sorted(body.model_extra or ()), *(path for name, v in within for path in _unknown(v, name))]


def _unknown(value: Any, name: str) -> list[str]:
    if isinstance(value, Body):
        return [f"{name}.{path}" for path in _unknown_of(value)]
    # A list of token ids holds no body.
    if isinstance(value, list) and not isinstance(value[0] if value else 0, int | float):
        inner = ((i, one) for i, one in enumerate(value) if isinstance(one, Body | list))
        return [path for i, one in inner for path in _unknown(one, f"{name}[{i}]")]
    return []


def body_fields(definition: type) -> type[Body]:
    """A body with a field for each of the definition's options that a body may set; None: it was absent."""
    made: dict[str, Any] = {
        name: (one.kind if not one.choices else Literal[one.choices], body_field(one))
        for name, one in options_of(definition).items()
        if one.body
    }
    optional: dict[str, Any] = {name: (kind | None, field) for name, (kind, field) in made.items()}
    return create_model(f"{definition.__name__}Fields", __base__=Body, **optional)


def body_field(one: Option, **more: Any) -> Any:
    """A field that may be left out, with the option's range and names."""
    if one.body != (one.name,):
        more["validation_alias"] = AliasChoices(*one.body) if len(one.body) > 1 else one.body[0]
    if one.low > -inf:
        more["ge"] = min(one.low, *one.also) if one.also else one.low
    if one.high < inf:
        more["le"] = one.high
    if one.above is not None:
        more["gt"] = one.above
    return Field(default=None, description=one.doc, **more)


def body_values(body: Body, definition: type) -> dict[str, Any]:
    """The values of the definition's options that the body sets, by name."""
    given = ((name, one, getattr(body, name)) for name, one in options_of(definition).items() if one.body)
    return {name: one.read(value) for name, one, value in given if value is not None}


if TYPE_CHECKING:

    class DrawnFields(Body):
        """The body fields of Sampling's options."""

    class GenerateFields(Body):
        """The body fields of GenerateOptions' options."""

else:
    DrawnFields, GenerateFields = body_fields(Sampling), body_fields(GenerateOptions)


class SamplingFields(DrawnFields):
    """The options of the sampler chain, by llama-server's and vLLM's names."""

    dry_breakers: Breakers | None = Field(
        default=None, validation_alias=AliasChoices("dry_breakers", "dry_sequence_breakers")
    )
    samplers: Words | Word | None = Field(default=None, description="Names of stages, or letters")

    @field_validator("samplers")
    @classmethod
    def stages_known(cls, given: list[str] | str | None) -> tuple[str, ...] | None:
        """The stages by name. A text holds names separated by semicolons, or the letters of --sampler-seq."""
        if given is None:
            return None
        if isinstance(given, str):
            names = ";" in given or given in ORDER
            given = given.split(";") if names else [LETTERS.get(letter, letter) for letter in given]
        try:
            return stages([name for name in given if name])
        except RequestError as error:
            raise ValueError(str(error)) from None

    def sampling_values(self) -> dict[str, Any]:
        """The sampling options that the body sets, by name."""
        changed = body_values(self, Sampling)
        if self.dry_breakers is not None:
            changed["dry_breakers"] = tuple(self.dry_breakers)
        if self.samplers is not None:
            changed["samplers"] = self.samplers
        return changed
