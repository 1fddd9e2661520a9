"""`satchel list`: the models of this machine, wherever they lie, by the names that -m takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from satchel.cli.console import out, plain

if TYPE_CHECKING:
    from satchel.store import StoredModel


def list(
    text: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="List only models whose names contain this.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List this machine's models: pulled ones, those of Hugging Face, Ollama, LM Studio, the bundled one.

    Examples:
        satchel list
        satchel list qwen
    """
    from satchel.store import Store

    found = [entry for entry in Store().list() if text.lower() in entry.name.lower()]
    if as_json:
        typer.echo(json.dumps([as_row(entry) for entry in found], indent=2))
    else:
        _print(found)


def as_row(entry: StoredModel) -> dict[str, Any]:
    """An entry as a JSON object."""
    return {
        "name": entry.name,
        "place": entry.place,
        "size": entry.size,
        "modified": entry.modified,
        "sha256": entry.sha256,
        "licence": entry.licence,
        "paths": [str(path) for path in entry.paths],
    }


def _print(found: Any) -> None:
    from datetime import datetime

    from rich import box
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False, header_style="")
    for column in ("NAME", "SIZE", "PLACE", "MODIFIED"):
        right = column == "SIZE"
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "NAME")
    table.box = box.SIMPLE_HEAD if out().is_terminal else None
    for entry in found:
        when = datetime.fromtimestamp(entry.modified).strftime("%Y-%m-%d %H:%M")
        table.add_row(plain(entry.name), size(entry.size), entry.place, when)
    out().print(table, markup=False)


def size(count: int) -> str:
    """A size in decimal units, as model servers write it."""
    for unit, power in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= power:
            return f"{count / power:.1f} {unit}"
    return f"{count} B"
