"""Runs and completes slash commands."""

from __future__ import annotations

from collections.abc import Iterator

from satchel.cli.chat import slash  # registers the commands
from satchel.cli.chat.registry import ALIASES, COMMANDS, find
from satchel.cli.chat.session import Session
from satchel.errors import RequestError
from satchel.errors.spelling import did_you_mean

__all__ = ["completions", "is_command", "obey", "slash", "wants_file"]


def is_command(text: str) -> bool:
    return text.startswith("/") and not text.startswith("//")


def obey(session: Session, text: str) -> None:
    """Runs a command. RequestError for an unknown command or an argument that it does not take."""
    name, *rest = text[1:].split(maxsplit=1)[:2] or [""]
    rest_text = rest[0].strip() if rest else ""
    found = find(name)
    if found is None:
        known = (*COMMANDS, *ALIASES)
        hint = did_you_mean(name, known, "/{}") or "see /help; // begins a message with a slash"
        raise RequestError(f"no command /{name}; {hint}")
    if rest_text and not found.usage:
        raise RequestError(f"/{name} takes nothing after its name, got {rest_text[:40]!r}")
    found.run(session, rest_text)


def completions(line: str) -> Iterator[tuple[str, str]]:
    """Completions of a command line, each with a short description."""
    name, space, rest = line[1:].partition(" ")
    if not space:
        for known in (*COMMANDS, *ALIASES):
            found = find(known)
            if found is not None and known.startswith(name):
                yield f"/{known}", found.line
        return
    command = find(name)
    if command is not None and command.words is not None:
        for word in command.words():
            if word.startswith(rest):
                yield f"/{name} {word}", ""


def wants_file(name: str) -> bool:
    """Whether the command, named with its slash, takes a file name."""
    command = find(name.removeprefix("/"))
    return name.startswith("/") and command is not None and command.files
