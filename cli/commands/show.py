"""`satchel show NAME`: what a model is and can do."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.console import plain

if TYPE_CHECKING:
    from satchel.store.details import Details


def show(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="A name or file; default: the bundled model.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Print only the chat template.")] = False,
    licence: Annotated[bool, typer.Option("--license", "--licence", help="Print only the licence.")] = False,
) -> None:
    """Show a model's architecture, size, context, quantization, licence, template and capabilities.

    Examples:
        satchel show llama3.2
    """
    from satchel.store import Store
    from satchel.store.resolve import default_model

    store = Store()
    name = model or str(default_model())
    entry, path = store.entry(name), store.find(name)
    from satchel.store.details import read_details

    details = read_details(path, entry.name if model else path.name, entry.licence)
    if as_json:
        typer.echo(json.dumps(asdict(details), indent=2))
    elif template:
        typer.echo(plain(details.template))
    elif licence:
        typer.echo(plain(details.licence))
    else:
        typer.echo("\n".join(lines(details)))


def lines(details: Details) -> list[str]:
    """Prints the table for users, without rows that the file has no value for."""
    from satchel.cli.commands.list import size
    from satchel.formats.gguf.labels import size_label

    rows = {
        "architecture": details.architecture,
        "parameters": size_label(details.parameters),
        "context length": str(details.context or ""),
        "embedding length": str(details.embedding or ""),
        "quantization": details.quantization,
        "size": size(details.size),
        "licence": details.licence,
        "template": _template(details),
        "capabilities": ", ".join(details.capabilities),
        "sampling": ", ".join(f"{key} {_number(value)}" for key, value in details.sampling.items()),
        "file": details.path,
    }
    width = max(map(len, rows))
    return [plain(details.name), *(f"  {k:<{width}}  {plain(v)}" for k, v in rows.items() if v)]


def _number(value: object) -> str:
    """A value of the file; a float32 as it was written."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _template(details: Details) -> str:
    """A description of the file's chat template."""
    if not details.template:
        return "none"
    return f"chat, tool calls as {details.family}" if "tools" in details.capabilities else "chat"
