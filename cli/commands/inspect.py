"""`satchel inspect [MODEL]`: what a GGUF file holds, as tables or as JSON. Nothing of it is run."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from satchel.cli.model_argument import ModelOrBundled
from satchel.cli.progress import awaited
from satchel.errors import RequestError
from satchel.formats.gguf import GGUF, StringArray, describe, open_gguf
from satchel.formats.gguf.histogram import TensorHistogram, histogram

SHOWN = 200  # characters of a string; --json shows all of them
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
BAR = 50  # characters of the longest bar
EIGHTHS = " ▏▎▍▌▋▊▉█"


def inspect(
    model: ModelOrBundled = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors/--no-tensors", help="List every tensor.")] = True,
    names: Annotated[
        list[str] | None,
        typer.Option("--histogram", metavar="NAME", help="Print a histogram of a tensor's values instead."),
    ] = None,
    bins: Annotated[int, typer.Option("--bins", help="Bins of the histogram.")] = 40,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Print the whole value of one key, and nothing else."),
    ] = None,
) -> None:
    """Show a GGUF file's header, metadata, tensors and sizes.

    Examples:
        satchel inspect model.gguf
        satchel inspect hf:USER/REPO:Q4_K_M --json
    """
    from satchel.store.resolve import default_model

    with open_gguf(model or default_model()) as gguf:
        if names:
            _histograms(list(awaited((histogram(gguf, name, bins) for name in names), "counting")), as_json)
            return
        if key is not None:
            typer.echo(_whole(gguf, key, as_json))
            return
        found = describe(gguf, tensors=tensors)
    if as_json:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        # In a pipe rich truncates tables at 80 columns: give them the width that they need.
        console = Console(width=1000)
    _print_head(console, found)
    _print_metadata(console, found["metadata"])
    if tensors:
        _print_tensors(console, found["tensors"])
    _print_totals(console, found["totals"])
    errors = Console(stderr=True)
    for line in found["warnings"]:
        errors.print(plain(f"warning: {line}"))


def _whole(gguf: GGUF, key: str, as_json: bool) -> str:
    """Prints a raw value: a string without quotes, an array as a JSON list."""
    if key not in gguf.metadata:
        raise RequestError(f"{gguf.path}: {key[:80]!a}: expected a key of the file, got none of that name")
    value = gguf.metadata[key]
    if isinstance(value, StringArray | np.ndarray):
        items = value.tolist()
        return json.dumps([i if not isinstance(i, float) or isfinite(i) else str(i) for i in items])
    if isinstance(value, str):
        return json.dumps(value) if as_json else value
    return json.dumps(value if isfinite(value) else str(value))


def _histograms(found: list[TensorHistogram], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    for one in found:
        shape = " × ".join(map(str, one.shape)) or "scalar"
        typer.echo(str(plain(f"{one.name}: {shape} of {one.format}")))
        moments = f"mean {one.mean:.4g}, deviation {one.deviation:.4g}, {one.zeros:,} zeros"
        typer.echo(f"{one.least:.4g} to {one.largest:.4g}, {moments}, {one.nan:,} NaN or infinite")
        most = max(one.counts)
        for low, count in zip(one.edges, one.counts, strict=False):
            typer.echo(f"{low:>11.4g} {_bar(count / most)} {count:,}")


def _bar(share: float) -> str:
    """A bar of this share of the longest one; a share above 0 is visible."""
    eighths = max(round(share * BAR * 8), int(share > 0))
    return (EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()).ljust(BAR)


def plain(text: str) -> Text:
    """Untrusted text without rich markup and with control characters escaped."""
    return Text("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column in ("length", "elements", "bytes", "tensors", "offset", "part")
        table.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


def _print_head(console: Console, found: dict[str, Any]) -> None:
    console.print(plain(f"{found['path']}: GGUF v{found['version']}, alignment {found['alignment']}"))
    for part in found["parts"]:
        text = f"{Path(part['path']).name}: {_size(part['size'])}, data from byte {part['data_offset']}"
        console.print(plain(f"  {text}, {part['tensors']} tensors"))


def _print_metadata(console: Console, metadata: dict[str, dict[str, Any]]) -> None:
    table = _table("metadata", "key", "type", "length", "value")
    for key, entry in metadata.items():
        length = entry.get("length")
        table.add_row(
            plain(key), entry["type"], "" if length is None else str(length), plain(_shorten(entry))
        )
    console.print(table)


def _shorten(entry: dict[str, Any]) -> str:
    value = entry["value"]
    if isinstance(value, list):
        more = ", …" if entry["length"] > len(value) else ""
        return f"[{', '.join(_shorten({'value': element}) for element in value)}{more}]"
    if not isinstance(value, str):
        return str(value)
    return repr(value) if len(value) <= SHOWN else f"{value[:SHOWN]!r}… ({len(value)} characters)"


def _print_tensors(console: Console, tensors: list[dict[str, Any]]) -> None:
    parts = len({tensor["part"] for tensor in tensors}) > 1
    table = _table("tensors", "name", "shape", "format", "bytes", "offset", *(["part"] if parts else []))
    for tensor in tensors:
        shape = " × ".join(map(str, tensor["shape"])) or "scalar"
        row = [plain(tensor["name"]), shape, tensor["format"], str(tensor["nbytes"]), str(tensor["offset"])]
        table.add_row(*row, *([str(tensor["part"] + 1)] if parts else []))
    console.print(table)


def _print_totals(console: Console, totals: dict[str, Any]) -> None:
    table = _table("totals", "format", "tensors", "elements", "bytes", "size")
    for name, row in [*totals["formats"].items(), ("all", totals)]:
        counts = [str(row[column]) for column in ("tensors", "elements", "bytes")]
        table.add_row(name, *counts, _size(row["bytes"]))
    console.print(table)
    console.print(f"{totals['bits_per_element']} bits an element")


def _size(count: float) -> str:
    power = 0
    while count >= 1024 and power < len(UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.0f} {UNITS[power]}" if power == 0 else f"{count:.2f} {UNITS[power]}"
