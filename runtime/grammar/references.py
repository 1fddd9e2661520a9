"""References of a JSON schema: each has its target, none leads back to itself without taking a step into the
value, and some finite value satisfies every required part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from satchel.errors import RequestError
from satchel.runtime.grammar.merging import check_merges
from satchel.runtime.grammar.schema import TYPES, Schema, children, describe, shown, step

IN_PLACE = ("allOf", "anyOf", "oneOf")  # they say something of the same value


def check_references(found: dict[str, Schema], what: str = "the JSON schema") -> None:
    """RequestError for a reference without target, for a cycle in place, for a schema that only an infinite
    value would satisfy, for one that merges too many. found: as `read_schema` gives it.
    """
    targets = {at: _target(found, at, value, what) for at, value in found.items() if _has_reference(value)}
    _check_cycles(found, targets, what)
    _check_finite(found, targets, what)
    check_merges(found, targets, what)


def _has_reference(value: Schema) -> bool:
    return not isinstance(value, bool) and "$ref" in value


def _target(found: dict[str, Schema], at: str, value: Any, what: str) -> str:
    wanted = unquote(value["$ref"])
    parts = wanted[1:].split("/")
    pointer = "#" + "".join("/" + part for part in parts[1:])
    if parts[0] or pointer not in found:
        raise RequestError(f"{what} at {shown(at)}/$ref: no schema stands at {describe(wanted)}")
    return pointer


def _check_cycles(found: dict[str, Schema], targets: dict[str, str], what: str) -> None:
    done: set[str] = set()
    for start in found:
        path: dict[str, None] = {}
        waiting: list[tuple[str, bool]] = [(start, True)]
        while waiting:
            at, entering = waiting.pop()
            if not entering:
                path.pop(at)
                done.add(at)
                continue
            if at in path:
                raise RequestError(
                    f"{what} at {shown(at)}: it refers to itself without a property or an item between, by "
                    f"{' -> '.join(map(shown, [*path, at][-4:]))}"
                )
            if at in done:
                continue
            path[at] = None
            waiting.append((at, False))
            waiting += [(next_at, True) for next_at in _in_place(found[at], at, targets)]


def _in_place(value: Schema, at: str, targets: dict[str, str]) -> list[str]:
    if isinstance(value, bool):
        return []
    inner = [pointer for pointer, _ in children(value, IN_PLACE, at)]
    return [*inner, targets[at]] if at in targets else inner


def _check_finite(found: dict[str, Schema], targets: dict[str, str], what: str) -> None:
    users: dict[str, list[str]] = {}
    for at, target in targets.items():
        users.setdefault(target, []).append(at)
    finite: set[str] = set()
    waiting = dict.fromkeys(reversed(found))  # inner ones first; each stands in it once
    while waiting:
        at = next(iter(waiting))
        del waiting[at]
        if at in finite or at not in found or not _is_finite(found[at], at, finite, targets):
            continue
        finite.add(at)
        # Whoever refers to it, and the schema it is part of: one or two steps up.
        parent = at.rpartition("/")[0]
        waiting |= dict.fromkeys([*users.get(at, ()), parent, parent.rpartition("/")[0]])
    if "#" not in finite:
        place = shown(_culprit(found, finite))
        raise RequestError(f"{what} at {place}: only an endless value satisfies it: end its recursion")


def _culprit(found: dict[str, Schema], finite: set[str]) -> str:
    """The innermost schema that needs itself."""
    return max((at for at in found if at not in finite), key=lambda at: (at.count("/"), at))


def _is_finite(value: Schema, at: str, finite: set[str], targets: dict[str, str]) -> bool:
    """Whether some value satisfies it, taking for granted only what is known to be finite."""
    if isinstance(value, bool):
        return value
    if at in targets and targets[at] not in finite:
        return False
    if any(pointer not in finite for pointer, _ in children(value, ("allOf",), at)):
        return False
    for key in ("anyOf", "oneOf"):
        if key in value and all(pointer not in finite for pointer, _ in children(value, (key,), at)):
            return False
    if "enum" in value or "const" in value:
        return True
    return any(_has_finite(kind, value, at, finite) for kind in _types(value))


def _types(value: Mapping[str, Any]) -> list[str]:
    types: Any = value.get("type", list(TYPES))
    return types if isinstance(types, list) else [types]


def _has_finite(kind: str, value: Mapping[str, Any], at: str, finite: set[str]) -> bool:
    if kind == "object":
        return all(_property(name, value, at) in (finite | {""}) for name in value.get("required", ()))
    if kind == "array":
        least = value.get("minItems", 0)
        fixed = len(value.get("prefixItems", ()))
        needed = [step(step(at, "prefixItems"), i) for i in range(min(least, fixed))]
        if least > fixed and "items" in value:
            needed.append(step(at, "items"))
        return all(pointer in finite for pointer in needed)
    return True


def _property(name: str, value: Mapping[str, Any], at: str) -> str:
    """The pointer of the schema of a property; empty where anything goes."""
    if name in value.get("properties", {}):
        return step(step(at, "properties"), name)
    if value.get("patternProperties"):
        return ""
    return step(at, "additionalProperties") if "additionalProperties" in value else ""
