"""Adds draft tokens to the steps that the scheduler plans: proposes drafts, decides how many tokens are worth
their rows, and learns from what was accepted.

Lookup drafts cost nothing, so they are compared with the answer even if they were not computed: their
acceptance rate is known while they are off.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field

from satchel.runtime.kv import StateGroup
from satchel.runtime.scheduler import Batch, Scheduler, Sequence
from satchel.runtime.speculation import Speculation
from satchel.runtime.speculative.acceptance import Acceptance, evidence
from satchel.runtime.speculative.budget import TrialBudget
from satchel.runtime.speculative.draft import DraftModel
from satchel.runtime.speculative.length import DraftCandidate, lengths, wanted_gain
from satchel.runtime.speculative.ngram import LONGEST, Ngrams, Past
from satchel.runtime.speculative.room import max_draft_tokens, may_draft, rows_left, take_blocks
from satchel.runtime.speculative.rowcost import RowCost

READ = 8192  # prompt tokens that are indexed per step: about 2 ms
PROBE = 3  # draft tokens of a trial
PATIENCE, NAP = 16, 4  # after 16 steps without a draft, lookup searches only in every 4th
REFRESH = 32  # steps after which the least price of a row is computed again
CATCH_UP = 32  # tokens that a draft model may always compute per step


@dataclass(slots=True)
class Draft:
    """Tokens that may follow a sequence's first `start` tokens."""

    start: int
    rates: Acceptance
    kind: int  # evidence class
    ids: tuple[int, ...] = ()  # (): the draft model has not been asked yet
    accepted: int = 0  # number of accepted tokens


@dataclass(slots=True)
class DraftState:
    """Speculation state of one sequence: acceptance by source, its n-gram index, the draft under test."""

    lookup: Acceptance
    model: Acceptance
    index: Ngrams = field(default_factory=Ngrams)
    pending: Draft | None = None
    idle: int = 0  # steps since a draft was last worth its rows


