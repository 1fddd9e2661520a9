"""/model: another model for the conversation; and /image, which no model takes yet."""

from __future__ import annotations

from collections.abc import Iterable

from satchel.cli.chat.display import DIM
from satchel.cli.chat.names import path_of
from satchel.cli.chat.registry import command
from satchel.cli.chat.session import Session
from satchel.errors import RequestError, SatchelError


def _names() -> Iterable[str]:
    from satchel.cli.completing.candidates import models

    return models()


@command("model", "[NAME]", files=True, words=_names)
def _model(session: Session, text: str) -> None:
    """List the models of this machine, or go on with another one."""
    if not text:
        _list(session)
        return
    from satchel.cli.chat.about import describe
    from satchel.cli.model_argument import model_file

    try:
        session.change_model(model_file(str(path_of(text, "model"))))
    except (SatchelError, OSError) as error:
        raise RequestError(f"{error}; {session.conversation.model} stays") from None
    except KeyboardInterrupt:
        raise RequestError(f"the load was cancelled; {session.conversation.model} stays") from None
    name, *facts = describe(session.model)
    for line in (f"{name} goes on with {len(session.conversation.turns)} messages", *facts):
        session.say(f"  {line}", DIM)
    session.tell_notes()


def _list(session: Session) -> None:
    """The models of the store and of other programs; a star marks the one that answers."""
    from satchel.cli.commands.list import size
    from satchel.store import Store

    mine, there = session.model.path.absolute(), False
    entries = Store(offline=True).list()
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        current = mine in [path.absolute() for path in entry.paths] and not there
        there = there or current
        row = f"{'*' if current else ' '} {entry.name:<{width}}  {size(entry.size):>9}  {entry.place}"
        session.say(session.look.cut(row))
    if not there:
        session.say(session.look.cut(f"* {mine}"))
    session.say("/model NAME or /model FILE loads another; the conversation stays", DIM)


@command("image", "FILE", files=True)
def _image(session: Session, text: str) -> None:
    """Pictures: not read yet."""
    raise RequestError(
        "/image: pictures are not read yet, and nothing was attached; /file sends a text file along,"
        " and what a picture shows can be described in words"
    )
