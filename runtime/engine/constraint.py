"""Constraint: the protocol between the engine, which samples, and a grammar that allows knows the tokens."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from satchel.runtime.graph import Array


@runtime_checkable
class Constraint(Protocol):
    """State of one answer in its grammar. The engine thread calls it; `fill` runs in a thread beside it."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete: no token may follow, or the end token came."""
        ...

    def fill(self, bitmask: Array) -> None:
        """Writes the token bitmask (ceil(V / 32)) uint32: bit i of word j allows token 32 j + i."""
        ...

    def accept(self, token: int) -> None:
        """Advances by a sampled token."""
        ...

    def rollback(self, n: int) -> None:
        """Takes the last n tokens back."""
        ...
