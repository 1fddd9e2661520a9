"""What was computed for a conversation, in a file beside its messages: FILE.kv beside FILE. It saves time and
is never needed, so a chat goes on without one that does not fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from satchel.cli.chat.display import DIM
from satchel.cli.chat.history import load, save
from satchel.errors import ModelError, RequestError, SatchelError
from satchel.formats.gguf import open_gguf
from satchel.runtime.kv.saved import TYPE

if TYPE_CHECKING:
    from satchel.cli.chat.session import Session


def beside(path: Path) -> Path:
    """Where the state of a conversation lies."""
    return path.with_name(path.name + ".kv")


def save_state(session: Session, path: Path) -> int:
    """Writes the state of the session's conversation beside `path`; gives its tokens. Where there is none,
    an older one goes, which is of what was said before. A file of another kind is not replaced.
    """
    target = beside(path)
    if target.exists() and not _is_state(target):
        raise RequestError(f"{target}: is there already and is no saved state; choose another name")
    if session.conversation.turns:
        try:
            ids = session.model.prompt_ids(session.conversation.messages())
            return session.model.save_state(target, ids)
        except RequestError as error:
            if "nothing to save" not in str(error):
                raise
    target.unlink(missing_ok=True)
    return 0


def restore_state(session: Session, path: Path) -> None:
    """Brings back the state beside `path`, if there is one; says what came, or why it is computed again."""
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
    """Goes on with the conversation of a session's file, if it is there. A system prompt that was given now
    stands above the one in the file, and so do settings.
    """
    session.file, session.keeps = path, True
    if not path.exists():
        return
    loaded, mine = load(path), session.conversation
    session.resume(loaded.turns, mine.system or loaded.system)
    session.say(f"{len(loaded.turns)} messages loaded from {path}", DIM)
    restore_state(session, path)


def end(session: Session, path: Path) -> None:
    """Keeps conversation and state for the next time."""
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
