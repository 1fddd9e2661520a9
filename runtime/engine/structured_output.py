"""Structured output of one request, as a value: it goes to the process of the engine, which makes the
constraint of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from satchel.formats.chat import Style
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.api.reasoning import ReasoningBudget
from satchel.runtime.engine.constraint import Constraint
from satchel.runtime.grammar.spec import Spec


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """grammar: the grammar as a value, or the caller's own constraint, which cannot leave its process. style:
    how the model marks thinking, where it may think before the constrained text; None: the grammar applies
    from the first token. opening: the thinking state at the start, as in ReasoningBudget.
    """

    grammar: Spec | Constraint
    style: Style | None = None
    opening: str = ""

    def constraint(self, tokenizer: Tokenizer) -> Constraint:
        """The constraint of one answer. RequestError for a grammar that cannot be compiled."""
        inner = self._made(tokenizer)
        if self.style is None:
            return inner
        return ReasoningBudget(tokenizer, self.style, opening=self.opening, inner=inner)

    def _made(self, tokenizer: Tokenizer) -> Constraint:
        if isinstance(self.grammar, Constraint):
            return self.grammar
        from satchel.runtime.grammar import compile_grammar

        return compile_grammar(tokenizer, self.grammar).constraint()
