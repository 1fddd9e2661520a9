"""One running answer: an iterator of text pieces that never splits a character, with counts and times.

The engine's thread samples the tokens; this module turns them into text in the caller's thread.
"""

from __future__ import annotations

import time
from collections import abc
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from queue import Empty
from typing import Protocol

from satchel.formats.resource import Resource
from satchel.formats.tokenizer import Detokenizer, StopStrings, Tokenizer
from satchel.runtime.api import notebook
from satchel.runtime.api.answer_text import AnswerTextSettings
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.api.options import Options
from satchel.runtime.api.overflow import Fitted, shifted
from satchel.runtime.api.tokenized_options import generate_request, in_tokens, stop_ids_of
from satchel.runtime.api.usage_report import UsageReport
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import RequestHandle
from satchel.runtime.grammar import Grammar, compile_grammar
from satchel.runtime.grammar.verdict import judge
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.log import LOG
from satchel.runtime.sampling import MASK, Sampling
from satchel.runtime.sampling.logprobs import Logprob
from satchel.runtime.scheduler import Sequence

POLL = 0.05  # seconds between progress reports of a prefill
ENDLESS = 1 << 62  # max_tokens of an answer without a limit
STRIDE = 0x9E3779B97F4A7C15  # difference between the seeds of two context shifts


class GeneratingModel(Protocol):
    """What an answer needs of its model."""

    measured_bandwidth: float | None
    options: Options

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context(self) -> int: ...

    def adapter_scales(
        self,
        adapters: abc.Mapping[str, float] | None = None,
        control_vectors: abc.Mapping[str, float] | None = None,
    ) -> AdapterScales: ...

    def submit(self, request: GenerateRequest) -> RequestHandle: ...


