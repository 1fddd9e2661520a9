"""Finds the checks, runs them one after the other, and reports the result of each."""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import pkgutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from satchel.cli.conformance import checks
from satchel.cli.conformance.expect import Skip, Wrong
from satchel.cli.conformance.target import ConformanceTarget
from satchel.errors import RequestError

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"


@dataclass(frozen=True, slots=True)
class ConformanceCheck:
    """A check."""

    name: str  # module.function, as in chat.stream-usage
    proves: str  # one line
    make: Callable[[ConformanceTarget], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check."""

    name: str
    proves: str
    result: str
    text: str  # why it failed or was skipped
    seconds: float


def found_checks() -> list[ConformanceCheck]:
    """All checks, by module, in source order."""
    found = []
    for info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{info.name}")
        own = (f for n, f in vars(module).items() if n[0] != "_" and inspect.isfunction(f))
        for function in own:
            if function.__module__ == module.__name__:
                name = f"{info.name}.{function.__name__}".replace("_", "-")
                found.append(ConformanceCheck(name, inspect.getdoc(function) or "", function))
    return found


def chosen(patterns: Sequence[str]) -> list[ConformanceCheck]:
    """The checks that match these patterns, such as chat or chat.stream*; all checks without patterns."""
    known = found_checks()
    for pattern in patterns:
        if not any(matches(c.name, pattern) for c in known):
            groups = ", ".join(dict.fromkeys(c.name.partition(".")[0] for c in known))
            raise RequestError(f"no check matches {pattern!r}; there are {groups} (--list names all)")
    return [c for c in known if not patterns or any(matches(c.name, p) for p in patterns)]


def matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def verdicts(target: ConformanceTarget, wanted: Sequence[ConformanceCheck]) -> Iterator[Verdict]:
    """Runs the checks, and reports each result at once."""
    for check in wanted:
        started = time.perf_counter()
        result, text = PASS, ""
        try:
            check.make(target)
        except Skip as reason:
            result, text = SKIP, str(reason)
        except Wrong as error:
            result, text = FAIL, str(error)
        except Exception as error:  # a client could not read the response, or the check did not expect it
            result, text = FAIL, f"{type(error).__name__}: {error}"
        yield Verdict(check.name, check.proves, result, " ".join(text.split()), time.perf_counter() - started)
