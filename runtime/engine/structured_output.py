"""Structured output of one request as a value, which travels to the engine's process and becomes a constraint
there.
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
    """Structured output of one request."""

    grammar: Spec | Constraint  # a spec, or the caller's own constraint, which cannot leave its process
    # Reasoning markers, if the model may reason before the constrained text; None: the grammar applies at
    # once.
    style: Style | None = None
    opening: str = ""  # reasoning state at the start, as in ReasoningBudget

    def constraint(self, tokenizer: Tokenizer) -> Constraint:
        """The constraint of one answer. Raises RequestError if the grammar cannot be compiled."""
        inner = self._made(tokenizer)
        if self.style is None:
            return inner
        return ReasoningBudget(tokenizer, self.style, opening=self.opening, inner=inner)

    def _made(self, tokenizer: Tokenizer) -> Constraint:
        if isinstance(self.grammar, Constraint):
            return self.grammar
        from satchel.runtime.grammar import compile_grammar

        return compile_grammar(tokenizer, self.grammar).constraint()
