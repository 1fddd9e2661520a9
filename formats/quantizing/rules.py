"""The TYPE argument of quantization: a recipe, a format, or a file of rules (TOML or JSON: a base and
patterns).

base = "Q4_K_M"             a recipe or a format
pure = false                optional
[types]                     optional; the first pattern found in a matrix's name wins
'attn_v' = "q6_k"
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satchel.errors import RequestError
from satchel.formats.quantizing.plan import Override, writable
from satchel.quant.recipes import RECIPES, Recipe

KEYS = {"base", "pure", "types"}
NO_NAME = 1024  # general.file_type of mixes without a number in llama.cpp
LARGEST = 1 << 20  # bytes of a file of rules


@dataclass(frozen=True, slots=True)
class Rules:
    """A recipe and its overrides."""

    recipe: Recipe
    overrides: tuple[Override, ...] = ()
    pure: bool = False


def find_recipe(name: str) -> Recipe:
    """The recipe of this name, in any case. A format without a recipe of its name gives a recipe of that
    format for all matrices. RequestError for an unknown name.
    """
    recipe = RECIPES.get(name.upper())
    if recipe is not None:
        return recipe
    if name.lower() in writable():
        return Recipe(name.upper(), NO_NAME, name.lower(), name.lower())
    formats = [f.upper() for f in writable() if f.upper() not in RECIPES]
    raise RequestError(
        f"type {name}: expected one of {', '.join([*RECIPES, *formats])}, or a file of rules (.toml, .json)"
    )


def is_rules_file(name: str) -> bool:
    return name.lower().endswith((".toml", ".json"))


def read_rules(path: Path) -> Rules:
    """Reads a file of rules. RequestError where it is invalid."""
    found = _parse(path)
    extra = sorted(set(found) - KEYS)
    if extra:
        raise RequestError(f"{path}: key {extra[0]!a}: expected base, pure or types")
    base, pure, types = found.get("base"), found.get("pure", False), found.get("types", {})
    if not isinstance(base, str):
        raise RequestError(f'{path}: base: expected the name of a type as in base = "Q4_K_M", got {base!r}')
    if not isinstance(pure, bool):
        raise RequestError(f"{path}: pure: expected true or false, got {pure!r}")
    if not isinstance(types, dict) or not all(isinstance(v, str) for v in types.values()):
        raise RequestError(f'{path}: types: expected pairs as in "attn_v" = "q6_k", got {str(types)[:80]}')
    return Rules(find_recipe(base), tuple(types.items()), pure)


def _parse(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST:
            raise RequestError(f"{path}: expected a file of rules, at most {LARGEST} bytes; got more")
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except OSError as error:
        raise RequestError(f"{path}: can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
        raise RequestError(f"{path}: not {kind}: {error}") from None
    if not isinstance(found, dict):
        raise RequestError(f"{path}: expected an object with base and types, got {type(found).__name__}")
    return found


def write_rules(base: str, types: dict[str, str]) -> str:
    """The text of a TOML file of rules. types: formats by tensor name, written as exact patterns."""
    lines = [f'base = "{base}"', "", "[types]"]
    lines += [f"'^{name.replace('.', chr(92) + '.')}$' = \"{target}\"" for name, target in types.items()]
    return "\n".join(lines) + "\n"


def read_type_file(path: Path) -> list[Override]:
    """Reads lines of PATTERN=FORMAT. Empty lines and comments (#) are skipped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RequestError(f"{path}: can't be read: {error.strerror}") from None
    except ValueError as error:
        raise RequestError(f"{path}: not UTF-8 text: {error}") from None
    kept = [(i, line.strip()) for i, line in enumerate(lines, 1)]
    return [split_pair(line, f"{path}: line {i}") for i, line in kept if line and line[0] != "#"]


def split_pair(pair: str, where: str) -> Override:
    """Splits PATTERN=FORMAT."""
    pattern, equals, target = pair.rpartition("=")
    if not equals or not pattern or not target:
        raise RequestError(f"{where}: {pair}: expected PATTERN=FORMAT, as in ffn_down=q6_k")
    return pattern, target
