"""What a slash command is. The commands themselves stand in slash/, each a function whose docstring is its
line in /help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from satchel.cli.chat.session import Session

Run = Callable[["Session", str], None]
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
    """The user wants to go."""


@dataclass(frozen=True, slots=True)
class Command:
    """usage: what follows the name; line: for /help; words: what can be completed behind the name; files:
    whether names of files are.
    """

    run: Run
    usage: str
    line: str
    words: Words | None
    files: bool


COMMANDS: dict[str, Command] = {}
ALIASES: dict[str, str] = {"?": "help"}


def command(
    name: str, usage: str = "", *, also: tuple[str, ...] = (), words: Words | None = None, files: bool = False
) -> Callable[[Run], Run]:
    """Registers a command under its name; `also` are other names for it."""

    def register(run: Run) -> Run:
        COMMANDS[name] = Command(run, usage, (run.__doc__ or "").rstrip("."), words, files)
        ALIASES.update(dict.fromkeys(also, name))
        return run

    return register


def find(name: str) -> Command | None:
    return COMMANDS.get(ALIASES.get(name, name))
