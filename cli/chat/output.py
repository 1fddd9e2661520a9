"""The output of a chat: text for users, or one JSON object per line for programs."""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from satchel.cli.chat.about import describe
from satchel.cli.chat.display import BOLD, DIM, NEARLY_FULL, RED, YELLOW, AnswerOutput, AnswerWriter, Look
from satchel.cli.chat.respond import ChatAnswer, counts, notes
from satchel.cli.chat.session import Session
from satchel.cli.chat.thinking import ThinkingSplitter
from satchel.cli.console import plain
from satchel.cli.reports import answer_facts, lines, report_rows, timings


class TextOutput:
    """Output for users. On a terminal everything goes to stdout; in a pipe only answers do, the rest to
    stderr.
    """

    def start(self, session: Session) -> None:
        if session.interactive:
            name, *facts = describe(session.model)
            session.say(name, BOLD)
            for fact in facts:
                session.say(f"  {fact}", DIM)

    def say(self, session: Session, text: str, style: str) -> None:
        stream: TextIO = sys.stdout if session.interactive else sys.stderr
        look = session.look if session.interactive else Look.of(sys.stderr)
        print(look.paint(plain(text), style), file=stream, flush=True)

    def fail(self, session: Session, text: str) -> None:
        self.say(session, f"error: {text}", RED)

    def writer(self, session: Session) -> AnswerOutput:
        if session.markdown and session.look.cursor:
            from satchel.cli.chat.rendered import MarkdownWriter

            return MarkdownWriter(sys.stdout, session.look)
        return AnswerWriter(sys.stdout, session.look)

    def report_answer(self, session: Session, answer: ChatAnswer) -> None:
        stats = answer.stats
        if session.interactive or sys.stderr.isatty():
            nearly_full = session.used >= NEARLY_FULL * session.model.context
            session.say(f"  {status(session, answer)}", YELLOW if nearly_full else DIM)
        if answer.stopped and not answer.text:
            session.say("  stopped before the first word; the message was taken back", DIM)
        rows = [*timings(answer, session.loading)] if session.verbose else []
        session.loading = 0.0  # only the first answer's time includes loading
        if session.report:
            session.model.bandwidth()  # measures the memory bandwidth, of which the report gives the share
            rows += report_rows(answer.reply.report)
        for line in lines(rows):
            session.say(f"  {line}", DIM)
        for line in notes(answer):
            session.say(f"note: {line}", DIM)
        if stats.reason:
            session.fail(f"the answer is cut: {stats.reason}{advice(session, answer)}")


def status(session: Session, answer: ChatAnswer) -> str:
    """The status line after an answer: tokens, rate, fill level of the context."""
    end = "stopped" if answer.stopped else ""
    if answer.stats.finish == "length" and not answer.stats.reason:
        end = "cut at max_tokens"
    meter = session.look.meter(session.used, session.model.context)
    return session.look.joined([*counts(answer.stats), meter, end])


def advice(session: Session, answer: ChatAnswer) -> str:
    """A hint for an answer that reached a limit."""
    if "the context of" in answer.stats.reason:
        if session.how.on_overflow == "shift":
            return ", and structured output cannot shift; /clear or -c makes room, /set format none shifts"
        return "; /clear forgets the conversation, /save keeps it"
    return "; /set max_tokens allows more" if answer.stats.finish == "length" else ""


class Objects:
    """Output for programs: one JSON object per line on stdout; its `event` names its kind."""

    def start(self, session: Session) -> None:
        model = session.model
        facts = {"model": session.conversation.model, "path": str(model.path), "context": model.context}
        _write("start", **facts, load_seconds=round(session.loading, 6))

    def say(self, session: Session, text: str, style: str) -> None:
        _write("note", text=text)

    def fail(self, session: Session, text: str) -> None:
        _write("error", message=text)

    def writer(self, session: Session) -> AnswerOutput:
        return PieceWriter()

    def report_answer(self, session: Session, answer: ChatAnswer) -> None:
        if session.report:
            session.model.bandwidth()
        facts = answer_facts(session.model, answer, session.report, False)
        used = {"cached_tokens": answer.stats.cached, "context_used": session.used}
        _write("answer", **facts, **used, reason=answer.stats.reason, notes=notes(answer))


class PieceWriter:
    """Writes each piece as an object, with different events for thinking and answer."""

    def __init__(self) -> None:
        self.begin(False)

    def begin(self, started: bool) -> None:
        self._thinking = ThinkingSplitter(started)

    def write(self, piece: str) -> None:
        for text, thought in self._thinking.feed(piece):
            _write("thinking" if thought else "piece", text=text)

    def finish(self) -> None:
        for text, thought in self._thinking.flush():
            _write("thinking" if thought else "piece", text=text)


def _write(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}, ensure_ascii=False), flush=True)
