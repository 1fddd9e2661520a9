"""ChatParser splits a streamed answer into reasoning, content and tool calls.

Invariants: text that may be the beginning of a marker is held back until that is decided; only markers, and
white space beside them, are missing from the texts.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from satchel.formats.chat.events import CallBegin, CallBroken, CallEnd, Content, Event, Note, Reasoning
from satchel.formats.chat.family import families
from satchel.formats.chat.reader import SPACES, AnswerReader, Malformed, Steps
from satchel.formats.chat.style import Style

LETTERS = string.ascii_letters + string.digits


def new_id(form: str = "") -> str:
    """A random call id: nine letters or digits, or "call_" and 24 of them."""
    count, lead = (9, "") if form == "letters9" else (24, "call_")
    return lead + "".join(secrets.choice(LETTERS) for _ in range(count))


class ChatParser:
    """Takes pieces of an answer and yields events.

    tools: the tools that may be called; without any, calls are text.
    opening: "" for an answer from its start, "reasoning" or "content" where the prompt began one.
    tokens: the style's markers that are tokens of the vocabulary; they count only where `feed` marks them.
    trim: drop white space beside markers.
    hold: emit a call's events when it is complete, so that no call is retracted.
    ids: creates an id for each call.
    """

    def __init__(
        self,
        style: Style,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        opening: str = "",
        tokens: Collection[str] = (),
        trim: bool = True,
        hold: bool = False,
        ids: Callable[[], str] | None = None,
    ) -> None:
        family = style.calls
        form = family.ids if family else ""
        self._reader = AnswerReader(tokens, schemas(tools), ids or (lambda: new_id(form)))
        self._steps = _answer(self._reader, style, opening)
        self._trim = _Trim() if trim else None
        self._hold = Hold() if hold else None
        self._over = False

    def feed(self, text: str, mark: bool = False, shown: bool = True) -> list[Event]:
        """Adds a piece of the answer. mark: the piece is a marker's token. shown: its text is visible to
        readers.
        """
        self._reader.push(text, mark, shown)
        return self._run()

    def finish(self) -> list[Event]:
        """Ends the answer; returns the last events, including text that was held back."""
        self._reader.ended = True
        events = self._run()
        self._over = True
        return events

    def _run(self) -> list[Event]:
        if self._over:
            return []
        events: list[Event] = []
        for event in self._steps:
            if event is None:
                break
            events += self._trim.pass_on(event) if self._trim else [event]
        if self._reader.ended and self._trim:
            events += self._trim.flush()
        if self._hold:
            return [out for event in events for out in self._hold.pass_on(event)]
        return events


def schemas(tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    """The parameter schemas by tool name."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools or ():
        function = tool.get("function", tool)
        parameters = function.get("parameters")
        found[str(function.get("name"))] = parameters if isinstance(parameters, Mapping) else {}
    return found


def _answer(reader: AnswerReader, style: Style, opening: str) -> Steps[None]:
    family = style.calls if reader.tools or (style.calls and style.calls.whole) else None
    if family and family.whole:
        yield from family.whole(reader, opening)
        return
    if opening == "reasoning" or (not opening and (yield from _opens(reader, style))):
        yield from _thought(reader, style)
    unmarked = families()["spoken"] if family and style.spoken else family
    if unmarked and unmarked.calls and unmarked.bare and opening != "content":
        yield from _bare(reader, unmarked.calls, unmarked.opens)
    begins = family.begins if family else ()
    # Ordinary text cannot contain a marker's token, so the token opens reasoning anywhere.
    later = (style.open,) if reader.is_token(style.open) else ()
    while (marker := (yield from reader.until((*begins, *later), Content))) is not None:
        if marker in begins and family and family.calls:
            yield from _calls(reader, family.calls, marker)
        else:
            yield from _thought(reader, style)


def _opens(reader: AnswerReader, style: Style) -> Steps[bool]:
    """Whether the answer begins with reasoning. If not, the white space before it is content."""
    reader.start()
    if (yield from reader.at(style.open)):
        return True
    yield from reader.broken(Malformed())
    return False


def _thought(reader: AnswerReader, style: Style) -> Steps[None]:
    yield Reasoning("")
    yield from reader.until((style.close,), Reasoning)
    yield Content("")


def _bare(
    reader: AnswerReader, grammar: Callable[[AnswerReader, str], Steps[None]], opens: str
) -> Steps[None]:
    reader.start()
    if (yield from reader.skip()) and (not opens or reader.peek() in opens):
        yield from _guarded(reader, grammar, "")
    else:
        yield from reader.broken(Malformed())


def _calls(
    reader: AnswerReader, grammar: Callable[[AnswerReader, str], Steps[None]], marker: str
) -> Steps[None]:
    reader.start(marker)
    yield from _guarded(reader, grammar, marker)


def _guarded(
    reader: AnswerReader, grammar: Callable[[AnswerReader, str], Steps[None]], marker: str
) -> Steps[None]:
    try:
        yield from grammar(reader, marker)
    except Malformed as error:
        yield from reader.broken(error)


class _Trim:
    """Drops white space between reasoning, content and calls; keeps it at the answer's end."""

    def __init__(self) -> None:
        self._kind: type[Content] | type[Reasoning] | None = None
        self._held, self._fresh = "", False
        self._before: tuple[type[Content] | type[Reasoning] | None, str] = (None, "")

    def pass_on(self, event: Event) -> Iterator[Event]:
        if isinstance(event, CallBegin):
            self._before = self._kind, self._held
            self._kind, self._held, self._fresh = None, "", True
        elif isinstance(event, CallBroken):
            (self._kind, self._held), self._fresh = self._before, False
        if not isinstance(event, Content | Reasoning):
            yield event
            return
        if type(event) is not self._kind:
            self._fresh = self._fresh or self._kind is not None or not event.text
            self._kind, self._held = type(event), ""
        text = event.text.lstrip(SPACES) if self._fresh else event.text
        self._fresh = self._fresh and not text
        whole = self._held + text
        shown = whole.rstrip(SPACES)
        self._held = whole[len(shown) :]
        if shown:
            yield self._kind(shown)

    def flush(self) -> Iterator[Event]:
        held, self._held = self._held, ""
        if held and self._kind:
            yield self._kind(held)


class Hold:
    """Holds a call's events until it ends. Events of a malformed call are dropped; its text follows as
    content.
    """

    def __init__(self) -> None:
        self._held: list[Event] | None = None

    def pass_on(self, event: Event) -> list[Event]:
        if isinstance(event, CallBegin):
            self._held = [event]
        elif isinstance(event, CallBroken):
            self._held = None
        elif self._held is not None and isinstance(event, CallEnd):
            whole, self._held = [*self._held, event], None
            return whole
        elif self._held is None or isinstance(event, Note):
            return [event]
        else:
            self._held.append(event)
        return []
