"""Structured output: JSON schemas, regular expressions, grammars and choices, as masks over the vocabulary.

Fails closed: what can't be enforced in full is refused before the first token, with the place in it.
"""

from satchel.runtime.grammar.compiled import Grammar, GrammarConstraint, compile_grammar, only_check
from satchel.runtime.grammar.spec import (
    Choice,
    ForcedToolCall,
    Gbnf,
    Json,
    JsonSchema,
    Lark,
    Regex,
    Spec,
    Tool,
)

__all__ = [
    "Choice",
    "ForcedToolCall",
    "Gbnf",
    "Grammar",
    "GrammarConstraint",
    "Json",
    "JsonSchema",
    "Lark",
    "Regex",
    "Spec",
    "Tool",
    "compile_grammar",
    "only_check",
]
