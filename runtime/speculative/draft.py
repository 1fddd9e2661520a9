"""A second, smaller model that drafts what the target model will say. It samples as the target does, from the
same random numbers, so where the two agree about probabilities they agree about tokens.

Its slots are numbered as the target's. A slot holds a beginning of its sequence's tokens and draft tokens
after them, which are rewound when they are rejected.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer
from satchel.formats.tokenizer.vocab import Kind
from satchel.runtime.engine.engine import BatchEntry, Engine
from satchel.runtime.engine.host_sampling import drawn
from satchel.runtime.scheduler import Sequence
from satchel.runtime.scheduler.steptime import Load, StepTime


def check_vocabulary(target: Tokenizer, draft: Tokenizer, source: str) -> None:
    """RequestError where a token of the model is not the same one in the draft model; tokens that the draft
    model has besides are never proposed.
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
    """A slot of the draft model: what it holds, and for whom. sure: how many of `ids` are the sequence's own
    tokens.
    """

    seq: Sequence | None = None
    ids: list[int] = field(default_factory=list)
    sure: int = 0


class DraftModel:
    """vocab: token ids of the target model; own: of this one. The engine has as many slots as the target's,
    and is used by the same thread.
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
        """Tokens that may be drafted after the sequence's: as far as the context reaches."""
        return max(0, min(wanted, self.engine.cache.context - len(seq.ids)))

    def seconds(self, seqs: int) -> float:
        """What drafting one token takes for each of so many sequences at once."""
        return self.time.seconds(Load(seqs, 0, 0)) / max(1, seqs)

    def catching_up(self, seq: Sequence) -> float:
        """Seconds for what the slot lacks of the sequence's tokens."""
        return self.time.seconds(Load(0, self.missing_tokens(seq), 0))

    def propose(self, wanted: abc.Mapping[Sequence, int], room: int) -> dict[Sequence, tuple[int, ...]]:
        """So many draft tokens for each sequence, or fewer; none where a slot could not catch up within
        `room` tokens, all slots together.
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
        """The sequence ended: what its slot holds stays for requests that begin alike."""
        for slot, kept in enumerate(self._slots):
            if kept.seq is seq:
                self._empty(slot, kept)

    def release(self) -> None:
        """Frees programs and states, before the devices are closed."""
        self.engine.release()

    def _goes_on(self, ids: list[int], wanted: int) -> bool:
        return len(ids) < wanted and ids[-1] < self.shared

    def _known(self, ids: list[int]) -> tuple[int, ...]:
        """Draft tokens up to the first that the target model does not know."""
        bad = next((i for i, token in enumerate(ids) if token >= self.shared), len(ids))
        return tuple(ids[:bad])

    def _take_over(self, seq: Sequence) -> list[int]:
        """Makes the sequence's slot hold a beginning of its tokens, and gives those that it lacks."""
        kept = self._slots[seq.slot]
        if kept.seq is not seq:
            if kept.seq is not None:
                self._empty(seq.slot, kept)
            cached, _ = self.engine.begin(seq.slot, seq.ids, seq.request.salt)
            kept.seq, kept.ids, kept.sure = seq, seq.ids[:cached], cached
        length = min(kept.sure, len(seq.ids) - 1)  # the last token is computed for its logits, known or not
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
        """Whether the slot holds all of the sequence's tokens and no draft token, so that the next is the
        first.
        """
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
        """One step of the draft model; a draft token for each sequence that is in `found`."""
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
