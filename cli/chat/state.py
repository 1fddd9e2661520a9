"""The saved KV state of a conversation, FILE.kv beside FILE. It only saves prefill time, so a chat goes on
without a state that does not fit the model.
"""

from __future__ import annotations

from pathlib import Path

from satchel.cli.chat.display import DIM
from satchel.cli.chat.history import load, save
from satchel.cli.chat.session import Session
from satchel.errors import ModelError, RequestError, SatchelError
from satchel.formats.gguf import open_gguf
from satchel.runtime.kv.saved import TYPE


def beside(path: Path) -> Path:
    """The path of a conversation's state."""
    return path.with_name(path.name + ".kv")


def save_state(session: Session, path: Path) -> int:
    """Writes the state of the session's conversation beside `path`, and returns its token count.

    Where there is no state to save, an outdated file is removed. RequestError where the file exists and is
    not a saved state.
    """
    target = beside(path)
    if target.exists() and not _is_state(target):
        raise RequestError(f"{target}: is there already and is no saved state; choose another name")
    if session.conversation.turns:
        try:
            ids = session.model.prompt_ids(session.sent(session.conversation))
            return session.model.save_state(target, ids)
        except RequestError as error:
            if "nothing to save" not in str(error):
                raise
    target.unlink(missing_ok=True)
    return 0


def restore_state(session: Session, path: Path) -> None:
    """Restores the state beside `path` if there is one, and reports the result or why prefill is repeated."""
    target = beside(path)
    if not target.exists():
        return
    try:
        restored = session.model.restore_state(target)
    except SatchelError as error:
        session.say(f"the conversation is computed again: {error}", DIM)
        return
    session.say(restored.note or f"{restored.tokens:,} tokens restored from {target}", DIM)


def begin(session: Session, path: Path) -> None:
    """Loads the conversation of a session's file, if it exists. A system prompt and settings that are given
    now win over those in the file.
    """
    session.file, session.keeps = path, True
    if not path.exists():
        return
    loaded, mine = load(path), session.conversation
    session.resume(loaded.turns, mine.system or loaded.system)
    session.say(f"{len(loaded.turns)} messages loaded from {path}", DIM)
    restore_state(session, path)


def end(session: Session, path: Path) -> None:
    """Saves conversation and state at the end of a session."""
    try:
        save(session.conversation, path)
        save_state(session, path)
    except SatchelError as error:
        session.fail(str(error))


def _is_state(path: Path) -> bool:
    try:
        with open_gguf(path) as found:
            return found.metadata.get_str("general.type", "") == TYPE
    except ModelError:
        return False
