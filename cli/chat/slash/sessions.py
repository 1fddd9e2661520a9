"""Commands that save and load conversations, by name or by path."""

from __future__ import annotations

import time
from dataclasses import replace

from satchel.cli.chat.display import DIM
from satchel.cli.chat.history import load, save
from satchel.cli.chat.names import conversation_path, existing_folder, found_path, saved_names
from satchel.cli.chat.registry import command
from satchel.cli.chat.session import Session
from satchel.errors import RequestError


@command("save", "[+state] [NAME]", files=True, words=saved_names)
def _save(session: Session, text: str) -> None:
    """Keep conversation, system prompt and settings, by name or in a file; +state: what was computed too."""
    first, _, rest = text.partition(" ")
    with_state = first == "+state"
    name = rest.strip() if with_state else text
    path = session.file if session.file and not name else conversation_path(name, "save")
    save(session.conversation, existing_folder(path))
    session.file = path
    session.say(f"{len(session.conversation.turns)} messages saved to {path}", DIM)
    if with_state:
        from satchel.cli.chat.state import beside, save_state

        session.say(f"{save_state(session, path):,} tokens saved to {beside(path)}", DIM)


@command("load", "NAME", files=True, words=saved_names, also=("resume",))
def _load(session: Session, text: str) -> None:
    """Go on with a conversation that was saved, by name or in a file."""
    path = found_path(text, "load")
    loaded, mine = load(path), session.conversation.model
    session.conversation = replace(loaded, model=mine)
    session.used, session.forgotten, session.file = 0, 0, path
    session.say(f"{len(loaded.turns)} messages loaded from {path}", DIM)
    from satchel.cli.chat.state import restore_state

    restore_state(session, path)
    if loaded.model != mine:
        session.say(f"they were written with {loaded.model or 'another model'}; this is {mine}", DIM)


@command("sessions")
def _sessions(session: Session, text: str) -> None:
    """The conversations that are saved by name."""
    names = saved_names()
    if not names:
        session.say("none is saved yet: /save NAME keeps this one", DIM)
    for name in names:
        path = conversation_path(name, "load")
        try:
            turns = load(path).turns
        except RequestError as error:
            session.say(f"  {error}", DIM)
            continue
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
        first = " ".join(turns[0].content.split()) if turns else ""
        session.say(session.look.cut(f"  {name:<20} {day}  {len(turns):>3} messages  {first}"))
