"""A request in flight that outlives the process which computes it: what came of its answer, and what to ask
of the next process.

Invariant: a process gets a request with all tokens that its caller has (`GenerateRequest.given`). Random
numbers are a function of (seed, position), so the answer goes on as it would have.
"""

from __future__ import annotations

import time
from collections import abc
from dataclasses import dataclass, field, replace
from typing import Any

from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled, token_of
from satchel.runtime.engine.request_handle import End, RequestHandle
from satchel.runtime.kv import Miss
from satchel.runtime.layers.arch import Cache
from satchel.runtime.worker.wire import Message, decode


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request in flight. Its sequence has the tokens that came so far."""

    handle: RequestHandle
    number: int = 0  # by which its process knows it
    nll_bits: list[float] = field(default_factory=list)  # of each of these tokens
    sent: bool = False  # the process has it
    until: int = 0  # most tokens that the process is to generate
    begun: bool = False  # a process that was lost had begun it
    cancelled: bool = False  # its caller no longer waits
    trial: int = 0  # tokens of its answer that the next process computes in steps of its own
    known: int = 0  # tokens that the process got: prompt and answer so far
    cached: int = 0  # of these, those that it is expected to find in its cache
    # Where set, its process computes the prompt and one token, and another the rest of the answer. Called
    # with the number of tokens that are computed.
    onward: abc.Callable[[int], object] | None = None

    def rest(self, until: int) -> GenerateRequest:
        """The request for a process: it goes on after the tokens that came, up to `until` of them."""
        self.until, self.sent = until, True
        seq = self.handle.seq
        self.known, alone = len(seq.ids), seq.generated + self.trial if self.trial else 0
        given, bits = tuple(seq.ids[seq.prompt :]), tuple(self.nll_bits)
        return replace(seq.request, max_tokens=until, given=given, nll_bits=bits, alone_until=alone)

    @property
    def decodes(self) -> bool:
        """Whether a token came from the process that has it."""
        return self.sent and len(self.handle.seq.ids) > self.known

    @property
    def queued(self) -> int:
        """Tokens that the process has to compute before its first one, as far as is known."""
        seq = self.handle.seq
        return max(0, len(seq.ids) - max(self.cached, seq.num_computed_tokens))

    def computed(self, tokens: int, cached: int, started: float) -> None:
        """A step with this request begins, which has computed so many of its tokens."""
        seq = self.handle.seq
        seq.num_computed_tokens = tokens
        if self.onward is not None:
            self.onward(tokens)
        if seq.started < 0:
            seq.cached, seq.started = cached, started

    def take(self, tokens: abc.Sequence[Any]) -> abc.Sequence[int | Sampled]:
        """Notes tokens that came, as they travel. Returns them for the handle."""
        seq = self.handle.seq
        if tokens and seq.first < 0:
            seq.first = time.monotonic()
        items = list[int | Sampled]()
        for told in tokens:
            item = told if type(told) is int else decode(told)
            self.nll_bits.append(item.nll_bits if isinstance(item, Sampled) else 0.0)
            seq.ids.append(token_of(item))
            items.append(item)
        return items

    def note_facts(self, facts: Message, was_lost: bool) -> None:
        """Stores the process's report on the sequence. A restarted sequence keeps its first times. was_lost:
        a cache that may have had its prompt was lost.
        """
        seq = self.handle.seq
        known = {name: decode(value) for name, value in facts.items()}
        used = known.get("used")
        if used is not None:
            used.restarted, used.steps = seq.used.restarted, used.steps + seq.used.steps
            used.weight_bytes += seq.used.weight_bytes
            used.kv_bytes += seq.used.kv_bytes
        kept = ("started", "first", "cached", "miss") if self.begun else ()
        if known.get("miss") == Miss.COLD and was_lost:
            known["miss"] = Miss.LOST
        for name, value in known.items():
            if name not in kept:
                setattr(seq, name, value)

    def displace(self) -> None:
        """Its process is lost."""
        seq = self.handle.seq
        seq.used.restarted += self.sent
        seq.num_computed_tokens = 0
        self.sent, self.begun = False, seq.started >= 0

    def pass_on(self) -> None:
        """Its process has done its part, and another goes on."""
        self.handle.seq.num_computed_tokens = 0
        self.sent, self.begun, self.onward = False, True, None

    def complete(self, cache: Cache) -> str:
        """How the answer ended, where all its tokens came, or its caller left; "" if it goes on."""
        if self.cancelled:
            return "cancelled"
        seq = self.handle.seq
        if seq.generated and seq.ids[-1] in seq.request.stop_ids:
            return "stop"
        full = len(seq.ids) > min(cache.context, cache.capacity)
        return "length" if seq.generated >= seq.request.max_tokens or full else ""

    def end(self, end: End) -> None:
        """Tells the caller."""
        self.handle.seq.finish = end.finish
        self.handle.put(end)

    def __str__(self) -> str:
        """As errors name it."""
        seq = self.handle.seq
        whose = f" of user {seq.client!r}" if seq.client else ""
        return f"{self.number}{whose} ({seq.prompt} prompt tokens, {seq.generated} of its answer)"
