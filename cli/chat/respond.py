"""Generates one answer for a command: streams it to a writer, measures it, and cancels it on Ctrl-C.

The first Ctrl-C ends the answer after the current token or prompt chunk; the second ends it at once.
"""

from __future__ import annotations

import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from satchel.cli.chat.bar import Progressed, late_bar
from satchel.cli.progress import working

if TYPE_CHECKING:
    from satchel.cli.chat.display import AnswerOutput
    from satchel.runtime.api.chat import ChatPrompt
    from satchel.runtime.api.generate_options import GenerateKwargs
    from satchel.runtime.api.model import Model
    from satchel.runtime.api.reply import Reply, Stats
    from satchel.runtime.sampling import Sampling

Prompt: TypeAlias = "ChatPrompt | list[int]"  # a conversation, or the tokens of a text to complete
TAIL = 8  # tokens at the end of a prompt that are searched for an opening <think>
CONTEXTS = 4  # an answer of a chat that shifts ends after so many contexts, unless max_tokens is set


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """How an answer is sampled and when it ends."""

    sampling: Sampling
    kwargs: GenerateKwargs  # further fields of GenerateOptions


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer, complete or cancelled by the user."""

    text: str
    stats: Stats
    seed: int | None
    seconds: float  # from the start of the prompt to the last token
    reply: Reply
    twice: bool = False  # the user pressed Ctrl-C twice

    @property
    def stopped(self) -> bool:
        return self.stats.finish == "cancelled"


class Stop:
    """Cancels the watched replies on Ctrl-C while it is entered."""

    def __init__(self) -> None:
        self.asked = False
        self.replies: list[Reply] = []
        self._before: Any = None

    def __enter__(self) -> Stop:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a shell's background jobs ignore SIGINT
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
        """Cancels this reply too on Ctrl-C, also on one that was pressed before."""
        self.replies.append(reply)
        if self.asked:
            reply.cancel()


def respond(model: Model, prompt: Prompt, request: ChatRequest, writer: AnswerOutput | None) -> ChatAnswer:
    """The answer to a prompt; each piece is written to the writer. A cancelled answer has the text so
    far.
    """
    started = time.perf_counter()
    with Stop() as stop, late_bar("reading the prompt", sys.stderr) as progressed:
        reply = begun(model, prompt, request, progressed)
        stop.watch(reply)
        if writer is not None:
            writer.begin(not isinstance(prompt, list) and opens_thinking(model, reply.prompt))
        try:
            found = pieces(reply)
            if writer is None:
                next(found, None)  # the prompt is read, so its bar has gone
                with working("generating the answer"):
                    deque(found, 0)
            else:
                for piece in found:
                    writer.write(piece)
        except KeyboardInterrupt:
            reply.stats.finish = "cancelled"
            return replace(answer_of(reply, started), twice=True)
    return answer_of(reply, started)


def respond_often(model: Model, prompt: Prompt, request: ChatRequest, n: int, made: int) -> list[ChatAnswer]:
    """`made` answers to one prompt, each with its own seed; the n with the best mean log-probability where n
    is less than `made`.
    """
    from satchel.runtime.api.answers import best, seeds

    started, sampling = time.perf_counter(), request.sampling
    first = secrets.randbits(63) if sampling.seed is None else sampling.seed
    kwargs = request.kwargs
    if made > n:
        kwargs = {**kwargs, "logprobs": max(0, kwargs.get("logprobs", -1))}
    with Stop() as stop, late_bar("reading the prompt", sys.stderr) as progressed:
        replies: list[Reply] = []
        for seed in seeds(first, made):
            one = replace(request, sampling=sampling.with_seed(seed), kwargs=kwargs)
            # The first answer reads the prompt, and the others find it in the cache.
            replies.append(begun(model, prompt, one, (lambda done, total: None) if replies else progressed))
            stop.watch(replies[-1])
        next(iter(replies[0]), None)
        with working(f"generating {made} answers"):
            answers = [answer_of(reply, started) for reply in best(replies, n)]
    for answer in answers:  # read in turn but generated together, so the engine's times count
        report = answer.reply.report
        answer.stats.prefill_seconds = report.queue_seconds + report.prefill_seconds
        answer.stats.decode_seconds = report.decode_seconds
    return answers


def begun(model: Model, prompt: Prompt, request: ChatRequest, progress: Progressed) -> Reply:
    """The reply to a request, before anything is computed."""
    kwargs: GenerateKwargs = {**request.kwargs, "sampling": request.sampling, "progress": progress}
    if isinstance(prompt, list):
        return model.generate(prompt, **kwargs)
    if kwargs.get("on_overflow") == "shift" and kwargs.get("max_tokens", -1) < 0:
        kwargs["max_tokens"] = CONTEXTS * model.context
    return model.answer_chat(prompt, **kwargs)


def pieces(reply: Reply) -> Iterator[str]:
    """The displayed text of a reply."""
    from satchel.runtime.api.chat_reply import ChatReply

    return reply.shown() if isinstance(reply, ChatReply) else iter(reply)


def answer_of(reply: Reply, started: float) -> ChatAnswer:
    """The answer of a finished reply. started: the time of the request, on time.perf_counter's clock."""
    from satchel.runtime.api.chat_reply import ChatReply

    text = reply.spoken if isinstance(reply, ChatReply) else reply.text
    return ChatAnswer(text, reply.stats, reply.sampling.seed, time.perf_counter() - started, reply)


def notes(answer: ChatAnswer) -> list[str]:
    """The notes of an answer. That of a context shift says what else a full context can mean."""
    reply, found = answer.reply, [*answer.reply.notes]
    if reply.shifts:
        found[-1] += "; --on-overflow error ends the answer there"
        limit = CONTEXTS * reply.model.context
        if answer.stats.finish == "length" and answer.stats.generated == limit:
            found.append(f"the answer was ended after {CONTEXTS} contexts; -n sets another limit")
    return found


def counts(stats: Stats) -> list[str]:
    """The number of generated tokens and the token rate, for the line after an answer."""
    rate = [f"{stats.decode_rate:,.0f} tok/s"] if stats.decode_rate else []
    return [f"{stats.generated:,} token{'' if stats.generated == 1 else 's'}", *rate]


def opens_thinking(model: Model, ids: Sequence[int]) -> bool:
    """Whether the prompt ends inside a reasoning section that the template opened."""
    return model.detokenize(ids[-TAIL:], special=True).rstrip().endswith(model.style.open)
