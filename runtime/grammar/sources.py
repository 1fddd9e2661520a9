"""From a spec to what llguidance compiles, together with the check of the finished text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.grammar.ambiguity import is_catastrophic
from satchel.runtime.grammar.check import Check, json_check, sentence_check
from satchel.runtime.grammar.compile_json import compiled_schema
from satchel.runtime.grammar.gbnf import read_gbnf
from satchel.runtime.grammar.lark import read_lark
from satchel.runtime.grammar.references import check_references
from satchel.runtime.grammar.regex import parse
from satchel.runtime.grammar.schema import Schema, bare, read_schema, shown
from satchel.runtime.grammar.spec import (
    MAX_GRAMMAR,
    AnyJson,
    Choice,
    Gbnf,
    JsonSchema,
    Lark,
    Regex,
    Spec,
    ToolCallGrammar,
    check_size,
    load,
)

DEFINITIONS = ("$defs", "definitions")
PATIENCE = 0.3  # seconds for finding the place of an error


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """What llguidance gets. tokens: ids of markers that it may ask for. locate: the place of an error."""

    what: str
    grammar: str
    check: Check
    tokens: tuple[int, ...] = ()
    locate: Callable[[], str] | None = None

    def fail(self, message: str, place: str = "") -> RequestError:
        return RequestError(f"{self.what}{f' at {place}' if place else ''}: {message}")


def read_spec(spec: Spec, tokenizer: Tokenizer | None) -> GrammarSource:
    """Checks a spec and writes it for llguidance; RequestError where it can't be enforced in full. Only
    calls of tools need the tokenizer.
    """
    try:
        return _read(spec, tokenizer)
    except RecursionError:  # each reader has a limit of its own: this is for a stack that was nearly full
        raise RequestError(f"{type(spec).__name__}: nested too deeply: write it flatter") from None


def _read(spec: Spec, tokenizer: Tokenizer | None) -> GrammarSource:
    if isinstance(spec, JsonSchema):
        return _of_schema(spec)
    if isinstance(spec, AnyJson):
        schema: Any = {} if spec.anything else {"type": "object"}
        return GrammarSource("JSON", compiled_schema(schema, spec.spaces), json_check(schema))
    if isinstance(spec, Regex):
        return _of_regex(spec.pattern)
    if isinstance(spec, Choice):
        return _of_choice(tuple(spec.options))
    if isinstance(spec, ToolCallGrammar):
        if tokenizer is None:
            raise RequestError("calls of tools: their markers are in a model's vocabulary: load it first")
        from satchel.runtime.grammar.tools import read_tools

        return read_tools(spec, tokenizer)
    return _of_grammar(spec)


def check_spec(spec: Spec) -> None:
    """The same checks without a vocabulary; calls of tools are left out, whose markers are in it."""
    if not isinstance(spec, ToolCallGrammar):
        read_spec(spec, None)


def checked_schema(text: str, what: str) -> tuple[Any, dict[str, Schema]]:
    """The schema of a JSON text and every schema in it by pointer; RequestError where it isn't enforced."""
    schema = load(text, what)
    found = read_schema(schema, what)
    check_references(found, what)
    if schema is False:
        raise RequestError(f"{what} at #: it allows no value")
    return ({} if schema is True else bare(schema)), found


def _of_schema(spec: JsonSchema) -> GrammarSource:
    what = "the JSON schema"
    schema, found = checked_schema(spec.text, what)
    grammar = compiled_schema(schema, spec.spaces)
    return GrammarSource(what, grammar, json_check(schema), locate=lambda: _locate(found))


def _locate(found: dict[str, Schema]) -> str:
    """The pointer of the innermost schema that can't be compiled by itself; "#" where time runs out."""
    from llguidance import LLMatcher

    until = time.monotonic() + PATIENCE
    root = found["#"]
    shared = {} if isinstance(root, bool) else bare({k: root[k] for k in DEFINITIONS if k in root})
    for pointer in sorted(found, key=lambda at: at.count("/"), reverse=True):
        value = found[pointer]
        if time.monotonic() > until or isinstance(value, bool):
            continue
        alone = shared | bare(value)
        try:
            grammar = compiled_schema(alone, spaces=True)
        except RequestError:
            continue
        message = LLMatcher.validate_grammar(grammar)
        if message and not message.startswith("WARNING") and "registry" not in message:
            return shown(pointer)
    return "#"


def _of_regex(pattern: str) -> GrammarSource:
    from llguidance import LLMatcher

    check_size(pattern, "regex")
    if is_catastrophic(parse(pattern)):
        raise RequestError(
            "regex: it matches some texts in exponentially many ways: rewrite its repetitions in each other"
        )
    grammar = LLMatcher.grammar_from_regex(pattern)
    return GrammarSource("regex", grammar, sentence_check(grammar, "regex"))


def _of_choice(options: tuple[str, ...]) -> GrammarSource:
    from llguidance import LLMatcher

    for option in options:
        check_size(option, "choice")
    pattern = "|".join(re.sub(r"\W", lambda found: f"\\x{{{ord(found[0]):X}}}", option) for option in options)
    check_size(pattern, "choice")

    def check(text: str) -> str:
        return "" if text in options else "the text is none of the choices"

    return GrammarSource("choice", LLMatcher.grammar_from_regex(f"(?:{pattern})"), check)


def _of_grammar(spec: Gbnf | Lark) -> GrammarSource:
    from llguidance import LLMatcher

    what = "GBNF grammar" if isinstance(spec, Gbnf) else "Lark grammar"
    check_size(spec.text, what, MAX_GRAMMAR)
    if isinstance(spec, Lark):
        grammar = LLMatcher.grammar_from_lark(read_lark(spec.text))
    else:
        text, regular = read_gbnf(spec.text)
        grammar = LLMatcher.grammar_from_regex(text) if regular else LLMatcher.grammar_from_lark(text)
    return GrammarSource(what, grammar, sentence_check(grammar, "grammar"))
