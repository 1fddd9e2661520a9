"""Schemas that hold of one value together are merged when a grammar is compiled, once for each way that leads
to them: this bounds how many there are, before llguidance meets them.

Invariant: in a schema that passes, no value has over MAX_MERGED schemas to satisfy at once, counted as often
as `allOf` and `$ref` lead to each, also through the properties and items of schemas that are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from satchel.errors import RequestError
from satchel.runtime.grammar.schema import Schema, children, shown, step

MAX_MERGED = 1_000
MAX_STEPS = 40_000  # schemas, and groups of their parts, that are looked at
PARTS = ("properties", "patternProperties")
Group = Mapping[str, int]  # pointers of schemas of one value, and how often each is merged


def check_merges(found: Mapping[str, Schema], targets: Mapping[str, str], what: str) -> None:
    """RequestError where too many schemas would be merged. found: as `read_schema` gives it; targets: of the
    references; there is no cycle in place.
    """
    steps = 0
    # A mere reference is what it refers to, which is looked at for itself.
    waiting: list[tuple[str, Group]] = [(at, {at: 1}) for at in found if not _is_reference(found[at])]
    seen: set[frozenset[tuple[str, int]]] = set()
    while waiting:
        at, group = waiting.pop()
        key = frozenset(group.items())
        if key in seen:
            continue
        seen.add(key)
        merged = _flat(group, found, targets)
        steps += len(merged)
        if merged.total() > MAX_MERGED or steps > MAX_STEPS:
            count = f"over {MAX_MERGED:,} schemas hold" if merged.total() > MAX_MERGED else "too many hold"
            raise RequestError(
                f"{what} at {shown(at)}: {count} of one value by allOf and $ref: write them into one"
            )
        if merged.total() > 1:  # one alone is compiled once, wherever it is referred to
            parts = _parts(merged, found)
            steps += len(parts)
            waiting += [(next(iter(part)), part) for part in parts if part.total() > 1]


def _flat(group: Group, found: Mapping[str, Schema], targets: Mapping[str, str]) -> Counter[str]:
    """The schemas of a group and of their allOf and $ref; those that say nothing else are left out."""
    counts: Counter[str] = Counter(group)
    for at in _outer_first(group, found, targets):
        for inner in _in_place(at, found, targets):
            counts[inner] += counts[at]
    return Counter({at: n for at, n in counts.items() if not _is_only_a_way(found[at])})


def _outer_first(group: Group, found: Mapping[str, Schema], targets: Mapping[str, str]) -> list[str]:
    """All that a group leads to, each behind all that lead to it."""
    left: list[str] = []
    seen: set[str] = set()
    for start in group:
        stack = [] if start in seen else [(start, iter(_in_place(start, found, targets)))]
        seen.add(start)
        while stack:
            at, following = stack[-1]
            inner = next(following, None)
            if inner is None:
                stack.pop()
                left.append(at)
            elif inner not in seen:
                seen.add(inner)
                stack.append((inner, iter(_in_place(inner, found, targets))))
    return left[::-1]


def _in_place(at: str, found: Mapping[str, Schema], targets: Mapping[str, str]) -> list[str]:
    value = found[at]
    if isinstance(value, bool):
        return []
    inner = [pointer for pointer, _ in children(value, ("allOf",), at)]
    return [*inner, targets[at]] if at in targets else inner


def _is_only_a_way(value: Schema) -> bool:
    return isinstance(value, bool) or value.keys() <= {"allOf", "$ref", "$defs", "definitions"}


def _is_reference(value: Schema) -> bool:
    return not isinstance(value, bool) and value.keys() == {"$ref"}


def _parts(merged: Counter[str], found: Mapping[str, Schema]) -> list[Counter[str]]:
    """The groups into which the parts of merged schemas fall: one for each property, and so on."""
    groups: dict[str, Counter[str]] = {}
    for at, count in merged.items():
        value = found[at]
        if not isinstance(value, bool):
            for name, inner in _parts_of(value, at):
                groups.setdefault(name, Counter())[inner] += count
    return list(groups.values())


def _parts_of(value: Mapping[str, object], at: str) -> Iterator[tuple[str, str]]:
    """(what it is the schema of, pointer) of each part; the branches of anyOf and oneOf are one group."""
    for key in PARTS:
        named = value.get(key)
        if isinstance(named, Mapping):
            yield from ((f"{key} {name}", step(step(at, key), name)) for name in named)
    for key in ("items", "additionalProperties"):
        if key in value:
            yield key, step(at, key)
    for pointer, _ in children(value, ("prefixItems",), at):
        yield f"prefixItems {pointer.rpartition('/')[2]}", pointer
    for pointer, _ in children(value, ("anyOf", "oneOf"), at):
        yield "anyOf", pointer
