"""Computes hidden states or logits of many texts without generating: each step takes chunks of all passages
that have a slot. Requests run between these steps. A row does not depend on what else is in its step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.api.refusals import PromptTooLong
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.finite import check_hidden, check_logits
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.scheduler.sequence import salted

ROW_BYTES = 64 << 20  # most bytes of a step's output rows
PATIENCE = 0.005  # seconds between checks for free blocks


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens to read."""

    ids: Sequence[int]
    first: int = 0  # token of the first output row
    shared: bool = False  # the tokens before `first` may come from the prefix tree, and go into it
    waits_for_prefix: int | None = None  # number of a passage with the same prefix, which is read first
    segment_ids: Sequence[int] = ()  # one per token; see BatchEntry


@dataclass(frozen=True, slots=True)
class PassageRows:
    """Output rows of passage `number`."""

    number: int
    first: int  # token of the first row
    values: Array  # (n, W) float32


@dataclass(slots=True)
class ActivePassage:
    """A passage that has a slot; its first `at` tokens are computed."""

    number: int
    passage: Passage
    at: int


@dataclass(frozen=True, slots=True)
class PassageChunk:
    """Tokens at .. end - 1 of an active passage, for one step; rows are output from token `first` on."""

    slot: int
    open: ActivePassage
    first: int
    end: int


class PassageReader:
    """Reads passages once. output: "hidden" or "logits"."""

    def __init__(
        self, service: Service, output: str, adapter_scales: AdapterScales = (), salt: str = ""
    ) -> None:
        self.service, self.engine, self.output, self.adapter_scales = (
            service,
            service.engine,
            output,
            adapter_scales,
        )
        self.salt = salted(salt, adapter_scales)
        forward = self.engine.forward
        self.whole = not forward.causal
        self.width = (forward.hidden or forward.logits).width if output == "hidden" else forward.logits.width
        self.most_rows = max(1, min(self.engine.batch, ROW_BYTES // (4 * self.width)))
        self._waiting: list[tuple[int, Passage]] = []
        self._open: dict[int, ActivePassage] = {}
        self._free: list[int] = []
        self._done: set[int] = set()

    def read(self, passages: Sequence[Passage]) -> Iterator[PassageRows]:
        """Rows of all passages, each passage's in order. Raises RequestError for a passage that can never fit
        the cache.
        """
        pages = self.engine.pages
        for passage in passages:
            self.check(len(passage.ids), pages.cache.context, pages.pool.size * pages.cache.block)
            if self.whole and len(passage.ids) > min(self.engine.batch, self.most_rows):
                raise RequestError(
                    f"a text has {len(passage.ids)} tokens, and this model reads a text in one step, which"
                    f" holds {min(self.engine.batch, self.most_rows)}: shorten it or raise -b"
                )
        self._waiting = list(enumerate(passages))
        try:
            while self._waiting or self._open:
                if not self._open and not self._free:
                    self._free += self.service.acquire_slots(1)
                found = self.service.ask(self._turn)
                yield from found
                if not self._open and self._waiting:
                    time.sleep(PATIENCE)
        finally:
            self.service.release_slots([*self._free, *self._open])

    @staticmethod
    def check(count: int, context: int, pool: int) -> None:
        """Raises RequestError if a text has no token, or more than fit."""
        if not count:
            raise RequestError("a text has no token: give some text")
        if count > min(context, pool):
            room = min(context, pool)
            line = f"a text has {count} tokens, the context holds {room}: shorten it or raise -c"
            raise PromptTooLong(count, room, line)

    # --- on the engine's thread

    def _turn(self) -> list[PassageRows]:
        """Runs one step."""
        self._begin()
        chunks = self._cut()
        return self._step(chunks) if chunks else []

    def _begin(self) -> None:
        """Starts passages while there are slots and blocks."""
        scheduler = self.service.scheduler
        while (found := self._next()) is not None:
            if not self._free:
                slot = None if scheduler.waiting else scheduler.acquire_slot()
                if slot is None:
                    return
                self._free.append(slot)
            if not self._enter(self._free[-1], *found):
                return
            self._waiting.remove(found)
            self._free.pop()

    def _next(self) -> tuple[int, Passage] | None:
        """The next passage that does not wait for its prefix."""
        return next(
            (
                w
                for w in self._waiting
                if w[1].waits_for_prefix is None or w[1].waits_for_prefix in self._done
            ),
            None,
        )

    def _enter(self, slot: int, number: int, passage: Passage) -> bool:
        """Puts a passage into an empty slot with all the blocks that it needs; False if they are not
        available.
        """
        engine, pages, at = self.engine, self.engine.pages, 0
        if passage.shared and passage.first and not self.whole:
            at, _ = engine.begin(slot, passage.ids[: passage.first + 1], self.salt)
        if pages.missing(slot, len(passage.ids)) > pages.free_blocks:
            engine.rewind(slot, 0)
            return False
        pages.reserve(slot, len(passage.ids))
        self._open[slot] = ActivePassage(number, passage, at)
        return True

    def _cut(self) -> list[PassageChunk]:
        """The chunks of the next step."""
        room, rows, found = self.engine.batch, self.most_rows, []
        for slot, o in self._open.items():
            first = max(o.at, o.passage.first)
            end = min(len(o.passage.ids), o.at + room, first + rows)
            if self.whole and end < len(o.passage.ids):
                continue
            if end > o.at:
                found.append(PassageChunk(slot, o, first, end))
                room -= end - o.at
                rows -= max(0, end - first)
        return found

    def _step(self, chunks: Sequence[PassageChunk]) -> list[PassageRows]:
        engine, at = self.engine, 0
        wanted: list[int] = []
        for p in chunks:
            wanted += range(at + p.first - p.open.at, at + p.end - p.open.at)
            at += p.end - p.open.at
        entries = [self._entry(p.slot, p.open, p.end) for p in chunks]
        program = engine.fill(entries, len(wanted), self.output, every=False)
        program.fields["rows"][: len(wanted)] = wanted
        program.counts[1] = len(wanted)
        program.run()
        out: Array = np.empty((max(1, len(wanted)), self.width), np.float32)
        values = program.read(out)
        engine.advance(entries)
        check = check_hidden if self.output == "hidden" else check_logits
        check(values[: len(wanted)], engine.source)
        found, at = [], 0
        for p in chunks:
            if p.end > p.first:
                found.append(PassageRows(p.open.number, p.first, values[at : at + p.end - p.first]))
                at += p.end - p.first
            p.open.at = p.end
            if p.end == len(p.open.passage.ids):
                self._leave(p.slot)
        return found

    def _entry(self, slot: int, o: ActivePassage, end: int) -> BatchEntry:
        part = slice(o.at, end)
        return BatchEntry(
            slot,
            o.passage.ids[part],
            adapter_scales=self.adapter_scales,
            segment_ids=o.passage.segment_ids[part],
        )

    def _leave(self, slot: int) -> None:
        """A passage is complete. Its slot goes to the next one, or back to the scheduler."""
        o = self._open.pop(slot)
        if o.passage.shared and not self.whole:
            self.engine.publish(slot, o.passage.ids, self.salt)
        self._done.add(o.number)
        self.engine.rewind(slot, 0)
        if self.service.scheduler.waiting:
            self.service.scheduler.release_slot(slot)
        else:
            self._free.append(slot)
