"""Trees of context-free grammar rules, for the checks that GBNF and Lark share.

A grammar that passes has no undefined or endless rule, and is not too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from satchel.errors import RequestError

MAX_RULES = 5_000
MAX_DEPTH = 100  # nested groups
MAX_REPEATS = 8  # repetition operators after one item: each is a level of the tree
MAX_COUNT = 10_000  # largest {n}, and largest product of nested repetitions


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal. `empty`: it matches the empty text."""

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
    """low to high repetitions; high None: unbounded."""

    part: Part
    low: int
    high: int | None


Part: TypeAlias = Terminal | Ref | Seq | OneOf | Times
Rules: TypeAlias = Mapping[str, Part]


def check_rules(rules: Rules, start: str, what: str, left_recursion: bool) -> None:
    """Raises RequestError for a missing start rule, undefined or endless rules, and left recursion unless it
    is allowed.
    """
    if start not in rules:
        raise RequestError(f"{what}: it has no start rule {start!r}")
    if len(rules) > MAX_RULES:
        raise RequestError(f"{what}: expected at most {MAX_RULES:,} rules, got {len(rules):,}")
    for name, part in rules.items():
        missing = next((ref for ref in refs(part) if ref not in rules), None)
        if missing is not None:
            raise RequestError(f"{what}: rule {name!r:.60} needs {missing!r:.60}, which is not defined")
        if largest(part) > MAX_COUNT:
            raise RequestError(
                f"{what}: rule {name!r:.60} repeats {largest(part):,} times; the limit is {MAX_COUNT:,}"
            )
    productive = _fixpoint(rules, _is_productive)
    endless = next((name for name in rules if name not in productive), None)
    if endless is not None:
        raise RequestError(f"{what}: rule {endless!r:.60} never ends: give its recursion a base case")
    nullable = _fixpoint(rules, is_nullable)
    edges = {name: list(_firsts(part, nullable)) for name, part in rules.items()}
    if not left_recursion and (cycle := find_cycle(edges)):
        raise RequestError(
            f"{what}: rule {cycle!r:.60} begins with itself (left recursion): use a repetition"
        )


def inner_first(edges: Mapping[str, list[str]], start: str) -> list[str]:
    """The names that a name depends on and itself, in topological order. The graph has no cycle."""
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
    """The most copies that nested counted repetitions make of a part."""
    if isinstance(part, Times):
        return max(part.low, part.high or 1, 1) * largest(part.part)
    return max(map(largest, part.parts), default=1) if isinstance(part, Seq | OneOf) else 1


def find_cycle(edges: Mapping[str, list[str]]) -> str | None:
    """A name on a cycle, or None."""
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
    """Names of the rules with a property, as the least fixpoint: `holds` judges a part given the rules known
    to have it. A rule is judged again when a rule that it names is added, so long chains stay linear.
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
    """Rules with which a part can begin."""
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
