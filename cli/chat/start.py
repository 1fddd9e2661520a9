"""Starts a chat with the options of a command line: `satchel chat`, and `satchel run MODEL` in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.cli.adapters import AdapterOptions
from satchel.cli.chat.options import ChatOptions
from satchel.cli.grammars import GrammarOptions, check_spec
from satchel.cli.options import ModelOptions, TextOptions, open_model
from satchel.cli.replies import ReplyOptions
from satchel.cli.sampling import SamplingOptions
from satchel.cli.speculation import SpeculationOptions

if TYPE_CHECKING:
    from satchel.cli.chat.history import ChatSettings
    from satchel.cli.chat.session import Session
    from satchel.runtime.api.model import Model

FAILED = 1


@dataclass(frozen=True, slots=True)
class ChatStart:
    """The groups of options of a chat."""

    model: ModelOptions
    text: TextOptions
    sampling: SamplingOptions
    adapters: AdapterOptions
    speculation: SpeculationOptions
    grammar: GrammarOptions
    reply: ReplyOptions
    talk: ChatOptions

    def load(self, path: Path | None) -> Model:
        """The model in a file, or the one that the options name."""
        model = self.model if path is None else self.model.at(path)
        speculating, defaults = self.speculation.speculation(), self.reply.loaded()
        return open_model(model, self.adapters, speculation=speculating, defaults=defaults)

    def settings(self, model: Model) -> ChatSettings:
        """The settings of a chat with the model before the user changes any."""
        from satchel.cli.chat.history import ChatSettings

        drawn = self.sampling.sampling(model.request_defaults.sampling)
        return ChatSettings(drawn, self.text.generate_kwargs()["max_tokens"])


def converse(start: ChatStart) -> int | None:
    """Loads the model and runs the conversation. Returns the exit code."""
    text, talk, reply = start.text, start.talk, start.reply
    first, system, kwargs = text.prompt_text(), text.system_text(), text.generate_kwargs()
    start.sampling.values()  # refuses wrong ones before the model is loaded
    start.speculation.speculation()
    spec, file = start.grammar.spec(), talk.file()
    reply.check(raw=False, structured=spec is not None)
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not talk.as_json
    started = time.perf_counter()
    with ExitStack() as stack:
        loaded = stack.enter_context(start.load(None))
        from satchel.cli.chat.about import model_name
        from satchel.cli.chat.display import Look
        from satchel.cli.chat.history import Conversation
        from satchel.cli.chat.output import Objects, TextOutput
        from satchel.cli.chat.session import How, Session

        if spec is not None:
            check_spec(loaded, spec)
        conversation = Conversation(model_name(loaded), system, (), start.settings(loaded))
        session = Session(
            loaded,
            conversation,
            Look.of(sys.stdout),
            interactive,
            Objects() if talk.as_json else TextOutput(),
            verbose=text.verbose,
            markdown=talk.markdown,
            report=reply.report,
            how=How(kwargs, spec, reply.thinking, reply.conversation_overflow),
            loading=time.perf_counter() - started,
            loader=start,
        )
        stack.callback(lambda: session.model.close())
        session.begin()
        _run(session, _turns(session, first, talk.as_json), talk.single, file)
    return FAILED if session.errors and not interactive else None


def _run(session: Session, turns: Iterator[str], once: bool, kept: Path | None) -> None:
    """Runs the conversation. With a file it is loaded at the start and saved at the end, however the chat
    ends.
    """
    from satchel.cli.chat.loop import answer_turns

    if kept is None:
        answer_turns(session, turns, once=once)
        return
    from satchel.cli.chat.state import begin, end

    begin(session, kept)
    try:
        answer_turns(session, turns, once=once)
    finally:
        end(session, kept)


def _turns(session: Session, first: str | None, as_json: bool) -> Iterator[str]:
    """The user's turns: the prompt of the command line, then those of the terminal or pipe."""
    from satchel.cli.chat.reader import PlainReader, TerminalReader, read_lines, read_objects

    if first:
        if session.interactive:
            print(f"> {session.look.safe(first)}")
        yield f"/{first}" if first.startswith("/") else first  # a message, never a command
    if session.interactive and not session.look.cursor:
        yield from PlainReader(sys.stdin, session.say, lambda: session.stopped)
    elif session.interactive:
        yield from TerminalReader(session.look, session.say, lambda: session.stopped)
    elif as_json:
        yield from read_objects(sys.stdin)
    elif sys.stdin.isatty():
        yield from read_lines(sys.stdin, lambda: print("> ", end="", file=sys.stderr, flush=True))
    else:
        yield from read_lines(sys.stdin, lambda: None)
