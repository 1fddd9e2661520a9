"""Commands on the conversation: clear, undo, edit, regenerate, system prompt."""

from __future__ import annotations

from dataclasses import replace

from satchel.cli.chat.display import DIM
from satchel.cli.chat.registry import command
from satchel.cli.chat.session import Session
from satchel.cli.lines import at_column
from satchel.errors import RequestError


@command("clear", also=("new", "reset"))
def _clear(session: Session, text: str) -> None:
    """Forget the conversation; system prompt and settings stay."""
    session.resume((), session.conversation.system)
    session.say("the conversation is forgotten", DIM)


@command("regenerate", also=("regen", "retry"))
def _regenerate(session: Session, text: str) -> None:
    """Answer the last message again."""
    session.regenerate()


@command("undo")
def _undo(session: Session, text: str) -> None:
    """Take back the last message and its answer."""
    taken = _take_back(session)
    line = at_column(" ".join(taken.split()), 60)
    session.say(f"taken back: {line}", DIM)


@command("edit")
def _edit(session: Session, text: str) -> None:
    """Change the last message in $EDITOR and send it again."""
    if not session.conversation.turns:
        raise RequestError("nothing was said yet; Ctrl-G opens what is typed in the editor")
    if not session.interactive:
        raise RequestError("/edit needs a terminal for the editor")
    from satchel.cli.chat.editor import edited

    before = session.conversation.turns[-2].content
    after = edited(before).rstrip("\n")
    if not after.strip() or after == before:
        session.say("nothing was changed", DIM)
        return
    _take_back(session)
    session.send(after)


@command("system", "[TEXT]")
def _system(session: Session, text: str) -> None:
    """Show or set the system prompt; /system "" takes it away."""
    if not text:
        session.say(session.conversation.system or "there is no system prompt", DIM)
        return
    system = "" if text in ('""', "''") else text
    session.conversation = replace(session.conversation, system=system)
    session.say(f"system prompt {'set' if system else 'taken away'}, from the next message on", DIM)


def _take_back(session: Session) -> str:
    turns = session.conversation.turns
    if not turns:
        raise RequestError("nothing was said yet")
    session.resume(turns[:-2], session.conversation.system)
    if session.conversation.turns:
        ids = session.model.prompt_ids(session.conversation.messages())
        session.used = min(len(ids), session.model.context)
    return turns[-2].content
