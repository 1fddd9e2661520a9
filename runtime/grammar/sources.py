"""Translates a spec into a grammar for llguidance, and makes the check of the finished text."""

from __future__ import annotations

import re
import time
from typing import Any

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.grammar.ambiguity import is_catastrophic
from satchel.runtime.grammar.check import json_check, sentence_check
from satchel.runtime.grammar.compile_json import compiled_schema
from satchel.runtime.grammar.gbnf import read_gbnf
from satchel.runtime.grammar.lark import read_lark
from satchel.runtime.grammar.references import checked_schema
from satchel.runtime.grammar.regex import parse
from satchel.runtime.grammar.schema import Schema, bare, shown
from satchel.runtime.grammar.source import GrammarSource
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
)

DEFINITIONS = ("$defs", "definitions")
PATIENCE = 0.3  # seconds to search for the place of an error


def read_spec(spec: Spec, tokenizer: Tokenizer | None) -> GrammarSource:
    """Checks a spec and translates it. Raises RequestError if it cannot be enforced in full. Only tool calls
    need the tokenizer.
    """
    try:
        return _read(spec, tokenizer)
    except RecursionError:  # readers have depth limits; this is for a stack that was nearly full
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
            raise RequestError("tool calls: their markers are in a model's vocabulary: load it first")
        from satchel.runtime.grammar.tools import read_tools  # loads the parsers of answers

        return read_tools(spec, tokenizer)
    return _of_grammar(spec)


def check_spec(spec: Spec) -> None:
    """The same checks without a vocabulary. Tool calls are skipped, because their markers are in it."""
    if not isinstance(spec, ToolCallGrammar):
        read_spec(spec, None)


def _of_schema(spec: JsonSchema) -> GrammarSource:
    what = "the JSON schema"
    schema, found = checked_schema(spec.text, what)
    grammar = compiled_schema(schema, spec.spaces)
    return GrammarSource(what, grammar, json_check(schema), locate=lambda: _locate(found))


def _locate(found: dict[str, Schema]) -> str:
    """Pointer of the innermost schema that cannot be compiled alone; "#" if time runs out."""
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
            "regex: it matches some texts in exponentially many ways: rewrite its nested repetitions"
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
