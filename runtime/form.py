"""What holds an answer to a form, as a value: it is sent to where the engine is, and makes the constraint
there.
"""

from __future__ import annotations

from dataclasses import dataclass

from satchel.formats.chat import Style
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.constraint import Constraint
from satchel.runtime.grammar.spec import Spec
from satchel.runtime.reasoning import ReasoningBudget


@dataclass(frozen=True, slots=True)
class Form:
    """held: a description of what the answer is held to, or the caller's own object, which stays in its
    process. style: where the answer may think before it, how its thinking is marked; opening: how far it is
    with that from the start, as in ReasoningBudget.
    """

    held: Spec | Constraint
    style: Style | None = None
    opening: str = ""

    def constraint(self, tokenizer: Tokenizer) -> Constraint:
        """For one answer. RequestError for a description that cannot be compiled."""
        held = self._made(tokenizer)
        if self.style is None:
            return held
        return ReasoningBudget(tokenizer, self.style, opening=self.opening, inner=held)

    def _made(self, tokenizer: Tokenizer) -> Constraint:
        if isinstance(self.held, Constraint):
            return self.held
        from satchel.runtime.grammar import compile_grammar

        return compile_grammar(tokenizer, self.held).constraint()
