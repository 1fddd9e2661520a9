"""Steps with host-side sampling: the forward pass runs while a thread fills the token bitmasks, then
processors change logits, then all rows are sampled. Rows of other requests in the step are sampled as usual.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from satchel.errors import RequestError, SatchelError
from satchel.runtime.engine.finite import damaged
from satchel.runtime.engine.host_sampling import HostSampling, Sampled, bitmask_size
from satchel.runtime.engine.program import Program
from satchel.runtime.graph import Array
from satchel.runtime.sampling import NONE, lost
from satchel.runtime.sampling.chain import MOST
from satchel.runtime.sampling.logprobs import Logprob, logprob_row, read_logprob

if TYPE_CHECKING:
    from satchel.runtime.engine.engine import BatchEntry, Engine

DRAWN, REPORT, LOGITS = 0, 1, 2  # places of the plan's outputs


@dataclass(slots=True)
class HostSampledRow:
    """A row whose sampling waits for the host. number: its place among the step's rows. bitmask: tokens that
    its constraint allows; raw: its logits before processors; failed: why it has no token.
    """

    number: int
    entry: BatchEntry
    host_sampling: HostSampling
    bitmask: Array | None = None
    raw: Array | None = None
    failed: SatchelError | None = None

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """An exception of the caller's own code fails this row and no other."""
        try:
            yield
        except Exception as error:
            self.fail(f"{what} failed: {type(error).__name__}: {error}")

    def fail(self, text: str) -> None:
        self.refuse(RequestError(text))

    def refuse(self, error: SatchelError) -> None:
        self.failed = self.failed or error


@dataclass(frozen=True, slots=True)
class Pending:
    """A step under way."""

    program: Program
    rows: list[HostSampledRow]


class HostSamplingSteps:
    """Runs the engine's steps that have such rows."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._filler: ThreadPoolExecutor | None = None

    def step(self, entries: Sequence[BatchEntry]) -> list[int | Sampled]:
        """As Engine.step."""
        engine, started = self.engine, time.perf_counter()
        firsts = list(accumulate((e.rows for e in entries), initial=0))
        program = engine.fill(entries, firsts[-1], "host_sampling", every=False)
        step = Pending(
            program,
            [
                HostSampledRow(first + i, entry, entry.host_sampling)
                for first, entry in zip(firsts, entries, strict=False)
                if entry.host_sampling is not None
                for i in range(entry.rows)
            ],
        )
        for row in step.rows:
            self._prepare(program, row)
        masks = self._fill_masks(step)
        before = time.perf_counter()
        program.run(lambda: self._between(step, masks))
        found = self._results(step, firsts[-1])
        inside = time.perf_counter() - before
        engine.advance(entries)
        engine.timing.add(program, inside, started, before)
        return found

    def close(self) -> None:
        if self._filler is not None:
            self._filler.shutdown()

    def _prepare(self, program: Program, row: HostSampledRow) -> None:
        """Fills the step block with what is known before the step runs."""
        params, edits, host, i = (
            program.fields["params"],
            program.fields["edits"],
            row.host_sampling,
            row.number,
        )
        biases, dry_penalties = host.edits(row.entry.past, self.engine.cache.context)
        listed = [*biases, *dry_penalties]
        if listed:
            edits[i, : len(listed), 0] = [t for t, _ in listed]
            edits[i, : len(listed), 1] = np.array([a for _, a in listed], np.float32).view(np.int32)
        mask = host.mask(row.entry.past, vocabulary_of(program))
        program.sampled = []  # the row's own numbers go into its record
        params["biases"][i], params["dry_penalties"][i] = len(biases), len(dry_penalties)
        params["masked"][i] = mask is not None or host.options.constraint is not None
        params["report"][i], params["mirostat_mu"][i] = host.reports, host.mu
        program.fields["token_bitmask"][i].view(np.uint32)[:] = 0xFFFFFFFF if mask is None else mask

    def _fill_masks(self, step: Pending) -> Future[None] | None:
        """Starts filling the token bitmasks of constraints, in a thread beside the forward pass."""
        asked = [row for row in step.rows if row.host_sampling.options.constraint is not None]
        if not asked:
            return None
        if self._filler is None:
            self._filler = ThreadPoolExecutor(1, "satchel-masks")
        size = bitmask_size(vocabulary_of(step.program))

        def fill() -> None:
            for row in asked:
                row.bitmask = np.zeros(size, np.uint32)
                with row.guarded("the constraint"):
                    row.host_sampling.fill(row.bitmask)

        return self._filler.submit(fill)

    def _between(self, step: Pending, masks: Future[None] | None) -> None:
        """Runs when the forward pass is done: bitmasks and changed logits go to the device."""
        if masks is not None:
            masks.result()
        for row in step.rows:
            bitmask = step.program.fields["token_bitmask"][row.number].view(np.uint32)
            if row.bitmask is not None and not row.failed:
                bitmask &= row.bitmask
            if step.program.fields["params"]["masked"][row.number] and not bitmask.any():
                row.fail("masks and the constraint together allow no token")
            if row.host_sampling.options.logits_processors and not row.failed:
                self._process(step.program, row)

    def _process(self, program: Program, row: HostSampledRow) -> None:
        """Runs the request's processors on its logits (V)."""
        row.raw = program.output(LOGITS, row.number, np.empty(vocabulary_of(program), np.float32))
        logits, past = row.raw.copy(), list(row.entry.past)
        if lost(logits):
            row.refuse(damaged(self.engine.source, "logits"))
            return
        with row.guarded("a logits processor"):
            for processor in row.host_sampling.options.logits_processors:
                given = processor(past, logits)
                logits = logits if given is None else np.asarray(given, np.float32)
                if logits.shape != row.raw.shape:
                    raise RequestError(f"it gave logits of shape {logits.shape}, not {row.raw.shape}")
            # What a processor makes NaN never comes, and +inf is the largest number.
            logits = np.nan_to_num(logits, nan=-np.inf, posinf=float(MOST), neginf=-np.inf)
            if lost(logits):
                raise RequestError("it left no token that may come")
            program.output(LOGITS, row.number, np.ascontiguousarray(logits), write=True)

    def _results(self, step: Pending, count: int) -> list[int | Sampled]:
        program = step.program
        pairs = program.read(np.empty((max(1, count), 2), np.int32))[:count]
        found: list[int | Sampled] = pairs[:, 0].tolist()
        nll_bits = pairs[:, 1].copy().view(np.float32)
        for row in step.rows:
            token, bits = int(pairs[row.number, 0]), float(nll_bits[row.number])
            if token == NONE:
                row.refuse(damaged(self.engine.source, "logits"))
            if not row.failed:
                with row.guarded("the constraint"):
                    row.host_sampling.took(token, bits)
            report = self._report(program, row, token) if token != NONE else None
            found[row.number] = Sampled(token, report, bits, row.failed)
        return [self.engine.undrawn() if t == NONE else t for t in found] if NONE in found else found

    def _report(self, program: Program, row: HostSampledRow, token: int) -> Logprob | None:
        k = row.host_sampling.options.logprobs
        if k < 0:
            return None
        if row.raw is not None:  # what the device has was changed
            return read_logprob(logprob_row(row.raw, token, max(1, k)), token, k)
        out = np.empty(width_of(program, REPORT), np.float32)
        return read_logprob(program.output(REPORT, row.number, out), token, k)


def width_of(program: Program, output: int) -> int:
    width = program.plan.outputs[output].type.shape[-1]
    return width if isinstance(width, int) else 0


def vocabulary_of(program: Program) -> int:
    return width_of(program, LOGITS)
