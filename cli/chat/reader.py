"""Readers of the user's turns: from a terminal with editing and history, or from the lines of a file or pipe.

A line that ends with a backslash continues on the next one, and text after \"\"\" until the next \"\"\".
prompt_toolkit is imported for a terminal only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from satchel.cli.chat.display import Look
from satchel.cli.options import decoded
from satchel.errors import RequestError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import Output

QUOTES = '"""'
MENTION = re.compile(r"(?<!\S)@(\S*)$")  # the name of a file that is being typed
MENU = 6  # rows below the prompt that completions may take
PLACEHOLDER = "Ask anything, /help for help"


def is_open(text: str) -> bool:
    """Whether the text begins with triple quotes that are not closed yet."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def unquoted(text: str) -> str:
    """The text inside its triple quotes; unchanged without quotes."""
    inner = text.strip()
    if not inner.startswith(QUOTES) or is_open(inner):
        return text
    return inner[len(QUOTES) : -len(QUOTES)].strip("\n")


def read_lines(stream: TextIO, prompt: Callable[[], None]) -> Iterator[str]:
    """One turn per line or per group of continued lines. prompt: called before each turn."""
    held: list[str] = []
    prompt()
    for number, raw in enumerate(stream.buffer, 1):
        line = decoded(raw, f"stdin, line {number}")
        goes_on = line.endswith("\\")
        held.append(line[:-1] if goes_on else line)
        text = "\n".join(held)
        if goes_on or is_open(text):
            continue
        held.clear()
        yield unquoted(text)
        prompt()
    if held:
        raise RequestError(f"stdin: the text ended inside of a message of {len(held)} lines: it was not sent")


def read_objects(stream: TextIO) -> Iterator[str]:
    """One turn per line, for programs: an object {"text": TURN}, or plain text."""
    for number, raw in enumerate(stream.buffer, 1):
        line = decoded(raw, f"stdin, line {number}")
        yield _turn_of(line, number) if line.lstrip().startswith("{") else line


def _turn_of(line: str, number: int) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"stdin, line {number}: begins with {{ and is no JSON: {error}") from None
    if not isinstance(found, dict) or set(found) != {"text"} or not isinstance(found["text"], str):
        raise RequestError(f'stdin, line {number}: expected an object {{"text": TURN}} and nothing else')
    return str(found["text"])


class PlainReader:
    """Reads turns line by line from a terminal without cursor control, such as an editor's shell.

    Ctrl-C discards the message; pressed twice it leaves, as Ctrl-D does.
    """

    def __init__(self, stream: TextIO, say: Callable[[str], None], armed: Callable[[], bool]) -> None:
        self._stream, self._say, self._stopped = stream, say, armed

    def __iter__(self) -> Iterator[str]:
        armed = False
        while True:
            try:
                for text in read_lines(self._stream, self._prompt):
                    armed = False
                    yield text
                return
            except KeyboardInterrupt:
                if armed or self._stopped():
                    return
                armed = True
                self._say("\nCtrl-C again leaves, and so does Ctrl-D")
            except RequestError as error:
                self._say(f"\n{error}")

    def _prompt(self) -> None:
        print("> ", end="", flush=True)


class TerminalReader:
    """Reads turns with prompt_toolkit: Enter sends, Alt+Enter or a backslash before Enter begins a new line.

    Ctrl-C clears the input; on an empty line it leaves when pressed twice, or at once where `armed` returns
    True (it was pressed during the answer). Ctrl-D leaves. Ctrl-G opens the input in an editor.
    """

    def __init__(
        self,
        look: Look,
        say: Callable[[str], None],
        armed: Callable[[], bool] = lambda: False,
        *,
        source: Input | None = None,
        target: Output | None = None,
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.formatted_text import FormattedText

        self._say, self._armed, self._cleared, self._stopped = say, False, False, armed
        style = "ansicyan bold" if look.colour else ""
        dim = "ansibrightblack" if look.colour else ""
        self._prompt = FormattedText([(style, "> ")])
        self._session: PromptSession[str] = PromptSession(
            history=_history(say),
            multiline=True,
            key_bindings=self._keys(),
            prompt_continuation=lambda width, number, soft: "" if soft else "  ",
            placeholder=partial(_hint, dim) if look.colour else None,
            completer=completer(),
            complete_while_typing=Condition(_is_slash),
            reserve_space_for_menu=MENU,
            tempfile_suffix=".md",
            input=source,
            output=target,
        )

    def __iter__(self) -> Iterator[str]:
        while True:
            self._cleared = False
            try:
                text = self._session.prompt(self._prompt)
            except KeyboardInterrupt:
                if (self._armed or self._stopped()) and not self._cleared:
                    return
                self._armed = True
                if not self._cleared:
                    self._say("Ctrl-C again leaves, and so does Ctrl-D")
                continue
            except EOFError:
                return
            self._armed, self._session.placeholder = False, None
            yield unquoted(text)

    def _keys(self) -> KeyBindings:
        from prompt_toolkit.filters import is_searching
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        @keys.add("enter", filter=~is_searching)
        def enter(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            document = buffer.document
            if document.is_cursor_at_the_end and document.current_line_before_cursor.endswith("\\"):
                buffer.delete_before_cursor()
                buffer.newline()
            elif is_open(buffer.text):
                buffer.newline()
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=~is_searching)
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline()

        @keys.add("c-g", filter=~is_searching)
        @keys.add("c-x", "c-e")
        def edit(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor(validate_and_handle=False)

        @keys.add("c-c", filter=~is_searching)
        def interrupt(event: KeyPressEvent) -> None:
            self._cleared = bool(event.current_buffer.text)
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

        return keys


def _history(say: Callable[[str], None]) -> History:
    """The history file, readable by its owner only; a history in memory where the file can't be written."""
    from platformdirs import user_state_path
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = Path(user_state_path("satchel", appauthor=False)) / "chat_history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError as error:
        say(f"no history is kept: {path}: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(str(path))


def _hint(style: str) -> StyleAndTextTuples:
    """The placeholder of an empty input, if it fits the terminal's current width."""
    from prompt_toolkit.application import get_app

    fits = get_app().output.get_size().columns > len(PLACEHOLDER) + 3
    return [(style, PLACEHOLDER)] if fits else []


def _is_slash() -> bool:
    """Whether the input is a slash command, which is completed while it is typed."""
    from prompt_toolkit.application import get_app

    text = get_app().current_buffer.text
    return text.startswith("/") and "\n" not in text


def completer() -> Completer:
    """Completes commands, settings and names of conversations, and file names after @ and after a command
    that takes one.
    """
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    from satchel.cli.chat.commands import completions, is_command, wants_file

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
            line = document.text_before_cursor
            if not is_command(line) or "\n" in line:
                name = MENTION.search(line)
                return paths.get_completions(Document(name[1]), event) if name else ()
            command, space, rest = line.partition(" ")
            found = [Completion(text, -len(line), display_meta=about) for text, about in completions(line)]
            if space and wants_file(command) and not found:
                return paths.get_completions(Document(rest), event)
            return found

    return Commands()
