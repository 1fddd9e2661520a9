"""Reads the flags of llama.cpp that a command does not declare: notes are printed, the others are refused."""

from __future__ import annotations

import sys
from collections.abc import Container

from satchel.cli.llama_cpp.table import ROWS
from satchel.cli.llama_cpp.verdict import NOTE, SAME, SERVE, FlagVerdict, Row, refused
from satchel.cli.usage import UsageError

SWITCHES = ("on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled")
CHATS = ("chat", "run")


class RunInstead(Exception):
    """The flag stands for another command line, which is run in place of the given one."""

    def __init__(self, command: tuple[str, ...]) -> None:
        super().__init__()
        self.command = command


def is_known(flag: str, declared: Container[str]) -> bool:
    """Whether the table says what a command does that declares these options. Commands that take no --model
    have nothing to do with the table.
    """
    return flag in ROWS and "--model" in declared


def verdict_of(command: str, flag: str) -> FlagVerdict:
    """What the command does with a flag of the table that it does not declare."""
    one = ROWS[flag]
    own, other = (one.server, one.cli) if command == SERVE else (one.cli, one.server)
    if own is not None and (own.kind != SAME or own.runs):
        return own
    if own is None and other is not None and (command == SERVE or other.runs) and other.kind != SAME:
        return other
    return refused(f"{_owners(one, command)} it")


def _owners(one: Row, command: str) -> str:
    """The commands that have a flag, as the subject of a sentence."""
    serves = one.server is not None and (one.cli is None or _has(one.server))
    found = [*(CHATS if _has(one.cli) else ()), *([SERVE] if serves else [])]
    names = [f"`satchel {name}`" for name in found if name != command]
    if len(names) == 1:
        return f"{names[0]} has"
    return f"{', '.join(names[:-1])} and {names[-1]} have"


def _has(verdict: FlagVerdict | None) -> bool:
    return verdict is not None and verdict.kind == SAME


def take(command: str, flag: str, equals: str, rest: list[str]) -> None:
    """Takes a flag of the table: prints its note and drops its values from `rest`, the arguments after it.
    equals: "=" where the value stands in the same argument. UsageError for a flag that is refused.
    """
    found = verdict_of(command, flag)
    if found.runs:
        raise RunInstead(found.runs)
    if found.kind != NOTE:
        raise UsageError(f"{flag} is not supported: {found.text}")
    one = ROWS[flag]
    if not equals:
        _drop(flag, one, rest)
    print(f"satchel: note: {flag} has no effect: {found.text}", file=sys.stderr)


def _drop(flag: str, one: Row, rest: list[str]) -> None:
    """Removes the flag's values from the arguments after it."""
    if one.is_optional:
        del rest[: bool(rest) and rest[0] in SWITCHES]
        return
    if len(rest) < len(one.values):
        raise UsageError(f"{flag} requires a value, such as {one.value}")
    del rest[: len(one.values)]
