"""Rules of a context-free grammar as a tree, for the checks that GBNF and Lark share.

A grammar that passes has no undefined rule, no endless one, and nothing too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from satchel.errors import RequestError

MAX_RULES = 5_000
MAX_DEPTH = 100  # groups in each other
MAX_REPEATS = 8  # signs of repetition behind one item: each is a level of the tree
MAX_COUNT = 10_000  # of {n}, and of repetitions in each other multiplied


@dataclass(frozen=True, slots=True)
class Terminal:
    """Some characters; `empty`: it can be none."""

    source: str
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """low to high times; high None: without end."""

    part: Part
    low: int
    high: int | None


Part: TypeAlias = Terminal | Ref | Seq | OneOf | Times
Rules: TypeAlias = Mapping[str, Part]


def check_rules(rules: Rules, start: str, what: str, left_recursion: bool) -> None:
    """RequestError for a missing start, undefined or endless rules, for left recursion unless it may be."""
    if start not in rules:
        raise RequestError(f"{what}: it has no rule {start!r}, where it begins")
    if len(rules) > MAX_RULES:
        raise RequestError(f"{what}: expected at most {MAX_RULES:,} rules, got {len(rules):,}")
    for name, part in rules.items():
        missing = next((ref for ref in refs(part) if ref not in rules), None)
        if missing is not None:
            raise RequestError(f"{what}: rule {name!r:.60} needs {missing!r:.60}, which is not defined")
        if largest(part) > MAX_COUNT:
            raise RequestError(
                f"{what}: rule {name!r:.60} repeats {largest(part):,} times, {MAX_COUNT:,} is the limit"
            )
    productive = _fixpoint(rules, _is_productive)
    endless = next((name for name in rules if name not in productive), None)
    if endless is not None:
        raise RequestError(f"{what}: rule {endless!r:.60} never ends: give its recursion a base")
    nullable = _fixpoint(rules, is_nullable)
    edges = {name: list(_firsts(part, nullable)) for name, part in rules.items()}
    if not left_recursion and (cycle := find_cycle(edges)):
        raise RequestError(
            f"{what}: rule {cycle!r:.60} begins with itself (left recursion): use a repetition"
        )


def inner_first(edges: Mapping[str, list[str]], start: str) -> list[str]:
    """The names that a name needs, and itself, each behind all that it needs. There is no cycle."""
    found: dict[str, None] = {}
    seen = {start}
    stack = [(start, iter(edges[start]))]
    while stack:
        name, following = stack[-1]
        target = next(following, None)
        if target is None:
            stack.pop()
            found[name] = None
        elif target not in seen:
            seen.add(target)
            stack.append((target, iter(edges[target])))
    return list(found)


def refs(part: Part) -> Iterator[str]:
    if isinstance(part, Ref):
        yield part.name
    elif isinstance(part, Times):
        yield from refs(part.part)
    elif isinstance(part, Seq | OneOf):
        for inner in part.parts:
            yield from refs(inner)


def largest(part: Part) -> int:
    """The most copies that counted repetitions make of any part."""
    if isinstance(part, Times):
        return max(part.low, part.high or 1, 1) * largest(part.part)
    return max(map(largest, part.parts), default=1) if isinstance(part, Seq | OneOf) else 1


def find_cycle(edges: Mapping[str, list[str]]) -> str | None:
    """A name that leads back to itself, or None."""
    colour: dict[str, int] = {}
    for start in edges:
        stack = [(start, iter(edges[start]))] if start not in colour else []
        colour.setdefault(start, 1)
        while stack:
            name, following = stack[-1]
            target = next(following, None)
            if target is None:
                colour[name] = 2
                stack.pop()
            elif target not in colour:
                colour[target] = 1
                stack.append((target, iter(edges[target])))
            elif colour[target] == 1:
                return target
    return None


def is_nullable(part: Part, known: set[str]) -> bool:
    if isinstance(part, Terminal):
        return part.empty
    if isinstance(part, Ref):
        return part.name in known
    if isinstance(part, Times):
        return part.low == 0 or is_nullable(part.part, known)
    chosen = all if isinstance(part, Seq) else any
    return chosen(is_nullable(inner, known) for inner in part.parts)


def _is_productive(part: Part, known: set[str]) -> bool:
    if isinstance(part, Terminal):
        return True
    if isinstance(part, Ref):
        return part.name in known
    if isinstance(part, Times):
        return part.low == 0 or _is_productive(part.part, known)
    chosen = all if isinstance(part, Seq) else any
    return chosen(_is_productive(inner, known) for inner in part.parts)


def _fixpoint(rules: Rules, holds: Callable[[Part, set[str]], bool]) -> set[str]:
    """Names of the rules of which something holds, given the rules of which it is known to hold.

    A rule is looked at again when one that it names becomes known, so long chains stay linear.
    """
    users: dict[str, list[str]] = {}
    for name, part in rules.items():
        for ref in refs(part):
            users.setdefault(ref, []).append(name)
    known: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in known and holds(rules[name], known):
            known.add(name)
            waiting += users.get(name, ())
    return known


def _firsts(part: Part, nullable: set[str]) -> Iterator[str]:
    """Rules with which a part may begin."""
    if isinstance(part, Ref):
        yield part.name
    elif isinstance(part, Times):
        yield from _firsts(part.part, nullable)
    elif isinstance(part, OneOf):
        for inner in part.parts:
            yield from _firsts(inner, nullable)
    elif isinstance(part, Seq):
        for inner in part.parts:
            yield from _firsts(inner, nullable)
            if not is_nullable(inner, nullable):
                return
