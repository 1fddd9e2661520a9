"""The registry of slash commands. The commands are in slash/: each is a function whose docstring is its line
in /help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from satchel.cli.chat.session import Session

Run = Callable[[Session, str], None]
Words = Callable[[], Iterable[str]]
KEYS = (
    ("@FILE", "in a message: the file goes with it"),
    ("Alt+Enter, \\ Enter", "goes on in a new line"),
    ('""" ... """', "a message of several lines"),
    ("//...", "a message that begins with /"),
    ("Up, Ctrl-R", "earlier messages; search in them"),
    ("Tab", "completes commands, settings, names"),
    ("Ctrl-G", "opens what is typed in $EDITOR"),
    ("Ctrl-C", "stops an answer, clears the line; twice leaves"),
    ("Ctrl-D", "leaves"),
)


class Leave(Exception):
    """Raised to end the chat."""


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command."""

    run: Run
    usage: str  # its arguments, for /help
    line: str  # its description, for /help
    words: Words | None  # completions of its argument
    files: bool  # whether its argument is completed as a file name


COMMANDS: dict[str, Command] = {}
ALIASES: dict[str, str] = {"?": "help"}


def command(
    name: str, usage: str = "", *, also: tuple[str, ...] = (), words: Words | None = None, files: bool = False
) -> Callable[[Run], Run]:
    """Registers a command under its name. also: its other names."""

    def register(run: Run) -> Run:
        COMMANDS[name] = Command(run, usage, (run.__doc__ or "").rstrip("."), words, files)
        ALIASES.update(dict.fromkeys(also, name))
        return run

    return register


def find(name: str) -> Command | None:
    return COMMANDS.get(ALIASES.get(name, name))
