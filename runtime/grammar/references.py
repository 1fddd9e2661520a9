"""Checks the references of a JSON schema: each has a target, none leads back to itself without stepping into
the value, and some finite value satisfies every required part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from satchel.errors import RequestError
from satchel.runtime.grammar.merging import check_merges
from satchel.runtime.grammar.schema import TYPES, Schema, bare, children, describe, read_schema, shown, step
from satchel.runtime.grammar.spec import load

IN_PLACE = ("allOf", "anyOf", "oneOf")  # they apply to the same value


def checked_schema(text: str, what: str) -> tuple[Any, dict[str, Schema]]:
    """The schema of a JSON text, and all subschemas by pointer. Raises RequestError if it cannot be
    enforced.
    """
    schema = load(text, what)
    found = read_schema(schema, what)
    check_references(found, what)
    if schema is False:
        raise RequestError(f"{what} at #: no value satisfies it")
    return ({} if schema is True else bare(schema)), found


def check_references(found: dict[str, Schema], what: str = "the JSON schema") -> None:
    """Raises RequestError for a reference without target, a cycle in place, a schema that only an infinite
    value satisfies, or one that merges too many schemas. found: from `read_schema`.
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
        raise RequestError(f"{what} at {shown(at)}/$ref: there is no schema at {describe(wanted)}")
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
        # Schemas that refer to it, and the schema that contains it: one or two steps up.
        parent = at.rpartition("/")[0]
        waiting |= dict.fromkeys([*users.get(at, ()), parent, parent.rpartition("/")[0]])
    if "#" not in finite:
        place = shown(_culprit(found, finite))
        raise RequestError(f"{what} at {place}: only an endless value satisfies it: end its recursion")


def _culprit(found: dict[str, Schema], finite: set[str]) -> str:
    """The innermost schema that requires itself."""
    return max((at for at in found if at not in finite), key=lambda at: (at.count("/"), at))


def _is_finite(value: Schema, at: str, finite: set[str], targets: dict[str, str]) -> bool:
    """Whether some finite value satisfies it, given the schemas that are known to have one."""
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
    """Pointer of a property's schema; "" if any value is allowed."""
    if name in value.get("properties", {}):
        return step(step(at, "properties"), name)
    if value.get("patternProperties"):
        return ""
    return step(at, "additionalProperties") if "additionalProperties" in value else ""
