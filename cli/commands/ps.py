"""`satchel ps`: the models that a running server has loaded."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from satchel.cli.console import out, plain

LATEST = "2200"  # Ollama's API gives a model that is never unloaded a date that is centuries away
HOST = "The server's address; default: $SATCHEL_HOST, or 127.0.0.1:8080."


def ps(
    host: Annotated[str, typer.Option("--host", metavar="HOST:PORT", help=HOST)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models that a running server has loaded.

    Examples:
        satchel ps
    """
    from satchel.store.running import ServerClient

    models = ServerClient.of(os.environ, host).models()
    if as_json:
        typer.echo(json.dumps(models, indent=2))
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if out().is_terminal else None, pad_edge=False, header_style="")
    for column in ("NAME", "SIZE", "CONTEXT", "KV CACHE", "UNTIL"):
        table.add_column(column, justify="left" if column in ("NAME", "UNTIL") else "right")
    for model in models:
        table.add_row(*map(plain, row(model)))
    out().print(table, markup=False)


def row(model: dict[str, Any]) -> tuple[str, ...]:
    """A table row of a model in the server's response. KV CACHE: tokens in use, of all that its requests
    share; another server than Satchel's gives none.
    """
    from satchel.cli.commands.list import size

    count, expires = model.get("size"), str(model.get("expires_at", ""))
    tokens = [str(model.get(name, "")) for name in ("kv_tokens_used", "kv_tokens")]
    return (
        str(model.get("name", "")),
        size(count) if isinstance(count, int) else "",
        str(model.get("context_length", "")),
        "/".join(tokens) if all(tokens) else "",
        "forever" if expires[:4] > LATEST else expires[:19],
    )
