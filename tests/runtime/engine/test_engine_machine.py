"""The scheduler and its pages under any order of events (a hypothesis state machine): nothing is lost and
nothing hangs.
"""

import numpy as np
from devices import needs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulate import open_engine

from satchel.errors import RequestError
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.kv.host import HostTier
from satchel.runtime.scheduler import Scheduler, SchedulerLimits, Sequence

CONTEXT, ENOUGH = 200, 5000


class Machine(RuleBasedStateMachine):
    """Requests arrive, are cancelled, time out and are preempted, in a pool that is too small for all."""

    engine: Engine
    scheduler: Scheduler

    @initialize(
        slots=st.integers(1, 4), blocks=st.integers(3, 12), batch=st.sampled_from([8, 64]),
        tier=st.integers(0, 12), pays=st.booleans(),
    )  # fmt: skip
    def begin(self, slots: int, blocks: int, batch: int, tier: int, pays: bool) -> None:
        """tier: blocks that host memory takes, 0 for none; pays: whether they are worth the move."""
        self.engine = open_engine(CONTEXT, slots, blocks=blocks, batch=batch)
        if tier:
            limit = tier * self.engine.states.block_bytes[0]
            self.engine.tier = HostTier(limit, self.engine.pages, self.engine.states)
            self.engine.tier.recompute = lambda tokens: None if pays else 0.0
        self.scheduler = Scheduler(self.engine, slots, SchedulerLimits(queue=6, min_prefill_tokens=4))
        self.seqs: list[Sequence] = []
        self.leased: list[int] = []
        self.now, self.slots = 0.0, slots
        self.rng = np.random.default_rng(0)

    @rule(
        length=st.integers(1, 150), alike=st.booleans(), most=st.integers(1, 60), priority=st.integers(-2, 2),
        user=st.sampled_from("ab"), salt=st.sampled_from(["", "x"]), patience=st.none() | st.floats(0, 3),
    )  # fmt: skip
    def arrive(
        self, length: int, alike: bool, most: int, priority: int, user: str, salt: str, patience: float | None
    ) -> None:
        ids = list(range(length)) if alike else [int(t) for t in self.rng.integers(0, 200, length)]
        deadline = None if patience is None else self.now + patience
        request = GenerateRequest(ids, most, priority=priority, user=user, salt=salt, deadline=deadline)
        try:
            self.scheduler.check(request)
        except RequestError:
            cache = self.engine.pages.cache
            assert len(self.scheduler.waiting) >= 6 or length + 1 > cache.pool * cache.block
            return
        seq = Sequence(request, self.now)
        self.scheduler.add(seq)
        self.seqs.append(seq)

    @rule(which=st.integers(0, 5))
    def cancel(self, which: int) -> None:
        if self.seqs:
            seq = self.seqs.pop(which % len(self.seqs))
            self.scheduler.remove(seq)

    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.one_step()

    @rule()
    def acquire(self) -> None:
        slot = self.scheduler.acquire_slot()
        if slot is not None:
            self.leased.append(slot)

    @rule()
    def release(self) -> None:
        if self.leased:
            self.scheduler.release_slot(self.leased.pop())

    @rule(length=st.integers(1, 6), alike=st.booleans(), salt=st.sampled_from(["", "x"]), whole=st.booleans())
    def restore(self, length: int, alike: bool, salt: str, whole: bool) -> None:
        """A saved state comes into the cache; where it is not whole, its file was found wrong on the way."""
        slot = self.scheduler.acquire_slot()
        if slot is None:
            return
        pages, block = self.engine.pages, self.engine.cache.block
        count = length * block
        ids = list(range(count)) if alike else [int(t) for t in self.rng.integers(0, 200, count)]
        cached, _ = self.engine.begin(slot, [*ids, 0], salt)
        best = pages.reachable(slot, length, lambda group, place: True)
        taken = pages.extend(slot, best) if best else []
        assert len(taken) == max(0, best - cached // block)
        if whole:
            pages.publish(slot, ids[: best * block], salt)
            assert pages.tree.match(ids, salt)[0].length == max(best, cached // block)
        self.scheduler.release_slot(slot)

    @rule(salt=st.sampled_from([None, "", "x"]))
    def forget(self, salt: str | None) -> None:
        """As one who wants nothing of a user kept."""
        self.engine.pages.tree.clear(salt)
        assert salt is not None or self.engine.tier is None or not len(self.engine.tier)

    def one_step(self) -> bool:
        """Whether anything was done."""
        self.now += 0.05
        expired = self.scheduler.expired(self.now)
        for seq in expired:
            self.scheduler.remove(seq)
            self.seqs.remove(seq)
        batch = self.scheduler.plan(self.now)
        if not batch:
            return bool(expired)
        entries = tuple(batch.values())
        assert 0 < sum(entry.num_tokens for entry in entries) <= self.engine.batch
        assert len({entry.slot for entry in entries}) == len(entries), "a slot is fed once a step"
        tokens = self.engine.step(entries)
        for seq in self.scheduler.done(batch, tokens, self.now, 0.01):
            assert seq.finish in ("stop", "length")
            self.seqs.remove(seq)
        return True

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "seqs"):
            return
        waiting, running = self.scheduler.waiting, self.scheduler.running
        assert sorted(map(id, (*waiting, *running))) == sorted(map(id, self.seqs))
        taken = [s.slot for s in running] + self.leased
        assert len(set(taken)) == len(taken) and all(0 <= s < self.slots for s in taken)
        assert all(s.slot < 0 and s.num_computed_tokens == 0 for s in waiting)
        for seq in running:
            assert seq.num_computed_tokens == self.engine.length(seq.slot) <= len(seq.ids)
        self.engine.pages.check()
        if self.engine.tier is not None:
            self.engine.tier.check()

    def teardown(self) -> None:
        if not hasattr(self, "seqs"):
            return
        while self.leased:
            self.release()
        for _ in range(ENOUGH):
            if not self.seqs:
                break
            assert self.one_step(), f"stuck with {len(self.seqs)} requests"
        assert not self.seqs
        pages = self.engine.pages
        pages.tree.clear()
        assert pages.pool.free == pages.pool.size, "a block is lost"
        self.engine.close()


Machine.TestCase.settings = settings(stateful_step_count=40)
TestMachine = needs("null")(Machine.TestCase)


@needs("null")
def test_two_clients_that_lose_their_blocks_to_each_other_both_end() -> None:
    """One slot, and blocks for one of them: a prompt that gives way begins anew, and gets further then."""
    machine = Machine()
    machine.begin(slots=1, blocks=3, batch=8, tier=0, pays=False)
    for user, length in (("a", 17), ("b", 23), ("a", 1), ("b", 1)):
        machine.arrive(alike=False, length=length, most=1, patience=None, priority=0, salt="", user=user)
    machine.teardown()
