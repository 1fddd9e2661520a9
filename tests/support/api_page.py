"""What docs/api.md must name: all that `satchel` exports, and the dataclasses that its calls return."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import satchel

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
# Public to Satchel's own packages: a program has no use for them. mkdocs.yml leaves them out of the page.
INNER = {"adapter_scales", "answer_chat", "chat_prompt", "check_ids", "key", "placement_options"}
INNER |= {"pulse", "served", "service", "stop_ids", "style", "submit", "taken", "text_settings", "to"}
INNER |= {"with_usage"}


def directives() -> dict[str, list[str]]:
    """What the page shows, by its path, with the members that it lists; []: all of them."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if shown := re.fullmatch(r"::: ([\w.]+)", line):
            members = found.setdefault(shown[1], [])
        elif member := re.fullmatch(r" {8}- (\w+)", line):
            members.append(member[1])
    return found


def exported() -> Iterator[tuple[str, type]]:
    """The classes of `satchel`."""
    for name in satchel.__all__:
        if inspect.isclass(kind := getattr(satchel, name)):
            yield name, kind


def page_class(kind: type) -> bool:
    return kind in dict(exported()).values()


def members(kind: type) -> dict[str, Any]:
    """The public methods and properties of a class, by name, without those of a base that is on the page."""
    bases = [b for b in kind.__mro__ if b.__module__.startswith("satchel.")]
    above = {name for b in bases[1:] if page_class(b) for name in vars(b)}
    found: dict[str, Any] = {}
    for base in bases:
        if base is not kind and page_class(base):
            break
        for name, value in vars(base).items():
            called = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
            hidden = name.startswith("_") or name in INNER
            if called and not hidden and not (name in above and undocumented(value)):
                found.setdefault(name, value)
    return found


def undocumented(member: Any) -> bool:
    return not function_of(member).__doc__


def function_of(member: Any) -> Callable[..., Any]:
    """The function of a method or property."""
    found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    assert callable(found)
    return found


def results() -> list[type]:
    """The dataclasses of Satchel that the classes on the page return or hold, by name."""
    found: set[type] = set()
    queue = [kind for _, kind in exported()]
    while queue:
        for hint in hints(queue.pop()):
            for kind in parts(hint):
                if isinstance(kind, type) and is_dataclass(kind) and not (page_class(kind) or kind in found):
                    found.add(kind)
                    queue.append(kind)
    return sorted(found, key=lambda kind: kind.__name__)


def hints(kind: type) -> Iterator[Any]:
    """The types of a class's results and fields."""
    for member in members(kind).values():
        yield get_type_hints(inspect.unwrap(function_of(member))).get("return")
    if is_dataclass(kind):
        yield from get_type_hints(kind).values()


def parts(hint: Any) -> Iterator[Any]:
    """A type and those that it is made of."""
    yield hint
    for inner in get_args(hint):
        yield from parts(inner)
