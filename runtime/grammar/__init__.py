"""Structured output: JSON schemas, regular expressions, grammars and choices as token bitmasks.

Fails closed: what cannot be enforced in full is refused before the first token, with its place in the spec.
"""

from satchel.runtime.grammar.compiled import Grammar, GrammarConstraint, compile_grammar, only_check
from satchel.runtime.grammar.spec import (
    AnyJson,
    Choice,
    Gbnf,
    JsonSchema,
    Lark,
    Regex,
    Spec,
    ToolCallGrammar,
    ToolSchema,
)

__all__ = [
    "AnyJson",
    "Choice",
    "Gbnf",
    "Grammar",
    "GrammarConstraint",
    "JsonSchema",
    "Lark",
    "Regex",
    "Spec",
    "ToolCallGrammar",
    "ToolSchema",
    "compile_grammar",
    "only_check",
]
