"""GenerateRequest: what a client asks of the engine, as one value, which crosses to the engine's process. A
Sequence is its state there, and a BatchEntry its rows in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from satchel.errors import RequestError
from satchel.formats.chat import Style
from satchel.runtime.engine.constraint import Constraint
from satchel.runtime.grammar.spec import Spec
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.sampling.dry import Breakers
from satchel.runtime.sampling.logprobs import TOP

LogitsProcessor = Callable[[Sequence[int], Array], Array | None]  # tokens so far, logits (V) float32


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Token ids to continue."""

    ids: Sequence[int]
    max_tokens: int  # most tokens to sample
    sampling: Sampling = GREEDY
    stop_ids: frozenset[int] = frozenset()  # tokens that end the answer
    # Scheduling: clients share the machine by `weight`, whatever they send; a client has the weight of its
    # newest request. The users of a client share what it gets, by `weight`, too.
    priority: int = 0  # smaller is more urgent, among requests of one client
    client: str = ""  # whose share of the machine the request uses; "": the user's
    user: str = ""
    weight: float = 1.0
    deadline: float | None = None  # clock time after which the client no longer waits
    # Cached blocks are shared among requests of one salt and with the same adapters.
    salt: str = ""
    adapter_scales: AdapterScales = ()  # of adapters and control vectors; see runtime/adapters/adapters.py
    draft: int = -1  # most draft tokens of a step; -1: as many as pay, 0: none
    # Tokens of the answer that an engine sampled before it was lost: they count as sampled.
    given: Sequence[int] = ()
    nll_bits: Sequence[float] = ()  # one for each of them, 0 where that engine reported none
    # Number of answer tokens up to which its steps compute nothing else: a request that may have crashed an
    # engine is told from the others so.
    alone_until: int = 0
    # Logits processing beyond `sampling`. Processors run before masks and biases; each gets the tokens so far
    # and the logits, and changes them in place or returns new ones.
    logits_processors: tuple[LogitsProcessor, ...] = ()
    logprobs: int = -1  # -1: none, 0: of the sampled token, k: of the top k tokens too
    banned: frozenset[int] = frozenset()  # tokens that are never sampled
    breakers: Breakers = field(default_factory=Breakers)  # sequence breakers of DRY
    # Structured output: a grammar, which the engine's process compiles into a constraint, or a constraint of
    # the caller's own, which cannot leave its process.
    grammar: Spec | None = None
    constraint: Constraint | None = None  # limits the next token by a token bitmask
    # Reasoning markers, where the model may reason before the constrained text; None: the constraint holds
    # from the first token.
    style: Style | None = None
    opening: str = ""  # reasoning state at the start, as in ReasoningBudget

    def __post_init__(self) -> None:
        if not -1 <= self.logprobs <= TOP:
            raise RequestError(f"logprobs is {self.logprobs}: it must lie between -1 (none) and {TOP}")
