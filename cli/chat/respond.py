"""Streams one answer of the model to a writer. Ctrl-C stops it.

The first Ctrl-C ends the answer after the current token or prefill chunk; a second one does not wait for
that.
"""

from __future__ import annotations

import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from satchel.cli.chat.bar import Progressed, late_bar

if TYPE_CHECKING:
    from satchel.cli.chat.display import AnswerOutput
    from satchel.runtime.generate_options import GenerateKwargs
    from satchel.runtime.grammar import Spec
    from satchel.runtime.model import Model
    from satchel.runtime.reply import Reply, Stats
    from satchel.runtime.sampling import Sampling

TAIL = 8  # tokens at the end of a prompt that are searched for an opening <think>


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The options of one answer."""

    sampling: Sampling
    max_tokens: int = -1  # -1: no limit
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    raw: bool = False  # plain text completion, without a chat format
    grammar: Spec | None = None
    reasoning: bool | int | str | None = None
    on_overflow: str = "error"
    logprobs: int = -1
    # The conversation behind the prompt; it is rendered again where reasoning or on_overflow change the
    # prompt.
    messages: Sequence[Mapping[str, Any]] = ()

    @property
    def changes_prompt(self) -> bool:
        return self.reasoning is not None or self.on_overflow != "error"


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer, complete or stopped by the user."""

    text: str
    stats: Stats
    seed: int | None
    seconds: float  # from the start of prefill to the end
    reply: Reply
    twice: bool = False  # the user pressed Ctrl-C twice

    @property
    def stopped(self) -> bool:
        return self.stats.finish == "cancelled"


class Stop:
    """A context manager in which Ctrl-C cancels the watched replies."""

    def __init__(self) -> None:
        self.asked = False
        self.replies: list[Reply] = []
        self._before: Any = None

    def __enter__(self) -> Stop:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a background job of a shell
        if not ignored and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        for reply in self.replies:
            reply.cancel()

    def watch(self, reply: Reply) -> None:
        """Adds a reply to cancel at Ctrl-C; cancels it at once where Ctrl-C was pressed already."""
        self.replies.append(reply)
        if self.asked:
            reply.cancel()


def respond(
    model: Model, ids: Sequence[int], request: ChatRequest, writer: AnswerOutput | None
) -> ChatAnswer:
    """Generates the answer to a prompt and passes each piece to the writer. A stopped answer
    keeps its text.
    """
    started = time.perf_counter()
    with Stop() as stop, late_bar("reading the prompt", sys.stderr) as progressed:
        reply = begun(model, ids, request, progressed)
        stop.watch(reply)
        if writer is not None:
            writer.begin(not request.raw and opens_thinking(model, reply.prompt))
        try:
            for piece in pieces(reply):
                if writer is not None:
                    writer.write(piece)
        except KeyboardInterrupt:
            reply.stats.finish = "cancelled"
            return replace(answer_of(reply, started), twice=True)
    return answer_of(reply, started)


def respond_often(
    model: Model, ids: Sequence[int], request: ChatRequest, n: int, made: int
) -> list[ChatAnswer]:
    """Generates `made` answers to one prompt, each with its own seed, and returns the n best."""
    from satchel.runtime.answers import best, seeds

    started, sampling = time.perf_counter(), request.sampling
    first = secrets.randbits(63) if sampling.seed is None else sampling.seed
    logprobs = max(0, request.logprobs) if made > n else request.logprobs
    with Stop() as stop, late_bar("reading the prompt", sys.stderr) as progressed:
        replies = []
        for seed in seeds(first, made):
            one = replace(request, sampling=sampling.with_seed(seed), logprobs=logprobs)
            replies.append(begun(model, ids, one, progressed))
            stop.watch(replies[-1])
        answers = [answer_of(reply, started) for reply in best(replies, n)]
    for answer in answers:  # they ran as one batch but were read one by one: take the engine's times
        report = answer.reply.report
        answer.stats.prefill_seconds = report.queue_seconds + report.prefill_seconds
        answer.stats.decode_seconds = report.decode_seconds
    return answers


def begun(model: Model, ids: Sequence[int], request: ChatRequest, progress: Progressed) -> Reply:
    """The reply to a request, before any computation."""
    kwargs: GenerateKwargs = {
        "max_tokens": request.max_tokens,
        "sampling": request.sampling,
        "stop": request.stop,
        "ignore_eos": request.ignore_eos,
        "progress": progress,
        "grammar": request.grammar,
        "on_overflow": request.on_overflow,
        "logprobs": request.logprobs,
    }
    if request.raw:
        return model.generate(ids, **kwargs)
    if request.changes_prompt:
        return model.chat(request.messages, reasoning=request.reasoning, **kwargs)
    return model.answer(ids, **kwargs)


def pieces(reply: Reply) -> Iterator[str]:
    """The pieces of a reply that the user sees."""
    from satchel.runtime.chat_reply import ChatReply

    return reply.shown() if isinstance(reply, ChatReply) else iter(reply)


def answer_of(reply: Reply, started: float) -> ChatAnswer:
    """The ChatAnswer of an ended reply. started: time.perf_counter at the request."""
    from satchel.runtime.chat_reply import ChatReply

    text = reply.spoken if isinstance(reply, ChatReply) else reply.text
    return ChatAnswer(text, reply.stats, reply.sampling.seed, time.perf_counter() - started, reply)


def counts(stats: Stats) -> list[str]:
    """Generated tokens and decoding rate, for the status line."""
    rate = [f"{stats.decode_rate:,.0f} tok/s"] if stats.decode_rate else []
    return [f"{stats.generated:,} token{'' if stats.generated == 1 else 's'}", *rate]


def opens_thinking(model: Model, ids: Sequence[int]) -> bool:
    """Whether the prompt ends inside a thinking block that its template opened."""
    return model.detokenize(ids[-TAIL:], special=True).rstrip().endswith(model.style.open)
