"""The loop of a chat: each turn of the user is a slash command to run or a message to answer."""

from __future__ import annotations

from collections.abc import Iterable

from satchel.cli.chat.commands import is_command, obey
from satchel.cli.chat.registry import Leave
from satchel.cli.chat.session import Session
from satchel.errors import SatchelError


def answer_turns(session: Session, turns: Iterable[str], *, once: bool = False) -> None:
    """Answers each turn or runs its command, until the turns end or /exit; with `once`, for one answer."""
    for text in turns:
        if not text.strip():
            continue
        session.stopped = False
        try:
            if is_command(text):
                obey(session, text)
                session.gap()
                continue
            session.send(text[1:] if text.startswith("//") else text)
        except Leave:
            return
        except KeyboardInterrupt:
            if not session.interactive:
                raise
            return  # pressed twice, or without an answer to stop
        except SatchelError as error:
            session.fail(str(error))
        session.gap()
        if once:
            return
