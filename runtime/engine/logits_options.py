"""Logits processing beyond Sampling: constraint, banned tokens, Python processors, logprobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from satchel.errors import RequestError
from satchel.runtime.engine.constraint import Constraint
from satchel.runtime.graph import Array
from satchel.runtime.sampling.dry import Breakers
from satchel.runtime.sampling.logprobs import TOP

if TYPE_CHECKING:
    from satchel.runtime.engine.structured_output import StructuredOutput

LogitsProcessor = Callable[[Sequence[int], Array], Array | None]  # tokens so far, logits (V) float32


@dataclass(frozen=True, slots=True)
class LogitsOptions:
    """constraint: limits the next token by a token bitmask. structured_output: the grammar that the engine's
    process compiles into `constraint`. logprobs: -1 none, 0 of the sampled token, k of the k likeliest too.
    banned: tokens that are never sampled. logits_processors: each gets the tokens so far and the logits, and
    changes them in place or returns new ones; they run before masks and biases. breakers: sequence breakers
    of DRY.
    """

    constraint: Constraint | None = None
    logprobs: int = -1
    logits_processors: tuple[LogitsProcessor, ...] = ()
    banned: frozenset[int] = frozenset()
    breakers: Breakers = field(default_factory=Breakers)
    structured_output: StructuredOutput | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.logprobs <= TOP:
            raise RequestError(f"logprobs is {self.logprobs}: it must lie between -1 (none) and {TOP}")


NO_LOGITS_OPTIONS = LogitsOptions()
