"""Specs of structured output: values that describe a grammar. Equal specs are compiled once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from satchel.errors import RequestError
from satchel.formats import strict_json

MAX_TEXT = 1 << 21  # characters of a schema: about ten times the largest in use
MAX_GRAMMAR = 1 << 17  # characters of a GBNF or Lark grammar, which is parsed in Python
MAX_CHOICES = 10_000


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that satisfies a schema (draft 2020-12). Keywords that cannot be enforced during decoding are
    refused.
    """

    schema: str | bool | Mapping[str, Any]  # a mapping, a bool, or its JSON text
    spaces: bool = True  # white space between tokens is allowed

    @property
    def key(self) -> str:
        return f"schema {self.spaces} {self.text}"

    def __repr__(self) -> str:  # a schema may be nested deeper than repr() can show
        return f"JsonSchema({self.schema if isinstance(self.schema, str | bool) else '{...}':.200})"

    @property
    def text(self) -> str:
        """The schema as JSON text. Raises RequestError if it is not JSON."""
        return self.schema if isinstance(self.schema, str) else dump(self.schema, "the JSON schema")


@dataclass(frozen=True, slots=True)
class AnyJson:
    """Any JSON object."""

    anything: bool = False  # any JSON value
    spaces: bool = True  # white space between tokens is allowed

    @property
    def key(self) -> str:
        return f"json {self.anything} {self.spaces}"


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that a regular expression matches as a whole (syntax of Rust's `regex`: no look-around, no
    back-references).
    """

    pattern: str

    @property
    def key(self) -> str:
        return f"regex {self.pattern}"


@dataclass(frozen=True, slots=True)
class Gbnf:
    """A text of a grammar in GBNF, llama.cpp's format, from its rule `root`."""

    text: str

    @property
    def key(self) -> str:
        return f"gbnf {self.text}"


@dataclass(frozen=True, slots=True)
class Lark:
    """A text of a grammar in Lark's syntax, from its rule `start`. Terminals take the longest match."""

    text: str

    @property
    def key(self) -> str:
        return f"lark {self.text}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several texts."""

    options: Sequence[str]

    def __post_init__(self) -> None:
        texts = [] if isinstance(self.options, str) else list(self.options)
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise RequestError(f"choice: expected a list of non-empty texts, got {self.options!r:.80}")
        if len(texts) > MAX_CHOICES:
            raise RequestError(f"choice: expected at most {MAX_CHOICES:,} texts, got {len(texts):,}")

    @property
    def key(self) -> str:
        return "choice " + dump(list(self.options), "the choices")


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A function that the model may call: its name and the JSON schema of its arguments."""

    name: str
    # JSON schema of the arguments; by default any object.
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


@dataclass(frozen=True, slots=True)
class ToolCallGrammar:
    """A call of one of the tools in a model family's tool-call format."""

    tools: Sequence[ToolSchema]
    style: str = "json"  # the family; see styles.STYLES
    parallel: bool = False  # several calls are allowed
    begin: str = ""  # the marker with which the chat template begins calls

    @property
    def key(self) -> str:
        tools = [[tool.name, tool.parameters] for tool in self.tools]
        return f"tools {self.style} {self.begin} {self.parallel} {dump(tools, 'the tools')}"


Spec: TypeAlias = JsonSchema | AnyJson | Regex | Gbnf | Lark | Choice | ToolCallGrammar


def spec_of(given: str | Mapping[str, Any] | Spec) -> Spec:
    """The grammar of a text or of a mapping. A text is GBNF (llama.cpp's syntax) where it has "::=", else
    Lark; a mapping is a JSON schema.
    """
    if isinstance(given, str):
        return Gbnf(given) if "::=" in given else Lark(given)
    if isinstance(given, Mapping):
        return JsonSchema(given)
    if not isinstance(given, Spec):
        raise RequestError(f"expected the text of a grammar, or a JSON schema, got {given!r:.60}")
    return given


def dump(value: Any, what: str) -> str:
    """A value as JSON text. Raises RequestError if it is not JSON, or nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{what}: expected JSON: {error}") from None
    except RecursionError:
        raise RequestError(f"{what}: nested too deeply: write it flatter") from None


def load(text: str, what: str) -> Any:
    """Parses a JSON text. Raises RequestError with line and column."""
    check_size(text, what)
    try:
        return strict_json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{what}: expected JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError as error:
        raise RequestError(f"{what}: expected JSON: {error}") from None
    except RecursionError:
        raise RequestError(f"{what}: nested too deeply: write it flatter") from None


def check_size(text: str, what: str, most: int = MAX_TEXT) -> None:
    if len(text) > most:
        raise RequestError(f"{what}: expected at most {most:,} characters, got {len(text):,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{what}: half a surrogate pair at character {error.start}") from None
