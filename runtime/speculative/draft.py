"""A draft model: a smaller model that predicts the target model's tokens. It samples with the target's random
numbers, so where their probabilities agree, their tokens do.

Its slots have the target's numbers. A slot holds a prefix of its sequence's tokens, followed by draft tokens,
which are rewound when they are rejected.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer
from satchel.formats.tokenizer.vocab import Kind
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.host_sampling import drawn
from satchel.runtime.scheduler import Sequence
from satchel.runtime.scheduler.steptime import Load, StepTime


def check_vocabulary(target: Tokenizer, draft: Tokenizer, source: str) -> None:
    """Raises RequestError if a token of the target differs in the draft model. Additional tokens of the draft
    model are allowed, and never proposed.
    """
    have, want = draft.vocab, target.vocab
    for i, kind in enumerate(want.types.tolist()):
        if kind == Kind.UNUSED or (i < len(have) and have.tokens[i] == want.tokens[i]):
            continue
        if i >= len(have):
            raise RequestError(
                f"{source}: the draft model has {len(have)} tokens and lacks token {i}, {want.tokens[i]!r}: "
                "it must have the model's vocabulary"
            )
        raise RequestError(
            f"{source}: token {i} is {have.tokens[i]!r} in the draft model and {want.tokens[i]!r} in the "
            "model: they must have one vocabulary"
        )
    for name, theirs, ours in (("bos", draft.bos, target.bos), ("eos", draft.eos, target.eos)):
        if theirs != ours:
            raise RequestError(
                f"{source}: the {name} token is {theirs} in the draft model and {ours} in the model: "
                "they must have one vocabulary"
            )


@dataclass(slots=True)
class DraftSlot:
    """A slot of the draft model."""

    seq: Sequence | None = None
    ids: list[int] = field(default_factory=list)
    sure: int = 0  # number of `ids` that are the sequence's own tokens


class DraftModel:
    """Drafts tokens with a smaller model. Its engine has as many slots as the target's, and is used by the
    same thread.

    vocab: vocabulary size of the target; own: of the draft model.
    """

    def __init__(self, engine: Engine, vocab: int, own: int) -> None:
        self.engine, self.time = engine, StepTime()
        self.shared, self._own = min(vocab, own), own
        self._slots = [DraftSlot() for _ in range(engine.cache.slots)]

    def missing_tokens(self, seq: Sequence) -> int:
        """Tokens that must be computed before the first draft token."""
        kept = self._slots[seq.slot]
        return len(seq.ids) - (kept.sure if kept.seq is seq else 0)

    def max_draft_tokens(self, seq: Sequence, wanted: int) -> int:
        """Tokens that fit the context after the sequence's, up to `wanted`."""
        return max(0, min(wanted, self.engine.cache.context - len(seq.ids)))

    def seconds(self, seqs: int) -> float:
        """Seconds to draft one token for each of `seqs` sequences at once."""
        return self.time.seconds(Load(seqs, 0, 0)) / max(1, seqs)

    def catching_up(self, seq: Sequence) -> float:
        """Seconds to compute the sequence's tokens that the slot lacks."""
        return self.time.seconds(Load(0, self.missing_tokens(seq), 0))

    def propose(self, wanted: abc.Mapping[Sequence, int], room: int) -> dict[Sequence, tuple[int, ...]]:
        """Draft tokens for each sequence, at most the wanted number; none for a slot that could not catch up.
        All slots together catch up by at most `room` tokens.
        """
        found: dict[Sequence, list[int]] = {}
        pending: dict[Sequence, list[int]] = {}
        for seq, count in wanted.items():
            lacking = self._take_over(seq)
            n = min(len(lacking), room)
            known = max(lacking, default=0) < self._own
            if count < 1 or n < 1 or not known or not self._has_room(seq, len(seq.ids) + count):
                continue
            pending[seq] = lacking[:n]
            room -= n
            if n == len(lacking):
                found[seq] = []
        while pending:
            self._step(pending, found)
            more = [s for s in pending if s in found and self._goes_on(found[s], wanted[s])]
            pending = {s: [found[s][-1]] for s in more}
        return {seq: self._known(ids) for seq, ids in found.items()}

    def forget(self, seq: Sequence) -> None:
        """Called when the sequence ends. Its slot keeps its tokens for requests with the same prefix."""
        for slot, kept in enumerate(self._slots):
            if kept.seq is seq:
                self._empty(slot, kept)

    def release(self) -> None:
        """Frees programs and states, before the devices are closed."""
        self.engine.release()

    def _goes_on(self, ids: list[int], wanted: int) -> bool:
        return len(ids) < wanted and ids[-1] < self.shared

    def _known(self, ids: list[int]) -> tuple[int, ...]:
        """Draft tokens up to the first that the target does not have."""
        bad = next((i for i, token in enumerate(ids) if token >= self.shared), len(ids))
        return tuple(ids[:bad])

    def _take_over(self, seq: Sequence) -> list[int]:
        """Rewinds the sequence's slot to a prefix of its tokens; gives the tokens that it lacks."""
        kept = self._slots[seq.slot]
        if kept.seq is not seq:
            if kept.seq is not None:
                self._empty(seq.slot, kept)
            cached, _ = self.engine.begin(seq.slot, seq.ids, seq.request.salt)
            kept.seq, kept.ids, kept.sure = seq, seq.ids[:cached], cached
        length = min(kept.sure, len(seq.ids) - 1)  # the last token is recomputed for its logits
        while length < min(len(kept.ids), len(seq.ids) - 1) and kept.ids[length] == seq.ids[length]:
            length += 1
        if length < len(kept.ids):
            length = self.engine.rewind(seq.slot, length)
            del kept.ids[length:]
        kept.sure = length
        return seq.ids[length:]

    def _empty(self, slot: int, kept: DraftSlot) -> None:
        if kept.seq is not None:
            self.engine.publish(slot, kept.ids, kept.seq.request.salt)
        self.engine.rewind(slot, 0)
        kept.seq, kept.ids, kept.sure = None, [], 0

    def _sure(self, seq: Sequence) -> bool:
        """Whether the slot holds exactly the sequence's tokens, so that the next is the first draft token."""
        return len(self._slots[seq.slot].ids) == len(seq.ids)

    def _has_room(self, seq: Sequence, length: int) -> bool:
        pages = self.engine.pages
        missing = pages.missing(seq.slot, length)
        if missing and missing > pages.free_blocks:
            return False
        pages.reserve(seq.slot, length)
        return True

    def _step(
        self, pending: abc.Mapping[Sequence, list[int]], found: abc.Mapping[Sequence, list[int]]
    ) -> None:
        """One step of the draft model. Sequences in `found` get a draft token."""
        first = any(len(ids) > 1 for ids in pending.values())
        steps = [
            BatchEntry(
                s.slot, ids, s.request.sampling, host_sampling=s.host_sampling, speculated=self._sure(s)
            )
            if s in found
            else BatchEntry(s.slot, ids)
            for s, ids in pending.items()
        ]
        inside = self.engine.timing.inside
        tokens = iter(drawn(self.engine.sample(steps)))
        total = sum(len(ids) for ids in pending.values())
        read = sum(len(self._slots[s.slot].ids) for s in pending)
        load = Load(0, total, read) if first else Load(total, 0, read)
        self.time.learn(load, self.engine.timing.inside - inside)
        for seq, ids in pending.items():
            kept = self._slots[seq.slot]
            kept.ids += ids
            kept.sure = min(len(kept.ids), len(seq.ids))
            if seq in found:
                found[seq].append(next(tokens))
