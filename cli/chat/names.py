"""Files of conversations: a plain name is a file in the user's chats folder, anything else is a path."""

from __future__ import annotations

import re
from pathlib import Path

from satchel.errors import RequestError

NAME = re.compile(r"\w[\w +-]{0,99}")
ENDING = ".json"


def chats_folder() -> Path:
    from platformdirs import user_data_path

    return Path(user_data_path("satchel", appauthor=False)) / "chats"


def path_of(text: str, name: str) -> Path:
    """The file path given to a command, with or without quotes."""
    if not text:
        raise RequestError(f"/{name} needs the name of a file")
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    try:
        return Path(text[1:-1] if quoted else text).expanduser()
    except RuntimeError as error:  # ~nobody
        raise RequestError(f"{text}: {error}") from None


def conversation_path(text: str, command: str) -> Path:
    """The file of a saved conversation, by name or path."""
    if NAME.fullmatch(text):
        return chats_folder() / f"{text}{ENDING}"
    return path_of(text, command)


def found_path(text: str, command: str) -> Path:
    """The file of an existing conversation: the saved one of this name, else the file at this path."""
    path = conversation_path(text, command)
    if path.exists() or not NAME.fullmatch(text):
        return path
    if Path(text).exists():
        return Path(text)
    known = ", ".join(saved_names()) or "none"
    raise RequestError(f"no conversation is saved as {text}; there are: {known}")


def existing_folder(path: Path) -> Path:
    """The path; creates the user's chats folder if the path is in it."""
    if path.parent == chats_folder():
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(f"{path.parent}: {error.strerror}") from None
    return path


def saved_names() -> list[str]:
    """Names of the conversations in the user's folder."""
    try:
        return sorted(
            f.stem for f in chats_folder().iterdir() if f.suffix == ENDING and NAME.fullmatch(f.stem)
        )
    except OSError:
        return []


def shown(path: Path) -> str:
    """A conversation's name, or its path where it has none."""
    return path.stem if path.parent == chats_folder() and path.suffix == ENDING else str(path)
