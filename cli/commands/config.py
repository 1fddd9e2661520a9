"""`satchel config show [COMMAND]`: the value of each option and its source: default, file, environment or
flag.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from satchel.cli.groups import wrong
from satchel.cli.main import HELP, commands, configured, declared, parameters, parsed, spelled

SOURCES = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file", "DEFAULT": "default"}


def config(
    action: Annotated[str, typer.Argument(metavar="show|path", help="What to print.")] = "show",
    command: Annotated[str, typer.Argument(help="The command.")] = "serve",
    flags: Annotated[list[str] | None, typer.Argument(help="Flags, after --, as if given to it.")] = None,
    *,
    changed: Annotated[
        bool, typer.Option("--changed", help="Print only values that differ from the default.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show where each option's value comes from: default, file, environment or flag.

    The file is that of --config or SATCHEL_CONFIG, else config.toml in the user's configuration folder, if
    there is one. It has a table for each command, with options by their long names, and [defaults] for all of
    them.

    Examples:
        satchel config
        satchel config show run -- --ctx-size 8192
    """
    from satchel.cli.config import find, usual_path

    path = find()
    if action == "path":
        print(path or f"{usual_path()} (does not exist)")
        return
    if action != "show":
        raise wrong("action", f"expected show or path, got {action}")
    if command not in commands():
        raise wrong("command", f"{command} is not a command: see `satchel --help`")
    rows = [r for r in values(command, flags or []) if not changed or r["source"] != "default"]
    if as_json:
        print(
            json.dumps({"file": str(path) if path else None, "command": command, "options": rows}, indent=2)
        )
        return
    print(f"file: {path or 'none'}")
    width = max((len(r["option"]) for r in rows), default=0)
    for row in rows:
        told = f"  {row['source']}" + (f" {row['variable']}" if row["variable"] else "")
        print(f"{row['option']:<{width}}  {_shown(row['value']):<24}{told}")


def values(name: str, flags: list[str]) -> list[dict[str, Any]]:
    """A row per option of a command: its value and the source of the value."""
    command = parsed(name)
    given = spelled(name, flags, declared(command), parameters(command))
    context = command.make_context(f"satchel {name}", given, default_map=configured(name, command))
    rows = []
    for param in command.params:
        options = [o for o in param.opts if o.startswith("--") and o not in HELP]
        if not options or getattr(param, "hidden", False):
            continue
        source = SOURCES.get(getattr(context.get_parameter_source(param.name), "name", "DEFAULT"), "default")
        value = context.params.get(param.name)
        found = (
            next((v for v in param.envvar or () if os.environ.get(v)), "") if source == "environment" else ""
        )
        secret = "key" in options[0] and value
        shown = "(set)" if secret else value
        rows.append({"option": options[0], "value": shown, "source": source, "variable": found})
    return rows


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
