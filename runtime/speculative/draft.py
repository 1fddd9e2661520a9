"""A second, smaller model that guesses what the first will say. It samples as the first does, from the same
random numbers, so where the two agree about chances they agree about tokens.

Its slots are numbered as the first's. What a slot holds is only ever a beginning of its job's tokens and
guesses after them, which are taken back when they turn out wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from satchel.formats.tokenizer import Tokenizer
from satchel.formats.tokenizer.vocab import Kind
from satchel.quant import RequestError
from satchel.runtime.engine import Engine, Feed
from satchel.runtime.host_sampling import drawn
from satchel.runtime.scheduler import Job
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
class Held:
    """What a slot holds, and for whom. sure: how many of `ids` were the job's own when they were fed."""

    job: Job | None = None
    ids: list[int] = field(default_factory=list)
    sure: int = 0


class DraftModel:
    """vocab: token ids of the first model; own: of this one. The engine has as many slots as the first's, and
    is used by the same thread.
    """

    def __init__(self, engine: Engine, vocab: int, own: int) -> None:
        self.engine, self.time = engine, StepTime()
        self.shared, self._own = min(vocab, own), own
        self._held = [Held() for _ in range(engine.cache.slots)]

    def behind(self, job: Job) -> int:
        """Tokens that must be fed before the first guess."""
        held = self._held[job.slot]
        return len(job.ids) - (held.sure if held.job is job else 0)

    def most(self, job: Job, wanted: int) -> int:
        """Tokens that may be guessed after the job's: as far as the context reaches."""
        return max(0, min(wanted, self.engine.cache.context - len(job.ids)))

    def seconds(self, jobs: int) -> float:
        """What guessing one token takes for each of so many jobs at once."""
        return self.time.seconds(Load(jobs, 0, 0)) / max(1, jobs)

    def catching_up(self, job: Job) -> float:
        """Seconds for what the slot lacks of the job's tokens."""
        return self.time.seconds(Load(0, self.behind(job), 0))

    def propose(self, wanted: Mapping[Job, int], room: int) -> dict[Job, tuple[int, ...]]:
        """So many guesses for each job, or fewer; none where a slot could not catch up within `room` tokens,
        all slots together.
        """
        found: dict[Job, list[int]] = {}
        feeds: dict[Job, list[int]] = {}
        for job, count in wanted.items():
            lacking = self._take_over(job)
            n = min(len(lacking), room)
            known = max(lacking, default=0) < self._own
            if count < 1 or n < 1 or not known or not self._has_room(job, len(job.ids) + count):
                continue
            feeds[job] = lacking[:n]
            room -= n
            if n == len(lacking):
                found[job] = []
        while feeds:
            self._step(feeds, found)
            more = [j for j in feeds if j in found and self._goes_on(found[j], wanted[j])]
            feeds = {j: [found[j][-1]] for j in more}
        return {job: self._known(ids) for job, ids in found.items()}

    def forget(self, job: Job) -> None:
        """The job ended: what its slot holds stays for requests that begin alike."""
        for slot, held in enumerate(self._held):
            if held.job is job:
                self._empty(slot, held)

    def release(self) -> None:
        """Frees programs and states, before the devices are closed."""
        self.engine.release()

    def _goes_on(self, ids: list[int], wanted: int) -> bool:
        return len(ids) < wanted and ids[-1] < self.shared

    def _known(self, ids: list[int]) -> tuple[int, ...]:
        """Guesses up to the first that the first model does not know."""
        bad = next((i for i, token in enumerate(ids) if token >= self.shared), len(ids))
        return tuple(ids[:bad])

    def _take_over(self, job: Job) -> list[int]:
        """Makes the job's slot hold a beginning of its tokens, and gives those that it lacks."""
        held = self._held[job.slot]
        if held.job is not job:
            if held.job is not None:
                self._empty(job.slot, held)
            cached, _ = self.engine.begin(job.slot, job.ids, job.request.salt)
            held.job, held.ids, held.sure = job, job.ids[:cached], cached
        length = min(held.sure, len(job.ids) - 1)  # the last token is fed for its guess, known or not
        while length < min(len(held.ids), len(job.ids) - 1) and held.ids[length] == job.ids[length]:
            length += 1
        if length < len(held.ids):
            length = self.engine.rewind(job.slot, length)
            del held.ids[length:]
        held.sure = length
        return job.ids[length:]

    def _empty(self, slot: int, held: Held) -> None:
        if held.job is not None:
            self.engine.publish(slot, held.ids, held.job.request.salt)
        self.engine.rewind(slot, 0)
        held.job, held.ids, held.sure = None, [], 0

    def _sure(self, job: Job) -> bool:
        """Whether the slot holds all of the job's tokens and no guess, so that the next one is the first."""
        return len(self._held[job.slot].ids) == len(job.ids)

    def _has_room(self, job: Job, length: int) -> bool:
        pages = self.engine.pages
        missing = pages.missing(job.slot, length)
        if missing and missing > pages.free_blocks:
            return False
        pages.reserve(job.slot, length)
        return True

    def _step(self, feeds: Mapping[Job, list[int]], found: Mapping[Job, list[int]]) -> None:
        """One step of the draft model; a guess for each job that is in `found`."""
        first = any(len(ids) > 1 for ids in feeds.values())
        steps = [
            Feed(j.slot, ids, j.request.sampling, host_sampling=j.host_sampling, guessed=self._sure(j))
            if j in found
            else Feed(j.slot, ids)
            for j, ids in feeds.items()
        ]
        inside = self.engine.timing.inside
        tokens = iter(drawn(self.engine.sample(steps)))
        total = sum(len(ids) for ids in feeds.values())
        read = sum(len(self._held[j.slot].ids) for j in feeds)
        load = Load(0, total, read) if first else Load(total, 0, read)
        self.time.learn(load, self.engine.timing.inside - inside)
        for job, ids in feeds.items():
            held = self._held[job.slot]
            held.ids += ids
            held.sure = min(len(held.ids), len(job.ids))
            if job in found:
                found[job].append(next(tokens))
