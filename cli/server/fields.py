"""Fields that requests of several API flavours share, each with its declared range; nothing is clamped.

An option of sampling takes its range from the library, so it is stated once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from typing import Annotated, Any, Generic, TypeVar, cast, overload

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from satchel.quant import RequestError
from satchel.runtime.sampling import RANGES, Sampling
from satchel.runtime.sampling.options import LETTERS, ORDER, stages

T = TypeVar("T")
LIMITS = {name: (low, high) for name, low, high in RANGES}
OPTIONS = frozenset(f.name for f in fields(Sampling))
MOST_TOKENS = 1 << 31
MOST_NAMES = 1024  # entries of a list of tokens or words
MOST_FIELDS = 1024  # of an object with declared fields
MOST_MESSAGES = 10_000
# DRY sequence breakers, and characters of one: each is searched for in the whole vocabulary.
MOST_BREAKERS, BREAKER = 32, 40

TokenId = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
TokenIds = Annotated[list[TokenId], Field(max_length=MOST_NAMES)]
Word = Annotated[str, Field(min_length=1, max_length=1000)]
Words = Annotated[list[Word], Field(max_length=MOST_NAMES)]
Breakers = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=BREAKER)]], Field(max_length=MOST_BREAKERS)
]


def ranged(name: str, *aliases: str, **more: Any) -> Any:
    """A field that may be left out, with the range that the library's option of this name has. aliases: what
    others call it.
    """
    low, high = LIMITS[name]
    if aliases:
        more["validation_alias"] = AliasChoices(name, *aliases)
    return Field(default=None, ge=low, le=high, **more)


def _fail_fast(part: Any) -> None:
    """Marks every list within a schema of pydantic's."""
    if isinstance(part, dict):
        if part.get("type") == "list":
            part["fail_fast"] = True
        part = part.values()
    elif not isinstance(part, list | tuple):
        return
    for inner in part:
        _fail_fast(inner)


class kept(Generic[T]):
    """Decorates a property of a Body that is worked out once; what it raises is kept too."""

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
    """A request's body. A number is no text and no bool; null means absent. Fields that nobody declared are
    kept apart, to be named in a warning or refused.
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
        """A list is wrong with its first wrong member: a million errors would be found and never read."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MOST_FIELDS:
            raise ValueError(f"it has {len(data):,} fields, {MOST_FIELDS:,} are the most")
        return {k: v for k, v in data.items() if v is not None}

    @kept
    def unknown(self) -> list[str]:
        """Paths of the fields that nobody declared, of bodies within this one too."""
        return _unknown_of(self)

    def prepare(self) -> None:
        """Works out what routes make of the body, its kept properties, ahead of them. It takes as long as the
        body is large: a large one's is done in a thread (bodies.py).
        """
        for name in _kept_of(type(self)):
            with suppress(Exception):  # kept as well: a route that asks for it raises it
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
    if isinstance(value, list) and not isinstance(value[0] if value else 0, int | float):  # ids have none
        inner = ((i, one) for i, one in enumerate(value) if isinstance(one, Body | list))
        return [path for i, one in inner for path in _unknown(one, f"{name}[{i}]")]
    return []


class SamplingFields(Body):
    """The chain's options by the names that llama-server gives them, and vLLM's for the same."""

    temperature: float | None = ranged("temperature")
    top_k: int | None = Field(default=None, ge=-1, le=LIMITS["top_k"][1], description="-1 and 0: off")
    top_p: float | None = ranged("top_p")
    min_p: float | None = ranged("min_p")
    typical_p: float | None = ranged("typical_p")
    top_n_sigma: float | None = ranged("top_n_sigma")
    presence_penalty: float | None = ranged("presence_penalty")
    frequency_penalty: float | None = ranged("frequency_penalty")
    repeat_penalty: float | None = ranged("repeat_penalty", "repetition_penalty")
    repeat_last_n: int | None = ranged("repeat_last_n")
    dynatemp_range: float | None = ranged("dynatemp_range")
    dynatemp_exponent: float | None = ranged("dynatemp_exponent")
    xtc_probability: float | None = ranged("xtc_probability")
    xtc_threshold: float | None = ranged("xtc_threshold")
    dry_multiplier: float | None = ranged("dry_multiplier")
    dry_base: float | None = ranged("dry_base")
    dry_allowed_length: int | None = ranged("dry_allowed_length")
    dry_last_n: int | None = ranged("dry_last_n", "dry_penalty_last_n")
    dry_breakers: Breakers | None = Field(
        default=None, validation_alias=AliasChoices("dry_breakers", "dry_sequence_breakers")
    )
    mirostat: int | None = ranged("mirostat")
    mirostat_tau: float | None = ranged("mirostat_tau")
    mirostat_eta: float | None = ranged("mirostat_eta")
    min_tokens: int | None = ranged("min_tokens")
    samplers: Words | Word | None = Field(default=None, description="Names of stages, or letters")
    seed: int | None = Field(default=None, ge=-1, le=LIMITS["seed"][1], description="-1: drawn anew")

    @field_validator("samplers")
    @classmethod
    def stages_known(cls, given: list[str] | str | None) -> tuple[str, ...] | None:
        """Names of stages. A text has the letters of --sampler-seq, or names between semicolons."""
        if given is None:
            return None
        if isinstance(given, str):
            names = ";" in given or given in ORDER
            given = given.split(";") if names else [LETTERS.get(letter, letter) for letter in given]
        try:
            return stages([name for name in given if name])
        except RequestError as error:
            raise ValueError(str(error)) from None

    def sampling(self, base: Sampling) -> Sampling:
        """The base with what was asked for."""
        asked: Mapping[str, Any] = {
            name: value
            for name in SamplingFields.model_fields
            if name in OPTIONS and (value := getattr(self, name)) is not None
        }
        changed = {
            **asked,
            **({"seed": None} if self.seed == -1 else {}),
            **({"top_k": 0} if self.top_k == -1 else {}),
            **({"dry_breakers": tuple(self.dry_breakers)} if self.dry_breakers is not None else {}),
        }
        return replace(base, **changed)