@dataclass(slots=True)
class Stats:
    """Token counts and seconds of an answer."""

    prompt: int = 0  # tokens of the prompt
    cached: int = 0  # of those, found in the cache
    generated: int = 0  # tokens of the answer, with the end token
    drafted: int = 0  # draft tokens that were verified
    accepted: int = 0  # draft tokens that were accepted
    prefill_seconds: float = 0.0  # from the request to its first token
    decode_seconds: float = 0.0  # from the first token to the last
    # "stop" (end token or stop string), "length" (max_tokens or full context), "cancelled"; "": running
    finish: str = ""
    reason: str = ""  # why, where `finish` does not say it

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second, without cached ones."""
        return (self.prompt - self.cached) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        return (
            (self.generated - 1) / self.decode_seconds if self.decode_seconds and self.generated > 1 else 0.0
        )


class Reply(Resource):
    """One answer. Iterate for text pieces; `ids`, `text`, `stats` and `report` grow meanwhile. The request
    starts with the first piece. Closing it, leaving its `with` block, or dropping the last reference ends the
    request. A piece raises RequestError if the queue is full or the finished answer violates its grammar, and
    DeviceError if the device fails.

    prompt: token ids of the prompt.
    ids: token ids of the answer so far, without the end token.
    stats: token counts and seconds so far.
    options: those of the request.
    sampling: as used, with the seed.
    logprobs: one per token so far, including the end token; empty unless requested.

    Another loop, such as a task's, drives it through start(), feed() and `over`. If `unjudged` is true after
    feed(), it must call conclude(), in a thread, because checking the whole answer may take a second.
    """

    def __init__(self, model: GeneratingModel, fitted: Fitted, options: GenerateOptions) -> None:
        self.model, self.prompt, self.options = model, fitted.ids, options
        self.sampling = in_tokens(options.seeded_sampling, model.tokenizer)
        self.logprobs: list[Logprob] = []
        self._grammar: Grammar | None = None
        if options.grammar is not None:
            self._grammar = compile_grammar(model.tokenizer, options.grammar)
        self.handle: RequestHandle | None = None
        self.ids: list[int] = []
        self.stats = Stats(prompt=len(self.prompt))
        self.over = self._cancelled = self.unjudged = False
        self._stop, self._fitted = StopStrings(options.stop, options.include_stop_str_in_output), fitted
        self._stop_ids = stop_ids_of(model.tokenizer, options)
        room = ENDLESS if options.on_overflow == "shift" else model.context - len(self.prompt) + 1
        self._limit = room if options.max_tokens < 0 else min(options.max_tokens, room)
        self._context = self.prompt  # tokens given to the engine: the prompt, or what a shift has kept
        self._detokenizer: Detokenizer | None = None
        self._parts: list[str] = []
        self._sequences: list[Sequence] = []
        self._forgotten, self._reported = 0, -1
        self._resumed = 0  # requests that only continue a deliberately ended one
        self._began = self._first_at = 0.0

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._parts) > 1:
            self._parts[:] = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stop.found

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings for the reader of the answer, such as truncation."""
        found, speculation = list(self._fitted.notes), self.model.options.speculation
        if self.options.draft > 0 and not (speculation and speculation.active):
            lacks = "the model was loaded without speculation (--lookup, --draft-model)"
            found.append(f"draft is {self.options.draft}, but no token is drafted: {lacks}")
        if self._forgotten:
            times = f" {self.shifts} times" if self.shifts > 1 else ""
            found.append(f"the context was full{times}: {self._forgotten} older tokens were forgotten")
        return tuple(found)

    @property
    def shifts(self) -> int:
        """The number of context shifts so far."""
        return max(0, len(self._sequences) - 1 - self._resumed)

    @property
    def report(self) -> UsageReport:
        """Usage report so far."""
        stats, fitted = self.stats, self._fitted
        return UsageReport(
            sampling=self.sampling,
            prompt_tokens=stats.prompt,
            generated_tokens=stats.generated,
            finish=stats.finish,
            reason=stats.reason,
            cut_tokens=fitted.cut + self._forgotten,
            cut_messages=fitted.messages,
            shifts=self.shifts,
            limit=self.model.measured_bandwidth,
            notes=self.notes,
        ).with_usage(self._sequences)

    def __iter__(self) -> abc.Iterator[str]:
        return self

    def __next__(self) -> str:
        while not self.over:
            handle = self.start()
            piece = self.feed(self._wait(handle) if handle else None)
            if self.unjudged:
                self.conclude()
            if piece:
                return piece
        raise StopIteration

    def __del__(self) -> None:
        if not getattr(self, "over", True):
            self.close()

    def __repr__(self) -> str:
        if not self.began:
            return f"<{type(self).__name__}, not begun: iterate over it, or call read() or display()>"
        return f"<{type(self).__name__} {notebook.shortened(self.text)}, {self._summary()}>"

    @property
    def began(self) -> bool:
        """Whether the answer was begun: by its first piece, by start(), or by ending it."""
        return self.handle is not None or self.over

    def _summary(self) -> str:
        """How long the answer is, how fast it came and how it ended."""
        stats = self.stats
        rate = f"{stats.decode_rate:.0f} tokens/s" if self.over and stats.decode_rate else ""
        return notebook.joined(
            [notebook.counted(stats.generated, "token"), rate, stats.finish if self.over else "running"]
        )

    def display(self) -> None:
        """Runs to the end and shows the answer while it grows: in a notebook as one display that is updated,
        elsewhere as text on stdout. A notebook does so by itself for an answer at the end of a cell.
        """
        shown = notebook.display_of(self.looks, self.text)
        try:
            for piece in self:
                shown.grow(piece)
        except BaseException:  # an interrupt, too: nobody reads on
            self.close()
            raise
        finally:
            shown.finish()

    def looks(self) -> tuple[str, str]:
        """The answer so far as HTML and as a line of text."""
        return self._repr_html_(), repr(self)

    def _repr_html_(self) -> str:
        """The answer so far, for a notebook."""
        if not self.began:
            return notebook.faint(repr(self))
        return notebook.plain(self.text) + self._footer()

    def _footer(self) -> str:
        """The lines below the answer."""
        reason = f"{self._summary()}: {self.stats.reason}" if self.stats.reason else self._summary()
        return "".join(map(notebook.faint, (reason, *self.notes)))

    def _ipython_display_(self) -> None:
        """Called by a notebook for the last value of a cell. An answer that was begun is shown as it is, for
        its pieces are somebody else's.
        """
        if self.began or not notebook.in_notebook():
            raise NotImplementedError  # IPython then takes _repr_html_() or repr()
        self.display()

    def cancel(self) -> None:
        """Ends the answer after the current token or prompt chunk. Safe in a signal handler."""
        self._cancelled, self.stats.finish = True, "cancelled"
        if self.handle is not None:
            self.handle.cancel()

    def close(self) -> None:
        """Ends the answer at once: no further piece comes. Idempotent."""
        if self.over:
            return
        self.over = True
        self.stats.finish = self.stats.finish or "cancelled"
        if self.handle is not None:
            self.handle.cancel()

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability, for ranking answers to one prompt; -inf if unknown."""
        known = self.logprobs
        return sum(p.logprob for p in known) / len(known) if known else -inf

    def read(self) -> str:
        """Runs to the end; gives the whole text."""
        for _ in self:
            pass
        return self.text

    @property
    def starts_slowly(self) -> bool:
        """Whether start() may compile a grammar or scan the vocabulary, which takes about a second."""
        return self.handle is None and (self.options.grammar is not None or self.sampling.dry_multiplier > 0)

    def start(self) -> RequestHandle | None:
        """The current request, submitted at the first call; None if no token is wanted."""
        if self.handle is None and self._limit > 0 and not self.stats.finish:
            self._detokenizer = self._stream()
            self._began = time.perf_counter()
            self._submit()
            if (
                self._cancelled or self.over
            ) and self.handle is not None:  # cancelled by a signal or a task meanwhile
                self.handle.cancel()
        return self.handle

    def _submit(self) -> None:
        room = self.model.context - len(self._context) + 1
        most = min(room, self._limit - self.stats.generated)
        self.handle = self.model.submit(self._request(most))
        self.handle.logprobs = self.logprobs  # a shift continues the same list
        self._sequences.append(self.handle.seq)

    def _request(self, max_tokens: int) -> GenerateRequest:
        """What the engine is to generate next."""
        model, options = self.model, self.options
        scales = model.adapter_scales(options.adapters, options.control_vectors)
        return generate_request(model.tokenizer, options, self._context, max_tokens, self._drawing(), scales)

    def _constrained_text(self) -> str:
        """The part of the answer that the grammar constrains."""
        return self.text

    def conclude(self) -> None:
        """Checks a finished answer against its grammar: records that it is incomplete, or raises RequestError
        if it ended by itself and is invalid, or if that cannot be decided at a bounded cost.
        """
        self.unjudged = False
        if self._grammar is None:
            return
        said = judge(self._grammar, self._constrained_text(), self.stats.finish, self._stop.found or None)
        self.stats.reason = "; ".join(part for part in (self.stats.reason, said) if part)

    def _drawing(self) -> Sampling:
        """Sampling options of the current request. A context shift reuses positions, so each one gets a seed
        of its own.
        """
        if not self._sequences or self.sampling.seed is None:
            return self.sampling
        return self.sampling.with_seed((self.sampling.seed + len(self._sequences) * STRIDE) & MASK)

    def _wait(self, handle: RequestHandle) -> int | None:
        """The next token. Reports the progress of the prefill until the first one."""
        while self.options.progress and not self.stats.generated:
            with suppress(Empty):
                return handle.get(timeout=POLL)
            self.report_progress()
        return handle.get()

    def report_progress(self, done: int | None = None) -> None:
        """Calls `progress` with the number of prompt tokens computed so far, if it changed. done: that
        number; None: from the sequence.
        """
        seq = self._sequences[0]
        at = max(seq.num_computed_tokens, seq.cached) if done is None else done
        if self.options.progress and at != self._reported and seq.started >= 0:
            self._reported = at
            self.options.progress(at - seq.cached, len(self.prompt) - seq.cached)

    def feed(self, token: int | None) -> str:
        """The text that a token adds, often none. None ends the answer, or continues it after a shift."""
        if token is None:
            if self._shift():
                return ""
            piece = self._end()
            self.unjudged = self._grammar is not None
            return piece
        self._count(1)
        if token in self._stop_ids:
            return ""
        self.ids.append(token)
        piece = self._say(self._stop.feed(self._text(token)))
        if self._stop.found:
            self.unjudged = self._grammar is not None
        return piece

    def feed_all(self, tokens: abc.Sequence[int]) -> str:
        """feed() of each token of the current request, until the answer ends or goes on with another request:
        together, where none of them can end it.
        """
        if self._may_end(tokens):
            handle, piece = self.handle, ""
            for token in tokens:
                if self.over or self.handle is not handle:
                    break
                piece += self.feed(token)
            return piece
        self._count(len(tokens))
        self.ids += tokens
        return self._say(self._stop.feed(self._texts(tokens)))

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the answer and are no part of it."""
        return self._stop_ids

    @property
    def text_settings(self) -> AnswerTextSettings | None:
        """How the answer's text follows from its tokens; None where it does not follow from these alone."""
        options = self.options
        return AnswerTextSettings(self._stream().strip, options.stop, options.include_stop_str_in_output)

    def _may_end(self, tokens: abc.Sequence[int]) -> bool:
        """Whether one of the tokens may end the answer or its current request."""
        return self._stop.any or not self._stop_ids.isdisjoint(tokens)

    def _count(self, tokens: int) -> None:
        stats = self.stats
        if not stats.generated:
            self._first()
        stats.generated += tokens
        stats.decode_seconds = time.perf_counter() - self._first_at
        if self._sequences[-1].used.drafted:
            stats.drafted = sum(s.used.drafted for s in self._sequences)
            stats.accepted = sum(s.used.accepted for s in self._sequences)

    def _stream(self) -> Detokenizer:
        # A grammar counts every character, so it keeps the space that may open a text.
        return self.model.tokenizer.stream(start=self._grammar is None)

    def _text(self, token: int) -> str:
        """The text that the token adds."""
        return self._detokenizer.feed(token) if self._detokenizer else ""

    def _texts(self, tokens: abc.Sequence[int]) -> str:
        """The text that these tokens add."""
        return self._detokenizer.feed(tokens) if self._detokenizer else ""

    def _tail(self) -> str:
        """Text of the remaining bytes of the last token."""
        return self._detokenizer.flush() if self._detokenizer else ""

    def _first(self) -> None:
        """Records what is known with the first token."""
        self._first_at = time.perf_counter()
        self.stats.prefill_seconds = self._first_at - self._began
        self.stats.cached = self._sequences[0].cached
        self.report_progress(len(self.prompt))

    def _say(self, piece: str) -> str:
        if piece:
            self._parts.append(piece)
        if self._stop.found and not self.over:
            self.stats.finish = "stop"
            self.close()
        return piece

    def _shift(self) -> bool:
        """Context shift: continues with a shorter context if the present one is full and the caller allows
        it.
        """
        handle, left = self.handle, self._limit - self.stats.generated
        shifts = self.options.on_overflow == "shift"
        if not (shifts and handle and handle.finish == "length" and left > 0 and not self.stats.finish):
            return False
        whole = [*self._context, *handle.seq.ids[len(self._context) :]]
        self._context = shifted(whole, self._fitted.head)
        self._forgotten += len(whole) - len(self._context)
        LOG.info("the context was full: %d tokens were forgotten", len(whole) - len(self._context))
        self._submit()
        return True

    def _end(self) -> str:
        """Emits held-back text and records the finish reason."""
        self.over = True
        piece = self._say(self._stop.feed(self._tail()) + self._stop.flush())
        stats = self.stats
        if self._stop.found:
            stats.finish = "stop"
        if not stats.finish:
            stats.finish = self.handle.finish if self.handle else "length"
            full = not 0 <= self.options.max_tokens <= self._limit
            if stats.finish == "length" and full and self._limit <= len(self.ids):
                stats.reason = f"the context of {self.model.context} tokens is full"
        if self._sequences:
            stats.cached = self._sequences[0].cached
        return piece
