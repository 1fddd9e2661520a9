"""The configuration file: TOML with a table per command, whose keys are long option names. An environment
variable wins over the file, a flag over both.

    [defaults]            # for every command that has the option
    threads = 4
    [serve]
    port = 8080
    [models.small]        # what `satchel serve` knows by name; see server/catalog.py
    path = "small.gguf"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from satchel.cli.usage import CONFIG, UsageError
from satchel.errors import RequestError
from satchel.errors.spelling import did_you_mean

DEFAULTS, MODELS, ALIASES = "defaults", "models", "aliases"
Table = Mapping[str, Any]


def find() -> Path | None:
    """The configuration file: that of SATCHEL_CONFIG ("" for none), or the user's own if it exists."""
    named = os.environ.get(CONFIG)
    if named is not None:
        return Path(named) if named else None
    usual = usual_path()
    return usual if usual.is_file() else None


def usual_path() -> Path:
    from platformdirs import user_config_path

    return user_config_path("satchel", appauthor=False) / "config.toml"


def read(path: Path) -> Table:
    """The file's tables. RequestError where it cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}: give another --config, or none") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: no UTF-8 at byte {error.start}: write it as UTF-8") from None
    except RecursionError:
        raise RequestError(f"{path}: too deep to read: no option has values within values") from None
    except ValueError as error:  # also of int, for a number of thousands of digits
        raise RequestError(f"{path}: no TOML: {error}") from None


def check_tables(path: Path, tables: Table, commands: Collection[str]) -> None:
    """Raises UsageError for an unknown table."""
    known = (*commands, DEFAULTS, MODELS, ALIASES)
    for name, table in tables.items():
        if name not in known:
            hint = did_you_mean(name, known, "[{}]")
            others = f"; {hint}" if hint else f": there are {', '.join(known)}"
            raise UsageError(f"{path}: nothing reads [{name}]{others}")
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} is {table!r:.40}: expected a table [{name}]")


def defaults(command: str, parameters: Mapping[str, str], commands: Collection[str]) -> dict[str, Any]:
    """The file's values of a command's parameters. parameters: parameter names by long option name.
    UsageError for an unknown name.
    """
    path = find()
    if path is None:
        return {}
    tables = read(path)
    check_tables(path, tables, commands)
    found = {parameters[k]: v for k, v in tables.get(DEFAULTS, {}).items() if k in parameters}
    for key, value in tables.get(command, {}).items():
        if key not in parameters:
            hint = did_you_mean(key, parameters)
            others = f"; {hint}" if hint else f" (see `satchel {command} --help`)"
            raise UsageError(f"{path}: [{command}] {key} is no option of this command{others}")
        found[parameters[key]] = value
    return found