class Speculator:
    """Speculative decoding of a service. Used by the engine thread alone; close() frees the draft model's
    memory.
    """

    def __init__(self, options: Speculation, draft: DraftModel | None = None) -> None:
        self.options, self.draft_model = options, draft
        self.cost, self.budget, self.past = RowCost(), TrialBudget(), Past(options.past)
        self._lookup, self._model = Acceptance(), Acceptance(first=(0.7,))
        self._sequences: dict[Sequence, DraftState] = {}
        self._prices: dict[int, tuple[int, float]] = {}
        self._steps = 0

    def extend(self, batch: Batch, scheduler: Scheduler) -> Batch:
        """The same sequences, some of them with draft tokens."""
        self._steps += 1
        rows = rows_left(batch, scheduler)
        if rows < 1:
            return batch
        price = self._price(len(batch))
        proposed = {
            seq: draft for seq in batch if may_draft(seq) and (draft := self._propose(seq, scheduler, price))
        }
        if not proposed:
            return batch
        chosen = self._choose(proposed, batch, scheduler, rows)
        drafts = self._drafts(proposed, chosen, scheduler)
        extended = {seq: seq.entry(batch[seq].num_tokens, ids) for seq, ids in drafts.items()}
        return {seq: extended.get(seq, entry) for seq, entry in batch.items()}

    def timed(self, batch: Batch, seconds: float, scheduler: Scheduler) -> None:
        """Learns from the measured duration of a step."""
        self.budget.earn(seconds)
        if not all(seq.decoding for seq in batch):
            return
        rows = sum(len(entry.ids) for entry in batch.values())
        read = sum(seq.num_computed_tokens for seq in batch)
        self.cost.learn(rows, max(1e-6, seconds - scheduler.time.reading(read)))

    def forget(self, seq: Sequence) -> None:
        """Called when the sequence ends."""
        state = self._sequences.pop(seq, None)
        if state is not None:
            self._learn(seq, state)
        if state is not None and self.options.lookup:
            self.past.add(seq.request.salt, seq.ids)
        if self.draft_model is not None:
            self.draft_model.forget(seq)

    def close(self) -> None:
        self._sequences.clear()
        if self.draft_model is not None:
            self.draft_model.release()

    def _price(self, rows: int) -> float:
        """The probability that a draft's first token needs for a draft of any length to be worth its rows."""
        made, price = self._prices.get(rows, (-REFRESH, 0.0))
        if self._steps - made >= REFRESH:
            base = self.cost.seconds(rows)
            gain = wanted_gain(rows) / max(base, 1e-9)
            each = [
                (gain * self.cost.seconds(rows + n) - 1) / n for n in range(1, self.options.draft_max + 1)
            ]
            price = rows * min(each) if base else 0.0
            self._prices[rows] = self._steps, price
        return price

    def _propose(self, seq: Sequence, scheduler: Scheduler, price: float) -> Draft | None:
        """The best draft for the sequence, before anything is computed for it. A lookup draft only if it may
        be worth its rows.
        """
        state = self._sequences.get(seq)
        if state is None:
            state = DraftState(Acceptance(self._lookup), Acceptance(self._model))
            self._sequences[seq] = state
        idle, state.idle = state.idle, state.idle + 1
        if idle > PATIENCE and idle % NAP:
            return None
        self._learn(seq, state)
        most = max_draft_tokens(seq, scheduler.engine.pages, self.options.draft_max)
        found = self._look_up(seq, state, most) if self.options.lookup else None
        if found is not None and found.rates.first_chance(found.kind) < price:
            found = None
        if found is None and self.draft_model is not None and self.draft_model.max_draft_tokens(seq, most):
            found = Draft(len(seq.ids), state.model, 0)
        return found

    def _look_up(self, seq: Sequence, state: DraftState, most: int) -> Draft | None:
        index = state.index
        known = len(index)
        index.extend(seq.ids[known : known + READ])
        if len(index) < len(seq.ids):
            return None
        match = index.match(most)
        if self.past.size and (match is None or match.length < LONGEST):
            other = self.past.match(seq.request.salt, seq.ids[-LONGEST:], most)
            match = other if other and (match is None or other.length > match.length) else match
        if match is None:
            return None
        draft = Draft(len(seq.ids), state.lookup, evidence(match.length), match.ids)
        state.pending = state.pending or draft
        return draft

    def _learn(self, seq: Sequence, state: DraftState) -> None:
        """Compares the pending draft with the tokens that came."""
        draft = state.pending
        while draft is not None and draft.start + draft.accepted < len(seq.ids):
            accepted = draft.ids[draft.accepted] == seq.ids[draft.start + draft.accepted]
            draft.rates.learn(draft.kind, draft.accepted, accepted)
            draft.accepted += 1
            if not accepted or draft.accepted == len(draft.ids):
                draft = state.pending = None

    def _choose(
        self,
        proposed: dict[Sequence, Draft],
        batch: Batch,
        scheduler: Scheduler,
        rows: int,
    ) -> dict[Sequence, int]:
        """Number of tokens to draft for each sequence."""
        seqs, pages = list(proposed), scheduler.engine.pages
        asking = sum(not g.ids for g in proposed.values())
        each = self.draft_model.seconds(asking) if self.draft_model is not None and asking else 0.0
        candidates = []
        for seq, draft in proposed.items():
            most = len(draft.ids) or max_draft_tokens(seq, pages, self.options.draft_max)
            if not draft.ids and self.draft_model is not None:
                most = self.draft_model.max_draft_tokens(seq, most)
            candidates.append(
                DraftCandidate(draft.rates.chances(draft.kind, most), 0.0 if draft.ids else each)
            )
        seconds = StepCost(self.cost, scheduler, batch)
        if not seconds(0):
            return {}
        found = lengths(candidates, seconds.decoded, seconds, rows, self.options.draft_min)
        if not any(found) and candidates:
            self._probe(seqs, candidates, found, seconds, min(rows, PROBE))
        return {seq: n for seq, n in zip(seqs, found, strict=True) if n}

    def _probe(
        self,
        seqs: abc.Sequence[Sequence],
        candidates: abc.Sequence[DraftCandidate],
        found: list[int],
        seconds: StepCost,
        n: int,
    ) -> None:
        """Tries a few tokens of the most promising draft, if the trial budget covers the cost."""
        i = max(range(len(seqs)), key=lambda i: candidates[i].chances[0] if candidates[i].chances else 0.0)
        candidate = candidates[i]
        n = min(n, len(candidate.chances))
        if n < max(1, self.options.draft_min):
            return
        if not candidate.seconds and seconds.measured(n):
            return  # benefit and cost of lookup drafts are known without a trial
        cost = seconds(n) - seconds(0) + n * candidate.seconds
        if candidate.seconds and self.draft_model is not None:
            cost += self.draft_model.catching_up(seqs[i])
        if self.budget.spend(cost):
            found[i] = n

    def _drafts(
        self, proposed: dict[Sequence, Draft], chosen: dict[Sequence, int], scheduler: Scheduler
    ) -> dict[Sequence, tuple[int, ...]]:
        """The drafts, with blocks reserved for them."""
        asked = {seq: n for seq, n in chosen.items() if not proposed[seq].ids}
        if asked and self.draft_model is not None:
            for seq, ids in self.draft_model.propose(asked, self._room(scheduler)).items():
                proposed[seq].ids = ids
        drafts = {}
        for seq, n in chosen.items():
            draft = proposed[seq]
            count = take_blocks(seq, scheduler.engine.pages, min(n, len(draft.ids)))
            if count:
                drafts[seq] = draft.ids[:count]
                state = self._sequences[seq]
                state.pending, state.idle = draft, 0
        return drafts

    def _room(self, scheduler: Scheduler) -> int:
        """Tokens that the draft model may compute to catch up: any number for a single user; beside others,
        no more than fit the duration of a step.
        """
        if self.draft_model is None:
            return 0
        most = self.draft_model.engine.batch
        if len(scheduler.running) == 1:
            return most
        fitting = self.draft_model.time.prompt_tokens(0, 0, self.cost.seconds(len(scheduler.running)), most)
        return min(most, max(fitting, CATCH_UP + 2 * len(scheduler.running)))


class StepCost:
    """Seconds of this step by number of draft rows. decoded: tokens that it gives without drafts."""

    def __init__(self, cost: RowCost, scheduler: Scheduler, batch: Batch) -> None:
        self.decoded, self._cost = len(batch), cost
        self._known = sum(len(entry.ids) for entry in batch.values())
        self._twice = isinstance(scheduler.engine.pages.groups[-1], StateGroup)
        self._reading = scheduler.time.reading(sum(seq.num_computed_tokens for seq in batch))

    def measured(self, drafted: int) -> bool:
        return self._cost.measured(self._known + drafted)

    def __call__(self, drafted: int) -> float:
        rows = self._cost.seconds(self._known + drafted)
        if rows and drafted and self._twice:  # tokens accepted before a rejected one are replayed
            rows += max(0.0, rows - self._cost.seconds(self._known))
        return rows + self._reading if rows else 0.0
