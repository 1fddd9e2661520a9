"""Constraints on the tokens of an answer: the protocol between the engine, which samples, and a grammar,
which knows the tokens that may come next.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from satchel.runtime.graph import Array


@runtime_checkable
class Constraint(Protocol):
    """One answer's way through a grammar. The engine thread calls it, `fill` from a thread beside it."""

    @property
    def finished(self) -> bool:
        """Whether the answer is whole: nothing may follow, or the end token came."""
        ...

    def fill(self, words: Array) -> None:
        """Writes words (ceil(V / 32)) uint32: bit i of word j says whether token 32 j + i may come next."""
        ...

    def accept(self, token: int) -> None:
        """This token came."""
        ...

    def rollback(self, n: int) -> None:
        """The last n tokens did not come after all."""
        ...
