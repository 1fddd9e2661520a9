"""Commands that attach or send text files."""

from __future__ import annotations

from pathlib import Path

from satchel.cli.chat.attach import attached, matches
from satchel.cli.chat.display import DIM
from satchel.cli.chat.names import path_of
from satchel.cli.chat.registry import command
from satchel.cli.chat.session import Session
from satchel.errors import RequestError


@command("file", "FILE", files=True, also=("attach",))
def _file(session: Session, text: str) -> None:
    """Attach a file to the next message; /file "" attaches none."""
    if text in ('""', "''"):
        session.attached.clear()
        session.say("no file is attached", DIM)
        return
    _attach(session, [path_of(text, "file")])


@command("glob", "PATTERN", files=True)
def _glob(session: Session, text: str) -> None:
    """Attach all files that match, such as notes/*.md."""
    if not text:
        raise RequestError("/glob needs a pattern such as notes/*.md")
    _attach(session, matches(text))


@command("read", "FILE", files=True)
def _read(session: Session, text: str) -> None:
    """Send the text of a file as a message."""
    session.send_plain(attached(path_of(text, "read")).text)


def _attach(session: Session, paths: list[Path]) -> None:
    found = [attached(path) for path in paths]
    for one in found:
        session.attached.append(one)
        session.say(f"{one.name}: {len(one.text):,} characters go with the next message", DIM)
