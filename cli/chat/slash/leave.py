"""/help and /exit, the last entries of the list."""

from __future__ import annotations

from satchel.cli.chat.registry import COMMANDS, KEYS, Leave, command
from satchel.cli.chat.session import Session
from satchel.errors import RequestError


@command("help", "[shortcuts]", words=lambda: ("shortcuts",))
def _help(session: Session, text: str) -> None:
    """This list, or the keys alone."""
    if text not in ("", "shortcuts"):
        raise RequestError(f"/help {text[:40]}: there is /help and /help shortcuts")
    rows = [] if text else [(f"/{name} {c.usage}".strip(), c.line) for name, c in COMMANDS.items()]
    for left, right in (*rows, *KEYS):
        session.say(f"  {left:<20} {right[:1].lower()}{right[1:]}")


@command("exit", also=("bye", "quit", "q"))
def _exit(session: Session, text: str) -> None:
    """Leave; so do /bye and /quit."""
    raise Leave
