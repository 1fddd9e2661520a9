"""Completions of a command line: commands, options, their values, models, files.

Completing commands imports none of them; completing options imports one command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from satchel.cli.completing.scripts import SCRIPTS
from satchel.cli.main import HELP_ALL, commands, parsed, summary

FILES = ":files"  # tells the scripts to use the shell's own completion of file names


class CompletedParameter(Protocol):
    """The used attributes of typer's options and arguments."""

    opts: list[str]
    secondary_opts: list[str]


@dataclass(frozen=True, slots=True)
class CompletionCandidate:
    """A completion and its description."""

    word: str
    about: str = ""


def _backends() -> Iterable[str]:
    from satchel.runtime.device.libraries import offered

    return ("auto", *(found.name for found in offered() if not found.reason))


def _tables() -> Iterable[str]:
    from satchel.cli.tables import OUTPUTS

    return OUTPUTS


def _conversations() -> Iterable[str]:
    from satchel.cli.chat.names import saved_names

    return saved_names()


def models() -> Iterable[str]:
    """The names of the models on this machine; makes no connection."""
    from satchel.errors import SatchelError
    from satchel.store.store import Store

    try:
        return [entry.name for entry in Store(offline=True).list()]
    except (SatchelError, OSError):
        return ()


Values = Callable[[], Iterable[str]]
VALUES: dict[str, Values] = {
    "--device": _backends,
    "--model": models,
    "--draft-model": models,
    "--on-overflow": lambda: ("error", "shift", "truncate-middle"),
    "--output": _tables,
    "--pooling": lambda: ("none", "mean", "cls", "last"),
    "--reasoning": lambda: ("auto", "on", "off", "low", "medium", "high"),
    "--resume": _conversations,
    "--session": _conversations,
}
OF_FILES = frozenset({"--model", "--draft-model", "--session", "--resume"})  # options that also take a file
OR_FILES = frozenset({"cp", "run", "show"})
ARGUMENTS: dict[str, Values] = {
    "completion": lambda: SCRIPTS,
    "cp": models,
    "rm": models,
    "run": models,
    "show": models,
    "stop": models,
    "help": commands,
}


def candidates(words: Sequence[str]) -> list[CompletionCandidate]:
    """The completions of the last word. The first word is the program."""
    current = words[-1] if words else ""
    if len(words) < 3:
        return list(_commands(current))
    name = words[1].replace("_", "-")
    if name == "help" or name not in commands():
        return _fitting(current, ARGUMENTS["help"]()) if name == "help" else []
    parameters = [p for p in parsed(name).params if not getattr(p, "hidden", False)]
    before = words[2:-1]
    option, equals, value = current.partition("=")
    if current.startswith("--") and equals:
        found = _values(_parameter(option, parameters), value)
        return [CompletionCandidate(f"{option}={c.word}", c.about) if c.word != FILES else c for c in found]
    if before and before[-1] == "=":  # bash cuts a word there
        before = before[:-1]
    asking = _parameter(before[-1], parameters) if before and "--" not in before else None
    if asking is not None and not getattr(asking, "is_flag", False):
        return _values(asking, "" if current == "=" else current)
    if current.startswith("-") and "--" not in before:
        return list(_options(current, parameters))
    found = _fitting(current, ARGUMENTS[name]()) if name in ARGUMENTS else []
    return [*found, CompletionCandidate(FILES)] if name not in ARGUMENTS or name in OR_FILES else found


def _commands(current: str) -> Iterator[CompletionCandidate]:
    for name, path in commands().items():
        if name.startswith(current):
            yield CompletionCandidate(name, summary(path))
    yield from _fitting(current, ("--help", HELP_ALL, "--version") if current else ())


def _options(current: str, parameters: Iterable[CompletedParameter]) -> Iterator[CompletionCandidate]:
    """The options that begin with the word. Of an option with several names only those with two dashes,
    unless the word has one.
    """
    for parameter in parameters:
        names = [n for n in (*parameter.opts, *parameter.secondary_opts) if n.startswith("-")]
        long = [name for name in names if name.startswith("--")]
        for name in long if long and (len(current) < 2 or current.startswith("--")) else names:
            if name.startswith(current):
                yield CompletionCandidate(name, getattr(parameter, "help", None) or "")
    yield from _fitting(current, ("--help", HELP_ALL))


def _parameter(name: str, parameters: Iterable[CompletedParameter]) -> CompletedParameter | None:
    spelled = f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name
    return next((p for p in parameters if spelled in (*p.opts, *p.secondary_opts)), None)


def _values(parameter: CompletedParameter | None, current: str) -> list[CompletionCandidate]:
    """The completions of an option's value: its choices, or files."""
    if parameter is None:
        return []
    known = next((name for name in parameter.opts if name in VALUES), None)
    found = _fitting(current, VALUES[known]() if known else _choices(parameter.opts))
    wants_file = known in OF_FILES if known else "FILE" in (getattr(parameter, "metavar", None) or "")
    return [*found, CompletionCandidate(FILES)] if wants_file else found


def _choices(names: Iterable[str]) -> list[str]:
    """The allowed values of a load option whose flag has one of these names."""
    from satchel.runtime.api.options import Options
    from satchel.runtime.option import options_of

    found = next((one for one in options_of(Options).values() if set(one.flags) & set(names)), None)
    return [str(c) for c in found.choices if c != ""] if found else []


def _fitting(current: str, words: Iterable[str]) -> list[CompletionCandidate]:
    return [CompletionCandidate(word) for word in words if word.startswith(current)]
